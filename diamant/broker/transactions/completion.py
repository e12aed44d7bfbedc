"""Completes transactions in Prepare*: writes their markers, then the Complete* record.

If a partition cannot take its marker because a disk fails, the transaction stays in Prepare*. The missing markers are retried
after growing pauses, and whenever the producer sends a request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from diamant.broker.transactions.markers import write_markers
from diamant.broker.transactions.transaction import TopicPartition, Transaction, completed
from diamant.broker.transactions.transaction_store import TransactionStore
from diamant.protocol.errors import KafkaError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.1, 10.0
"""The first and the longest pause before missing markers are retried."""


class TransactionCompletion:
    """The transactions with missing markers. Belongs to the loop thread."""

    def __init__(self, node: Node, groups: Lazy[GroupCoordinator], store: TransactionStore) -> None:
        self._node = node
        self._groups = groups
        self._store = store
        self._missing: dict[str, frozenset[TopicPartition]] = {}
        self._retry_s = FIRST_RETRY_S
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Stop the retries."""
        self._is_stopped = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    def clear(self) -> None:
        """Drop all transactions."""
        self._missing.clear()

    def partitions_without_marker(self, txn: Transaction) -> frozenset[TopicPartition]:
        """Return the partitions of a transaction; if it is ending, only those whose marker is missing."""
        return self._missing.get(txn.transactional_id, txn.partitions)

    def finish(self, txn: Transaction) -> Transaction:
        """Write the missing markers and the Complete* record; return the updated transaction.

        Never raises: failed writes are retried later.
        """
        transactional_id, topic = txn.transactional_id, self._store.topic
        missing = self.partitions_without_marker(txn)
        try:
            missing = write_markers(
                self._node,
                self._groups,
                missing,
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                is_commit=txn.is_commit,
                coordinator_epoch=topic.log(topic.partition_of(transactional_id)).leader_epoch,
            )
            if not missing:
                done = self._store.put(completed(txn, self._node.env.clock.now_ms()))
                self._missing.pop(transactional_id, None)
                return done
        except KafkaError as error:
            logger.error("the end of transaction %s could not be written: %s", transactional_id, error.detail)
        self._missing[transactional_id] = missing
        self._retry_later()
        return txn

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self._is_stopped:
            self._retry_timer = asyncio.get_running_loop().call_later(self._retry_s, self._retry)
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _retry(self) -> None:
        self._retry_timer = None
        for transactional_id in list(self._missing):
            self.finish(self._store.transactions[transactional_id])
        if not self._missing:
            self._retry_s = FIRST_RETRY_S
