"""Expiry of ids unused for `transactional.id.expiration.ms`, and aborts of transactions open for longer than their timeout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from diamant.broker.node.scheduler import Periodic, ScheduledTask
from diamant.broker.transactions.completion import TransactionCompletion
from diamant.broker.transactions.transaction import ENDING, NewProducerIdNeeded, fenced
from diamant.broker.transactions.transaction_store import TransactionStore
from diamant.protocol.errors import KafkaError

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

TOMBSTONE_BATCH = 500
"""Tombstones per batch. Such a batch is far smaller than any sensible `max.message.bytes`."""


class TransactionExpiry:
    """Removes expired ids every `transaction.remove.expired.transaction.cleanup.interval.ms`."""

    def __init__(self, node: Node, store: TransactionStore) -> None:
        self._node = node
        self._store = store
        interval_ms = node.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._period = Periodic(node.env.clock, interval_ms)
        node.scheduler.add(
            ScheduledTask("expiry of transactional ids", self._due_ms, self._remove_expired, self._period.look_now)
        )

    def _due_ms(self) -> int | None:
        return self._period.due_ms() if self._store.transactions else None

    async def _remove_expired(self) -> None:
        """Write tombstones for expired ids, and drop them."""
        self._period.done()
        now_ms = self._node.env.clock.now_ms()
        limit_ms = self._node.config.transactional_id_expiration_ms
        expired: dict[int, list[str]] = {}
        for count, txn in enumerate(list(self._store.transactions.values()), start=1):
            if txn.is_expired(now_ms, limit_ms):
                expired.setdefault(self._store.topic.partition_of(txn.transactional_id), []).append(
                    txn.transactional_id
                )
            if count % 1000 == 0:
                await asyncio.sleep(0)
        for partition, ids in expired.items():
            for start in range(0, len(ids), TOMBSTONE_BATCH):
                self._remove(partition, ids[start : start + TOMBSTONE_BATCH], now_ms - limit_ms)
                await asyncio.sleep(0)

    def _remove(self, partition: int, transactional_ids: Iterable[str], limit_ms: int) -> None:
        still = [
            transactional_id
            for transactional_id in transactional_ids
            if (txn := self._store.transactions.get(transactional_id)) is not None and txn.is_expired(limit_ms, 0)
        ]
        if not still:
            return
        try:
            self._store.remove(partition, still)
        except KafkaError as error:
            logger.error("%d transactional ids could not be removed: %s", len(still), error.detail)


class TransactionTimeouts:
    """Aborts overdue transactions every `transaction.abort.timed.out.transaction.cleanup.interval.ms`."""

    def __init__(self, node: Node, store: TransactionStore, completion: TransactionCompletion) -> None:
        self._node = node
        self._store = store
        self._completion = completion
        interval_ms = node.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._period = Periodic(node.env.clock, interval_ms)
        node.scheduler.add(
            ScheduledTask("transaction timeouts", self._due_ms, self._abort_timed_out, self._period.look_now)
        )

    def begin(self) -> None:
        """Schedule a check one interval from now. Called when the first transaction opens."""
        self._period.done()
        self._node.scheduler.poke()

    def _due_ms(self) -> int | None:
        return self._period.due_ms() if self._store.has_open else None

    async def _abort_timed_out(self) -> None:
        self._period.done()
        now_ms = self._node.env.clock.now_ms()
        for transactional_id in [txn.transactional_id for txn in self._store.open_transactions]:
            txn = self._store.transactions.get(transactional_id)
            if txn is not None and txn.is_timed_out(now_ms):
                await self._abort(transactional_id)
            elif txn is not None and txn.state in ENDING:
                self._completion.finish(txn)

    async def _abort(self, transactional_id: str) -> None:
        def abort(new_producer_id: int | None) -> None:
            txn = self._store.transactions.get(transactional_id)
            now_ms = self._node.env.clock.now_ms()
            if txn is None or not txn.is_timed_out(now_ms):
                return  # the transaction ended during the wait for a producer id
            aborted = fenced(txn, now_ms, server_version=self._store.server_version, new_producer_id=new_producer_id)
            self._completion.finish(self._store.put(aborted))
            logger.info("transaction %s timed out after %d ms and was aborted", transactional_id, txn.timeout_ms)

        try:
            try:
                abort(None)
            except NewProducerIdNeeded:
                aborting = self._node.producer_ids.give(abort, lambda: None)
                if aborting is not None:
                    await aborting
        except KafkaError as error:
            logger.error("transaction %s could not be aborted: %s", transactional_id, error.detail)
