"""Transactions of a log that is read in parts, each by another task: what a task has to know of the batches before its part.

What becomes of a batch may depend on others far away: whether its transaction aborted, whether a marker is the last thing left of
one. The `TransactionTracker` that all engines share decides so in one walk over the whole log. For tasks the walk is cut:

    each part      notes its *events*: markers, and data batches as far as they change anything
    driver         goes over the events in the order of offsets, with the same tracker, and keeps its state at each cut
    each task      continues from the state at its own cut, over every batch

The driver only wants to know the state at the cuts, so a part keeps no more events than leave the tracker in the same state at
its end. Of a producer no transaction of which aborted that is the last one, data or a commit. Of another one a few for each of
its aborted transactions (`_Course`): between two of their begins nothing but these can matter,

    before the first abort      whether there was data, whether there was a commit, and data after that
    after it                    the last one, data or a commit

Other producers' events do not come in between: they only have announced transactions begin, which a producer's own next event
does as well.

Memory: 24 bytes for each event that is kept, in the driver too: one for each producer of each part, and five for each aborted
transaction that reaches into it. It does not grow with the number of transactions.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.protocol.batches.control import ControlType
from diamant.storage.segments.txn_index import AbortedTxn

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = -1
"""In place of a control type: a batch of data."""

EVENT_FIELDS = 3
"""Last offset, producer id, control type."""


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker between two batches."""

    pending: tuple[AbortedTxn, ...] = ()
    """Announced and not reached yet, by first offset."""
    aborted: tuple[tuple[int, AbortedTxn, bool], ...] = ()
    committed: tuple[int, ...] = ()


class ResumableTracker(TransactionTracker):
    """A tracker whose state can be taken to another process."""

    __slots__ = ()

    def state(self, end_offset: int | None = None) -> TrackerState:
        """Return the state; without what no batch below `end_offset` reaches, if that is given."""
        return TrackerState(
            tuple(one for _, _, one in sorted(self._pending) if end_offset is None or one.first_offset < end_offset),
            tuple((producer_id, one, has_batches) for producer_id, (one, has_batches) in self._aborted.items()),
            tuple(sorted(self._committed)),
        )

    @classmethod
    def resume(cls, state: TrackerState) -> ResumableTracker:
        """Return a tracker that continues from `state`."""
        tracker = cls()
        tracker.add_aborted(state.pending)
        tracker._aborted = {producer_id: (one, has_batches) for producer_id, one, has_batches in state.aborted}
        tracker._committed = set(state.committed)
        return tracker

    def replay(self, events: NDArray[np.int64]) -> None:
        """Go over `events`, int64[n, EVENT_FIELDS]."""
        for last_offset, producer_id, control_type in events.tolist():
            if control_type == DATA:
                self.drops_data(last_offset, producer_id, is_transactional=True)
            else:
                self.drops_control(last_offset, producer_id, control_type)


class RecordingTracker(TransactionTracker):
    """Collects the events of a part, and answers for another tracker, or without one that nothing aborted."""

    __slots__ = ("_begins", "_courses", "_last", "_tracker")

    def __init__(self, plan: CleanPlan, tracker: TransactionTracker | None = None) -> None:
        super().__init__()
        self._tracker = tracker
        self._begins = _begins_of(plan)
        self._courses: dict[int, _Course] = {}
        """Of producers with aborted transactions."""
        self._last: dict[int, tuple[int, int]] = {}
        """Of the others: producer id to the last offset and the kind of its last event."""

    @property
    def events(self) -> NDArray[np.int64]:
        """The events kept so far, int64[n, EVENT_FIELDS], in the order of offsets."""
        kept = [(offset, producer_id, kind) for producer_id, (offset, kind) in self._last.items()]
        kept += [
            (offset, producer_id, kind) for producer_id, one in self._courses.items() for offset, kind in one.events
        ]
        kept.sort()
        return np.array(kept, np.int64).reshape(-1, EVENT_FIELDS)

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        """As any tracker."""
        if is_transactional:
            self._record(last_offset, producer_id, DATA)
        if self._tracker is None:
            return False
        return self._tracker.drops_data(last_offset, producer_id, is_transactional=is_transactional)

    def drops_control(
        self, last_offset: int, producer_id: int, control_type: int | None, *, is_frozen: bool = False
    ) -> tuple[bool, AbortedTxn | None]:
        """As any tracker."""
        if control_type in (ControlType.ABORT, ControlType.COMMIT):
            self._record(last_offset, producer_id, int(control_type))
        if self._tracker is None:
            return False, None
        return self._tracker.drops_control(last_offset, producer_id, control_type, is_frozen=is_frozen)

    def _record(self, last_offset: int, producer_id: int, kind: int) -> None:
        begins = self._begins.get(producer_id)
        if begins is not None:
            course = self._courses.setdefault(producer_id, _Course(begins))
            course.add(last_offset, kind)
        elif kind != ControlType.ABORT:
            # Nothing of this producer was announced as aborted, so a marker that says so finds nothing.
            self._last[producer_id] = (last_offset, kind)


class _Course:
    """The kept events of a producer; `begins` are the first offsets of its aborted transactions, ascending."""

    __slots__ = ("_begins", "_past", "_run", "_run_at")

    def __init__(self, begins: Sequence[int]) -> None:
        self._begins = begins
        self._past: list[tuple[int, int]] = []
        self._run: list[tuple[int, int]] = []
        """Of the events since the last begin, five at most."""
        self._run_at = -1

    @property
    def events(self) -> list[tuple[int, int]]:
        """Last offsets and kinds, in order."""
        return self._past + self._run

    def add(self, last_offset: int, kind: int) -> None:
        run_at = bisect_right(self._begins, last_offset)
        if run_at != self._run_at:
            self._past += self._run
            self._run, self._run_at = [], run_at
        run, kinds = self._run, [one for _, one in self._run]
        event = (last_offset, kind)
        if ControlType.ABORT in kinds:
            if kind != ControlType.ABORT:
                # Nothing more is aborted: the last one tells all.
                self._run = [*run[: kinds.index(ControlType.ABORT) + 1], event]
        elif kind == ControlType.ABORT:
            run.append(event)
        elif kind == DATA:
            if not kinds or kinds[-1] != DATA:
                run.append(event)
        else:
            self._run = [run[kinds.index(DATA)], event] if DATA in kinds else [event]


def _begins_of(plan: CleanPlan) -> dict[int, list[int]]:
    """Return the first offsets of each producer's aborted transactions, ascending."""
    begins: dict[int, list[int]] = {}
    for entries in [*(segment.aborted for segment in plan.segments), plan.later_aborted]:
        _add(begins, entries)
    return begins


def _add(begins: dict[int, list[int]], entries: Iterable[AbortedTxn]) -> None:
    for one in entries:
        insort(begins.setdefault(one.producer_id, []), one.first_offset)
