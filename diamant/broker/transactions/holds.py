"""Partitions that are overdue for cleaning because a transaction is still open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.transactions.open_in_log import open_transactions
from diamant.cleaner.rules.open_transaction import OpenTransaction

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.storage.checkpoints.checkpoints import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionHold:
    """A partition, and the open transaction that keeps its closed segments from being cleaned."""

    topic: str
    partition: int
    transaction: OpenTransaction

    @property
    def abort_command(self) -> str:
        """Kafka's command that aborts the transaction."""
        return self.transaction.abort_command(self.topic, self.partition)

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        txn = self.transaction
        return {
            "topic": self.topic,
            "partition": self.partition,
            "producer_id": txn.producer_id,
            "transactional_id": txn.transactional_id,
            "first_offset": txn.first_offset,
            "since_ms": txn.since_ms,
            "aborts_ms": txn.abort_ms,
            "abort_command": self.abort_command,
        }


def transaction_holds(
    node: Node, overdue: Iterable[TopicPartition], transactions: Lazy[TransactionCoordinator]
) -> list[TransactionHold]:
    """Return the `overdue` partitions that wait for an open transaction. Call on the loop thread; may read a header for each."""
    holds = []
    for partition in overdue:
        log = node.directory.logs.get(partition)
        if log is None or log.last_stable_offset >= log.active.base_offset:
            continue
        opened = min(open_transactions(log, transactions), key=lambda txn: txn.first_offset, default=None)
        if opened is not None:
            holds.append(TransactionHold(*partition, opened))
    return holds
