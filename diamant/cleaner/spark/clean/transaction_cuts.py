"""Transactions of a log that several tasks read in parts: the state that a task needs from the batches before its part.

The fate of a batch may depend on distant batches: on the abort of its transaction, or on whether a marker is all that is left of
one. The `TransactionTracker` of all engines decides this in one walk over the whole log. For tasks the walk is cut:

    each part      records its *events*: markers, and data batches that change the state
    driver         replays the events in offset order, with the same tracker, and keeps its state at each cut
    each task      continues from the state at its own cut, over every batch

The driver needs only the state at the cuts. So a part keeps just enough events to leave the tracker in the same state at its
end. For a producer without aborted transactions this is the last event, data or a commit. For others it is a few events for
each aborted transaction (`_Course`). Between the beginnings of two of them, only these matter:

    before the first abort      whether there was data, whether there was a commit, and data after that
    after it                    the last event, data or a commit

Events of other producers have no influence. They only make announced transactions begin, as a producer's own next event does.

Memory, also of the driver, is 24 bytes for each kept event: one event for each producer in each part, and five for each aborted
transaction that reaches into the part. It does not grow with the number of transactions.
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
"""Marks the event of a data batch, in place of a control type."""

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
        """Return the state; with `end_offset`, without transactions that begin at or above it."""
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
    """Records the events of a part. The answers come from another tracker; without one, no transaction is aborted."""

    __slots__ = ("_begins", "_courses", "_last", "_tracker")

    def __init__(self, plan: CleanPlan, tracker: TransactionTracker | None = None) -> None:
        super().__init__()
        self._tracker = tracker
        self._begins = _begins_of(plan)
        self._courses: dict[int, _Course] = {}
        """Events of the producers with aborted transactions, by producer id."""
        self._last: dict[int, tuple[int, int]] = {}
        """Last offset and kind of each other producer's last event, by producer id."""

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
        """Kept events since the last beginning of an aborted transaction, at most five."""
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
                # No further transaction is aborted, so only the last event matters.
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
