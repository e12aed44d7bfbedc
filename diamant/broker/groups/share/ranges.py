"""Records in flight as ranges: runs of offsets in one state, in the batches in which they were acquired.

Memory is by runs: a batch that is acquired and acknowledged as a whole is one run, however many records it has.

Source: InFlightBatch, InFlightState, RecordState of Kafka 4.3, which has an object per offset once a batch is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from diamant.protocol.internal_topics.share_records import StateBatch

NO_MEMBER = ""
"""Member id of records that are not acquired."""
NO_LOCK = -1


class RecordState(IntEnum):
    """Kafka's numbers of the states."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether such records are given to no member again."""
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
        """The run as the state topic has it."""
        return StateBatch(self.first, self.last, int(self.state), self.delivery_count)

    def freed(self, state: RecordState, *, delivery_count: int | None = None) -> Run:
        """Return the run in a state in which no member holds it."""
        count = self.delivery_count if delivery_count is None else delivery_count
        return Run(self.first, self.last, state, count)


class InFlightBatch(NamedTuple):
    """Offsets that were acquired together, without gaps between the runs.

    `is_divided`: the records were not always in one state. Kafka has a state per offset then, for good, and treats them so.
    """

    runs: tuple[Run, ...]
    is_divided: bool = False

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
        runs: list[Run] = []
        for run in self.runs:
            for part in parts(run, first, last):
                after = change(part) if first <= part.first and part.last <= last else part
                if runs and runs[-1][2:] == after[2:]:
                    after = after._replace(first=runs.pop().first)
                runs.append(after)
        return InFlightBatch(tuple(runs), self.is_divided or is_divided)


def parts(run: Run, first: int, last: int) -> Iterator[Run]:
    """Yield a run, divided where the range begins and ends."""
    position = run.first
    for cut in (first, last + 1):
        if position < cut <= run.last:
            yield run._replace(first=position, last=cut - 1)
            position = cut
    yield run._replace(first=position)
