"""Tracks the transactions in the batches that a round reads: which are aborted, and which markers may be removed.

Batches are read in offset order; one tracker serves the first pass, another the whole rewrite. A marker may be removed when a
round reads no batch of its transaction. Batches that the round removes count as read, so markers are removed one round after the
data.

Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from diamant.protocol.batches.control import ControlType
from diamant.storage.segments.txn_index import AbortedTxn


class TransactionTracker:
    """The transactions by producer id. Memory grows with the number of producers whose transactions overlap."""

    __slots__ = ("_aborted", "_committed", "_pending", "_sequence", "has_met_any")

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, AbortedTxn]] = []
        """Heap, ordered by first offset, of aborted transactions that begin after the batches read so far."""
        self._sequence = 0
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        """Maps a producer id to its current aborted transaction, and to True if a batch of the transaction was read."""
        self._committed: set[int] = set()
        """Producers with batches of a non-aborted transaction since their last marker."""
        self.has_met_any = False
        """True once a marker or a transactional batch has been read."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Announce aborted transactions. The same transaction may be announced once for each segment that it extends into."""
        for aborted in transactions:
            heapq.heappush(self._pending, (aborted.first_offset, self._sequence, aborted))
            self._sequence += 1

    @property
    def is_expecting(self) -> bool:
        """True if an announced aborted transaction has not begun yet; any later batch may be its first."""
        return bool(self._pending)

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        """Record a data batch, even one without records; return True if its transaction is aborted."""
        self._activate(last_offset)
        if not is_transactional:
            return False
        self.has_met_any = True
        found = self._aborted.get(producer_id)
        if found is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = (found[0], True)
        return True

    def drops_control(
        self, last_offset: int, producer_id: int, control_type: int | None, *, is_frozen: bool = False
    ) -> tuple[bool, AbortedTxn | None]:
        """Record a control batch. Return whether it may be removed, and its transaction's index entry if that must be kept.

        `control_type` is None for a batch without a record. `is_frozen`: an unread segment may hold batches of its
        transaction (`quarantine`), so the marker and its entry are kept.
        """
        self._activate(last_offset)
        self.has_met_any = True
        if control_type is None:
            return True, None
        if control_type == ControlType.ABORT:
            aborted, has_batches = self._aborted.pop(producer_id, (None, False))
            return (False, aborted) if has_batches or is_frozen else (True, None)
        if control_type == ControlType.COMMIT:
            if producer_id in self._committed:
                self._committed.remove(producer_id)
                return False, None
            return not is_frozen, None
        return False, None

    def skip_to(self, offset: int) -> None:
        """Forget the aborted transactions that ended before `offset`; their markers may be in segments that were not read."""
        self._aborted = {
            producer_id: state for producer_id, state in self._aborted.items() if state[0].last_offset >= offset
        }
        self._pending = [one for one in self._pending if one[2].last_offset >= offset]
        heapq.heapify(self._pending)

    def _activate(self, last_offset: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= last_offset:
            aborted = heapq.heappop(pending)[2]
            self._aborted.setdefault(aborted.producer_id, (aborted, False))
