"""The findings of a scan in files, and the places that it cannot read.

Findings are kept file by file, within limits: however much there is, nothing that decides hides behind the rest.

    listed     place by place, as long as there is room: `MAX_LISTED` of a sort in a file, and of a scan what `ListCapacity` has
    decides    of each file and sort the place with the lowest offset, whether there is room or not: of records of the key in the
               erasure's topics, of other records there that hold the bytes, of bytes outside of records, and of all that is in
               a file of no partition
    the rest   counted

A sort is what a finding is, of tombstones also whether they have headers, and for what may lie in a file of no partition
whether it says more than the key's bytes.

Memory: some 400 bytes for each finding; of a scan as many of each sort as `ListLimits` say, and ten of each file.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

VALUE = "value"
"""A record of the key with a value."""
TOMBSTONE = "tombstone"
"""A record of the key without one."""
SAME_KEY = "same-key"
"""A record of the same key in a topic that the erasure is not about."""
SAME_BYTES = "same-bytes"
"""Bytes of the key or of one of its values in a record that has another key."""
UNDECIDED = "undecided"
"""A record of which it cannot be told whether it is meant."""
RAW = "raw"
"""Bytes of the key or of a value outside of any record."""

DECIDING = frozenset({VALUE, TOMBSTONE, UNDECIDED})
"""Kinds of findings that matter to a partition, according to its offset."""


class Finding(NamedTuple):
    """One place. What was found there is told by digests only."""

    what: str
    topic: str | None
    partition: int | None
    file: str
    """Relative to the data directory."""
    position: int
    """Of the batch, or of the bytes."""
    offset: int | None
    field: str
    """`key`, `value` or `header` of a record; empty outside of records."""
    digest: str
    """HMAC of the value, of the key for a tombstone, of the needle otherwise."""
    horizon_ms: int | None = None
    """Time from which a tombstone may go; None while unknown."""
    has_value: bool | None = None
    """Of a record of the same key that is not in the erasure's topics: whether it has a value. None for everything else."""
    has_headers: bool | None = None
    """True of a tombstone with headers: they may tell what it has deleted. Else None."""

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None and value != ""}


class Unreadable(NamedTuple):
    """A place whose contents cannot be read."""

    topic: str | None
    partition: int | None
    file: str
    position: int | None
    reason: str

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


MAX_LISTED = 1000
MAX_DECIDING = 10_000


class ListLimits(NamedTuple):
    """The number of findings that are listed."""

    listed: int
    """Of a sort in a file; of a scan, too, unless they decide. The same for places that cannot be read."""
    deciding: int
    """Of a deciding sort in a scan."""


_UNREADABLE = "unreadable"


class ListCapacity:
    """The room that a scan has left in its list for each sort. Any thread."""

    def __init__(self, limits: ListLimits | None = None) -> None:
        self.limits = ListLimits(MAX_LISTED, MAX_DECIDING) if limits is None else limits
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, what: str, wanted: int) -> int:
        """Return for how many of `wanted` there is room, which then is taken."""
        most = self.limits.deciding if what in DECIDING else self.limits.listed
        with self._lock:
            granted = max(0, min(wanted, most - self._taken[what]))
            self._taken[what] += granted
        return granted

    def give_back(self, taken: Counter[str]) -> None:
        """Make room again that a file had taken."""
        with self._lock:
            self._taken -= taken


@dataclass(slots=True)
class FoundList:
    """The findings in one file."""

    most: int = MAX_LISTED
    """Of each sort, and of the places that cannot be read."""
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    """Places that cannot be read."""
    unlisted: Counter[str] = field(default_factory=Counter)
    """Findings that are not listed, by what they are."""
    taken: Counter[str] = field(default_factory=Counter)
    """The room that it has of its scan, once it is settled."""
    _listed: Counter[str] = field(default_factory=Counter)
    _least: dict[tuple[str, object], Finding] = field(default_factory=dict)
    """Of each sort that decides the first place, listed or not."""

    def add(self, finding: Finding, kind: object = None, *, is_in_scope: bool = False) -> None:
        """Record a finding. `kind`: what else tells its sort. `is_in_scope`: it is in one of the topics that matter."""
        what = finding.what
        if what in DECIDING or what == RAW or is_in_scope or finding.topic is None:
            least = self._least.setdefault((what, kind), finding)
            if _offset(finding) < _offset(least):
                self._least[what, kind] = finding
        if self._listed[what] < self.most:
            self._listed[what] += 1
            self.findings.append(finding)
        else:
            self.unlisted[what] += 1

    def fail(self, place: Unreadable) -> None:
        """Record a place that cannot be read."""
        if len(self.unreadable) < self.most:
            self.unreadable.append(place)

    def settle(self, room: ListCapacity) -> None:
        """Once the file is searched: list no more than there is room for, and what decides."""
        for what, count in self._listed.items():
            self.taken[what] = room.take(what, count)
        left = self.taken.copy()
        kept = []
        for one in self.findings:
            if left[one.what] > 0:
                left[one.what] -= 1
                kept.append(one)
            else:
                self.unlisted[one.what] += 1
        listed = {id(one) for one in kept}
        for one in self._least.values():
            if id(one) not in listed:
                kept.append(one)
                self.unlisted[one.what] -= 1
        self.findings = kept
        self._least.clear()
        if self.unreadable:
            self.taken[_UNREADABLE] = room.take(_UNREADABLE, len(self.unreadable))
            # One place of it is enough for nothing to be claimed.
            del self.unreadable[max(1, self.taken[_UNREADABLE]) :]


def _offset(finding: Finding) -> int:
    return -1 if finding.offset is None else finding.offset
