"""Records in flight as ranges: runs of offsets in one state, in the batches in which they were acquired.

Memory grows with the runs: a batch that is acquired and acknowledged as a whole is one run, however many records it has.

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
    """Kafka's numbers for the states."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether records in this state are never given to a member again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class Run(NamedTuple):
    """Offsets `first` to `last` in one state. `lock_ends_ms`: by the broker's clock, if acquired."""

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
    """Offsets that were acquired together, without gaps between the runs.

    `is_divided`: the records have been in different states. From then on, Kafka keeps and checks a state for each offset.
    `completed_count`: the number of records that are done, as counted by the function `completed_count`.
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
        """Return whether the range covers the batch."""
        return first <= self.first and self.last <= last

    def changed(self, first: int, last: int, change: Callable[[Run], Run], *, is_divided: bool) -> InFlightBatch:
        """Return the batch with `change` applied to all parts of runs within the range."""
        return self.changed_in([(first, last, change)], is_divided=is_divided)

    def floor(self, offset: int) -> int:
        """Return the index of the last run that begins at or before `offset`, -1 if there is none."""
        return bisect_right(self.runs, offset, key=attrgetter("first")) - 1

    def changed_in(self, changes: Sequence[Change], *, is_divided: bool) -> InFlightBatch:
        """Return the batch with each change applied within its range. The ranges ascend and do not overlap.

        Only the runs in these ranges and their neighbours are examined, so a change costs much the same in a batch of many runs.
        """
        if not changes:
            return self._replace(is_divided=self.is_divided or is_divided)
        low, high = max(self.floor(changes[0][0]) - 1, 0), self.floor(changes[-1][1]) + 2
        before = self.runs[low:high]
        after = _changed(before, changes)
        completed = self.completed_count + completed_count(after) - completed_count(before)
        return InFlightBatch(self.runs[:low] + after + self.runs[high:], self.is_divided or is_divided, completed)


Change: TypeAlias = tuple[int, int, Callable[[Run], Run]]
"""First and last offset, and a function that returns the changed run."""


def completed_count(runs: Iterable[Run]) -> int:
    """Return the number of records that are done."""
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
