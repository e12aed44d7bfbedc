"""Transactions of a log that several tasks read in parts: how a task gets the tracker's state at the beginning of its part.

The fate of a batch may depend on distant batches: data is removed if its transaction is aborted later, and a marker may be
removed if nothing else is left of its transaction. Other engines decide this with a `TransactionTracker`, in one walk over the
whole log. For tasks, the walk is cut:

    each part      records its *events*: markers, and data batches that change the state
    driver         replays the events in offset order, with the same tracker, and keeps its state at each cut
    each task      continues from the state at its own cut, over every batch

The driver needs only the state at the cuts. So a part keeps just enough events to give the tracker the right state at the end of
the part. For a producer without aborted transactions, this is the last event that is data or a commit. For other producers, it is
a few events for each aborted transaction (`_Course`). From the beginning of one aborted transaction to the beginning of the next,
only these events matter:

    before the first abort      the first data, the last commit, and the first data after that commit
    after it                    the last event that is data or a commit

A producer's state does not depend on the events of other producers: they can only make an announced transaction begin, and its
producer's own next event does that, too.

Memory, in tasks and in the driver: 24 bytes for each kept event. A part keeps one event for each producer, and up to five for
each aborted transaction that reaches into the part. Memory does not grow with the number of transactions.
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
"""Marks the event of a data batch; it is stored in place of a control type."""

EVENT_FIELDS = 3
"""Fields of an event: last offset, producer id, control type."""


@dataclass(frozen=True, slots=True)
class TrackerState:
    """The state of a tracker between two batches."""

    pending: tuple[AbortedTxn, ...] = ()
    """Announced transactions that have not begun yet, by first offset."""
    aborted: tuple[tuple[int, AbortedTxn, bool], ...] = ()
    committed: tuple[int, ...] = ()


class ResumableTracker(TransactionTracker):
    """A tracker whose state can be sent to another process."""

    __slots__ = ()

    def state(self, end_offset: int | None = None) -> TrackerState:
        """Return the state. Transactions that begin at or above `end_offset` are left out."""
        return TrackerState(
            tuple(txn for _, _, txn in sorted(self._pending) if end_offset is None or txn.first_offset < end_offset),
            tuple((producer_id, txn, has_batches) for producer_id, (txn, has_batches) in self._aborted.items()),
            tuple(sorted(self._committed)),
        )

    @classmethod
    def resume(cls, state: TrackerState) -> ResumableTracker:
        """Return a tracker that continues from `state`."""
        tracker = cls()
        tracker.add_aborted(state.pending)
        tracker._aborted = {producer_id: (txn, has_batches) for producer_id, txn, has_batches in state.aborted}
        tracker._committed = set(state.committed)
        return tracker

    def replay(self, events: NDArray[np.int64]) -> None:
        """Process `events`, int64[n, EVENT_FIELDS]."""
        for last_offset, producer_id, control_type in events.tolist():
            if control_type == DATA:
                self.drops_data(last_offset, producer_id, is_transactional=True)
            else:
                self.drops_control(last_offset, producer_id, control_type)


class RecordingTracker(TransactionTracker):
    """Records the events of a part. Its answers come from `tracker`; if that is None, no transaction counts as aborted."""

    __slots__ = ("_begins", "_courses", "_last", "_tracker")

    def __init__(self, plan: CleanPlan, tracker: TransactionTracker | None = None) -> None:
        super().__init__()
        self._tracker = tracker
        self._begins = _begins_of(plan)
        self._courses: dict[int, _Course] = {}
        """Events of the producers with aborted transactions, by producer id."""
        self._last: dict[int, tuple[int, int]] = {}
        """The last event of each other producer, as its last offset and kind, by producer id."""

    @property
    def events(self) -> NDArray[np.int64]:
        """The events kept so far, int64[n, EVENT_FIELDS], in offset order."""
        kept = [(offset, producer_id, kind) for producer_id, (offset, kind) in self._last.items()]
        kept += [
            (offset, producer_id, kind)
            for producer_id, course in self._courses.items()
            for offset, kind in course.events
        ]
        kept.sort()
        return np.array(kept, np.int64).reshape(-1, EVENT_FIELDS)

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        """Record a data batch, and return the other tracker's answer."""
        if is_transactional:
            self._record(last_offset, producer_id, DATA)
        if self._tracker is None:
            return False
        return self._tracker.drops_data(last_offset, producer_id, is_transactional=is_transactional)

    def drops_control(
        self, last_offset: int, producer_id: int, control_type: int | None, *, is_frozen: bool = False
    ) -> tuple[bool, AbortedTxn | None]:
        """Record a control batch, and return the other tracker's answer."""
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
            # No aborted transaction of this producer was announced, so an abort marker changes nothing.
            self._last[producer_id] = (last_offset, kind)


class _Course:
    """The kept events of a producer; `begins` are the first offsets of its aborted transactions, ascending."""

    __slots__ = ("_begins", "_past", "_run", "_run_at")

    def __init__(self, begins: Sequence[int]) -> None:
        self._begins = begins
        self._past: list[tuple[int, int]] = []
        self._run: list[tuple[int, int]] = []
        """Events kept since an aborted transaction last began, at most five."""
        self._run_at = -1

    @property
    def events(self) -> list[tuple[int, int]]:
        """Last offsets and kinds of the kept events, in order."""
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
                # Until the next aborted transaction begins, only the last event matters.
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
    for entry in entries:
        insort(begins.setdefault(entry.producer_id, []), entry.first_offset)
