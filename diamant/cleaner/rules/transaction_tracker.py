"""The transactions that a round meets as it reads batches in offset order: which are aborted, which markers may go.

One tracker serves the building of the map, another the whole rewrite. A marker may go once a round finds no batch of its
transaction any more, judged on what the round reads and not on what it writes: so markers leave one round after the data.

Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from diamant.protocol.batches.control import ControlType
from diamant.storage.segments.txn_index import AbortedTxn


class TransactionTracker:
    """State by producer id; memory follows the number of producers with a transaction in the log at the same time."""

    __slots__ = ("_aborted", "_committed", "_pending", "_sequence", "has_met_any")

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, AbortedTxn]] = []
        """A heap by first offset: aborted transactions that no batch has reached yet."""
        self._sequence = 0
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        """Producer id to its aborted transaction being read, and whether a batch of it was seen."""
        self._committed: set[int] = set()
        """Producers with batches of a transaction that is not aborted, since their last marker."""
        self.has_met_any = False
        """True once there was a marker, or a batch of a transaction."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Announce aborted transactions; once for every segment that they reach into is as good as once."""
        for aborted in transactions:
            heapq.heappush(self._pending, (aborted.first_offset, self._sequence, aborted))
            self._sequence += 1

    @property
    def is_expecting(self) -> bool:
        """True if an aborted transaction was announced that no batch has reached yet: any batch may reach it."""
        return bool(self._pending)

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        """Record a data batch, header-only ones too; return True if its transaction is aborted."""
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
        """Record a control batch; return whether it may go, and the entry of its transaction if that must be kept.

        `control_type` is None for a batch without a record. `is_frozen`: batches of its transaction may be where nothing
        was read (`quarantine`), so a marker stays, with its entry.
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
        """Forget the aborted transactions that ended before `offset`: their markers may not have been read."""
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
