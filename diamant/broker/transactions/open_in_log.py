"""The open transactions of a log, with what their coordinator knows about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.storage import names
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.transactions.coordinator import TransactionCoordinator


def open_transactions(log: Log, transactions: Lazy[TransactionCoordinator]) -> list[OpenTransaction]:
    """Return the open transactions of a log. Call on the loop thread; reads a header for each one unknown to the coordinator."""
    known = {}
    if transactions.made is not None:
        known = {
            open_transaction.producer_id: open_transaction
            for open_transaction in transactions.made.store.open_transactions
        }
    transactions_in_log = []
    for producer in log.producers.active_producers:
        first = producer.current_txn_first_offset
        if first < 0:
            continue
        if (transaction := known.get(producer.producer_id)) is None:
            transactions_in_log.append(
                OpenTransaction(producer.producer_id, first, _written_ms(log, first, producer.timestamp))
            )
            continue
        aborts_ms = transaction.start_ms + transaction.timeout_ms + 1
        transactions_in_log.append(
            OpenTransaction(producer.producer_id, first, transaction.start_ms, aborts_ms, transaction.transactional_id)
        )
    return transactions_in_log


def oldest_open(log: Log) -> OpenTransaction | None:
    """Return the oldest open transaction, with only the facts in the log; None if none is open."""
    stable = log.last_stable_offset
    producer_ids = (
        producer.producer_id
        for producer in log.producers.active_producers
        if producer.current_txn_first_offset == stable
    )
    producer_id = next(producer_ids, None)
    return None if producer_id is None else OpenTransaction(producer_id, stable)


def open_transaction_problem(log: Log | None, end_offset: int) -> list[dict[str, str]]:
    """Return a list with the problem for a certificate if an open transaction keeps records below `end_offset`; else [].

    The problem names no transactional id, as the id may contain the erased data.
    """
    opened = None if log is None else oldest_open(log)
    if log is None or opened is None or opened.first_offset >= end_offset:
        return []
    reason = f"{opened.text}, keeps records from being removed until it ends"
    return [{"file": names.partition_dir_name(log.topic, log.partition), "reason": reason}]


def _written_ms(log: Log, offset: int, else_ms: int) -> int:
    try:
        located = log.segments[max(0, log.floor_segment(offset))].locate(offset)
    except (StorageError, OSError):
        located = None
    return else_ms if located is None else located[1].max_timestamp
