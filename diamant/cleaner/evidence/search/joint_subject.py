"""Several subjects of one search, which reads each file once and reports on each subject separately."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from diamant.cleaner.evidence.search.known_positives import KnownPositives
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.protocol.batches.header import Record


class JointSubject(Subject):
    """The topics and needles of several subjects. If a record may concern any of them, each subject decides about it."""

    __slots__ = ("_are_meant", "subjects")

    def __init__(self, subjects: Sequence[Subject]) -> None:
        """`subjects`: at least one; all their digests must use the same secret."""
        needles = subjects[0].needles
        if len(subjects) > 1:
            needles = Needles(needles.secret).joined(chain.from_iterable(one.needles for one in subjects))
        super().__init__(None, frozenset().union(*(one.topics for one in subjects)), needles)
        self.subjects = tuple(subjects)
        by_class: dict[type[Subject], list[Subject]] = {}
        for one in subjects:
            by_class.setdefault(type(one), []).append(one)
        self._are_meant = [kind.any_meant(some) for kind, some in by_class.items()]

    def may_mean(self, record: Record, topic: str | None) -> bool:
        return any(is_any_meant(record, topic) for is_any_meant in self._are_meant)

    def with_known(self, known: KnownPositives) -> JointSubject:
        return JointSubject([one.with_known(known) for one in self.subjects])
