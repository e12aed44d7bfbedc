"""Transactions of a log that is read in parts, each by another task: what a task has to know of the batches before its part.

What becomes of a batch may depend on others far away: whether its transaction aborted, whether a marker is the last thing left of
one. The `TransactionTracker` that all engines share decides so in one walk over the whole log. For tasks the walk is cut:

    each part      notes its *events*: markers, and data batches as far as they change anything
    driver         goes over the events in the order of offsets, with the same tracker, and keeps its state at each cut
    each task      goes on from the state at its own cut, over every batch

An event of a data batch changes nothing where its producer has had one since its last marker, unless an aborted transaction of
that producer begins in between. So there are about two events for each transaction and part that it reaches into.

Memory: 24 bytes for each event, in the driver too.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.plan import CleanPlan
from diamant.cleaner.transactions import TransactionTracker
from diamant.storage.txn_index import AbortedTxn

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = -1
"""In place of a control type: a batch of data."""
EMPTIED = -2
"""A control batch without a record."""

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
        """Return a tracker that goes on from `state`."""
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
                self.drops_control(last_offset, producer_id, None if control_type == EMPTIED else control_type)


class RecordingTracker(TransactionTracker):
    """Takes note of the events of a part, and answers for another tracker, or without one that nothing aborted."""

    __slots__ = ("_begins", "_events", "_last", "_tracker")

    def __init__(self, plan: CleanPlan, tracker: TransactionTracker | None = None) -> None:
        super().__init__()
        self._tracker = tracker
        self._begins = _begins_of(plan)
        self._events: list[tuple[int, int, int]] = []
        self._last: dict[int, int] = {}
        """Producer id to the last offset of its last event, if that was no marker."""

    @property
    def events(self) -> NDArray[np.int64]:
        """The events so far, int64[n, EVENT_FIELDS]."""
        return np.array(self._events, np.int64).reshape(-1, EVENT_FIELDS)

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        """As any tracker."""
        if is_transactional:
            before = self._last.get(producer_id)
            begins = self._begins.get(producer_id, [])
            if before is None or bisect_right(begins, before) != bisect_right(begins, last_offset):
                self._last[producer_id] = last_offset
                self._events.append((last_offset, producer_id, DATA))
        if self._tracker is None:
            return False
        return self._tracker.drops_data(last_offset, producer_id, is_transactional=is_transactional)

    def drops_control(
        self, last_offset: int, producer_id: int, control_type: int | None, *, is_frozen: bool = False
    ) -> tuple[bool, AbortedTxn | None]:
        """As any tracker."""
        self._last.pop(producer_id, None)
        self._events.append((last_offset, producer_id, EMPTIED if control_type is None else int(control_type)))
        if self._tracker is None:
            return False, None
        return self._tracker.drops_control(last_offset, producer_id, control_type, is_frozen=is_frozen)


def has_aborted(plan: CleanPlan) -> bool:
    """Tell whether any transaction aborted: if not, no batch of data goes on account of its own."""
    return bool(plan.later_aborted) or any(segment.aborted for segment in plan.segments)


def _begins_of(plan: CleanPlan) -> dict[int, list[int]]:
    """Return the first offsets of each producer's aborted transactions, ascending."""
    begins: dict[int, list[int]] = {}
    for entries in [*(segment.aborted for segment in plan.segments), plan.later_aborted]:
        _add(begins, entries)
    return begins


def _add(begins: dict[int, list[int]], entries: Iterable[AbortedTxn]) -> None:
    for one in entries:
        insort(begins.setdefault(one.producer_id, []), one.first_offset)
