"""Records in flight, as batches that were acquired together, divided into runs of offsets that have the same state.

Memory is proportional to the number of runs: a batch that is acquired and acknowledged as a whole is a single run.

Source: InFlightBatch, InFlightState, RecordState of Kafka 4.3, which has an object per offset once a batch is divided.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from diamant.protocol.internal_topics.share_records import StateBatch

NO_MEMBER = ""
"""The member id of records that are not acquired."""
NO_LOCK = -1


class RecordState(IntEnum):
    """The states of records, numbered as in Kafka."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether records in this state are never delivered again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class Run(NamedTuple):
    """Offsets `first` to `last`, all in the same state. If acquired, their lock ends at `lock_ends_ms` by the broker's clock."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member_id: str = NO_MEMBER
    lock_ends_ms: int = NO_LOCK

    @property
    def stored(self) -> StateBatch:
        """The run as the state topic stores it."""
        return StateBatch(self.first, self.last, int(self.state), self.delivery_count)

    def freed(self, state: RecordState, *, delivery_count: int | None = None) -> Run:
        """Return the run in `state`, held by no member."""
        count = self.delivery_count if delivery_count is None else delivery_count
        return Run(self.first, self.last, state, count)


class InFlightBatch(NamedTuple):
    """Offsets that were acquired together. There are no gaps between the runs.

    `is_divided`: whether the records have ever been in different states. Kafka then keeps and checks a state for each offset.
    `completed_count`: the result of the function `completed_count` for `runs`.
    """

    runs: tuple[Run, ...]
    is_divided: bool = False
    completed_count: int = 0

    @property
    def first(self) -> int:
        return self.runs[0].first

    @property
    def last(self) -> int:
        return self.runs[-1].last

    def is_within(self, first: int, last: int) -> bool:
        """Return whether the batch lies within the range `first` to `last`."""
        return first <= self.first and self.last <= last

    def changed(self, first: int, last: int, change: Callable[[Run], Run], *, is_divided: bool) -> InFlightBatch:
        """Return the batch after applying `change` to all runs, or parts of runs, within the range."""
        return self.changed_in([(first, last, change)], is_divided=is_divided)

    def floor(self, offset: int) -> int:
        """Return the index of the last run that begins at or before `offset`, -1 if there is none."""
        return bisect_right(self.runs, offset, key=attrgetter("first")) - 1

    def changed_in(self, changes: Sequence[Change], *, is_divided: bool) -> InFlightBatch:
        """Return the batch after applying each change within its range. The ranges must be ascending and disjoint.

        Only the runs in these ranges and their neighbours are examined, so the cost hardly depends on the other runs.
        """
        if not changes:
            return self._replace(is_divided=self.is_divided or is_divided)
        low, high = max(self.floor(changes[0][0]) - 1, 0), self.floor(changes[-1][1]) + 2
        before = self.runs[low:high]
        after = _changed(before, changes)
        completed = self.completed_count + completed_count(after) - completed_count(before)
        return InFlightBatch(self.runs[:low] + after + self.runs[high:], self.is_divided or is_divided, completed)


Change: TypeAlias = tuple[int, int, Callable[[Run], Run]]
"""The first and the last offset of a range, and a function that returns the changed run."""


def completed_count(runs: Iterable[Run]) -> int:
    """Return the number of records in terminal states."""
    return sum(run.last - run.first + 1 for run in runs if run.state.is_terminal)


def _changed(runs: Iterable[Run], changes: Iterable[Change]) -> tuple[Run, ...]:
    found: list[Run] = []

    def add(run: Run) -> None:
        if found and found[-1][2:] == run[2:]:
            run = run._replace(first=found.pop().first)
        found.append(run)

    pending = iter(changes)
    current = next(pending, None)
    for run in runs:
        rest: Run | None = run
        while rest is not None and current is not None and current[0] <= rest.last:
            first, last, change = current
            if last < rest.first:
                current = next(pending, None)
                continue
            if rest.first < first:
                add(rest._replace(last=first - 1))
                rest = rest._replace(first=first)
            if rest.last <= last:
                add(change(rest))
                rest = None
            else:
                add(change(rest._replace(last=last)))
                rest = rest._replace(first=last + 1)
                current = next(pending, None)
        if rest is not None:
            add(rest)
    return tuple(found)
