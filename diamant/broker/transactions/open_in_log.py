"""The open transactions of a log, with the facts that their coordinator knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.explain.log_snapshot import OpenUntil
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.transactions.coordinator import TransactionCoordinator


def open_transactions(log: Log, transactions: Lazy[TransactionCoordinator]) -> list[OpenUntil]:
    """Return them. On the loop thread; reads a header for each one that no coordinator knows."""
    known = {}
    if transactions.made is not None:
        known = {one.producer_id: one for one in transactions.made.store.open_transactions}
    found = []
    for one in log.producers.active_producers:
        first = one.current_txn_first_offset
        if first < 0:
            continue
        if (transaction := known.get(one.producer_id)) is None:
            found.append(OpenUntil(one.producer_id, first, _written_ms(log, first, one.timestamp), None))
            continue
        aborts_ms = transaction.start_ms + transaction.timeout_ms + 1
        found.append(OpenUntil(one.producer_id, first, transaction.start_ms, aborts_ms, transaction.transactional_id))
    return found


def _written_ms(log: Log, offset: int, else_ms: int) -> int:
    try:
        found = log.segments[max(0, log.floor_segment(offset))].locate(offset)
    except (StorageError, OSError):
        found = None
    return else_ms if found is None else found[1].max_timestamp
