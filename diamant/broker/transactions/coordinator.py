"""The transaction coordinator: requests of transactional producers.

Every change takes one turn of the loop: decide (`transaction`), append the record, change memory, write the markers.
A commit writes PrepareCommit to the log, a marker to each partition, and CompleteCommit to the log. After a SIGKILL in between,
the next start completes the transaction: PrepareCommit holds the decision, and markers written twice are harmless
(`completion.py`).

Difference from Kafka: markers are written before EndTxn is answered, so the next transaction need not wait for them.

Source: TransactionCoordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.broker.node.flusher import after_flush
from diamant.broker.topics.internal_names import TRANSACTION_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.broker.transactions import transaction
from diamant.broker.transactions.completion import TransactionCompletion
from diamant.broker.transactions.expiry import TransactionExpiry, TransactionTimeouts
from diamant.broker.transactions.transaction import (
    ENDING,
    NewProducerIdNeeded,
    ProducerIdAndEpoch,
    TopicPartition,
    Transaction,
)
from diamant.broker.transactions.transaction_store import TransactionStore
from diamant.broker.transactions.verification import TransactionVerification
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node

T = TypeVar("T")


class TransactionCoordinator:
    """All transactions of the broker. Belongs to the loop thread."""

    def __init__(self, node: Node, groups: Lazy[GroupCoordinator]) -> None:
        """`groups`: the group coordinator. If it exists, it is notified of markers in its topic."""
        self._node = node
        self.store = TransactionStore(node, lambda: self._timeouts.begin(), lambda txn: self.completion.finish(txn))
        self.completion = TransactionCompletion(node, groups, self.store)
        self._timeouts = TransactionTimeouts(node, self.store, self.completion)
        self._expiry = TransactionExpiry(node, self.store)
        self.verification = TransactionVerification(self)
        node.topics.listeners.append(self)
        self.store.use(node.topics.by_name.get(TRANSACTION_STATE_TOPIC))

    async def stop(self) -> None:
        """Cancel timers and the loading in progress."""
        self.completion.stop()
        await self.store.stop()

    async def loaded(self) -> None:
        """Wait until every readable partition is loaded."""
        await self.store.loaded()

    def topic_created(self, topic: Topic) -> None:
        """Use the new topic if it is `__transaction_state` (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(topic)

    def topic_deleted(self, topic: Topic) -> None:
        """Drop all state if the deleted topic is `__transaction_state` (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(None)

    def _use(self, topic: Topic | None) -> None:
        self.completion.clear()
        self.store.use(topic)

    def find(self, transactional_id: str) -> Transaction | None:
        """Look up a transaction as `TransactionStore.look_up` does, and retry its missing markers."""
        txn = self.store.look_up(transactional_id)
        if txn is not None and txn.state in ENDING:
            txn = self.completion.finish(txn)
        return txn

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: int | None = None,
    ) -> ProducerIdAndEpoch:
        """Return the id of a transactional producer, and an epoch that fences all earlier producers (InitProducerId).

        Raises NewProducerIdNeeded if a new id is needed and `new_producer_id` is None. KafkaError: as `find`;
        INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED; CONCURRENT_TRANSACTIONS if a transaction is in progress; it is aborted.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < timeout_ms <= self._node.config.transaction_max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a timeout of {timeout_ms} ms, expected 1 to {self._node.config.transaction_max_timeout_ms} "
                "(transaction.max.timeout.ms)",
            )
        txn = self.find(transactional_id)
        now_ms = self._now_ms()
        if txn is None:
            if new_producer_id is None:
                raise NewProducerIdNeeded
            return self.store.put(transaction.created(transactional_id, new_producer_id, timeout_ms, now_ms)).identity
        following = transaction.initialized(
            txn,
            expected,
            timeout_ms,
            now_ms,
            new_producer_id=new_producer_id,
            server_version=self.store.server_version,
        )
        if following.state in ENDING:
            self.completion.finish(self.store.put(following))
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"the open transaction of {transactional_id} is being aborted: try again",
            )
        return self.store.put(following).identity

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add partitions to the transaction; begin it if it is not open.

        The caller has checked that the partitions exist. KafkaError: as `find`, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS; UNSUPPORTED_VERSION for TV2 if the finalized `transaction.version` is 0.
        """
        self._check_client_version(client_version)
        txn = self._known(transactional_id)
        following = transaction.with_partitions(
            txn, producer, partitions, self._now_ms(), client_version=client_version
        )
        if following is not txn:
            self.store.put(following)
        else:
            # An earlier attempt of this request may have added them just now, and its record may not be durable yet.
            self.store.owe_flush(transactional_id)

    def verify_partitions(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Collection[TopicPartition]:
        """Return the partitions of the producer's transaction. KafkaError: as `add_partitions`."""
        txn = self._known(transactional_id)
        transaction.check_producer(txn, producer)
        return txn.partitions

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        client_version: int,
        new_producer_id: int | None = None,
    ) -> ProducerIdAndEpoch:
        """Commit or abort; return the producer id and epoch to use from now on. `client_version` 2 raises the epoch.

        Raises NewProducerIdNeeded if a new id is needed but not passed. KafkaError: as `add_partitions`, INVALID_TXN_STATE.
        """
        self._check_client_version(client_version)
        txn = self._known(transactional_id)
        ending = transaction.ended(
            txn,
            producer,
            is_commit=is_commit,
            client_version=client_version,
            now_ms=self._now_ms(),
            new_producer_id=new_producer_id,
        )
        if ending is None:
            self._node.flusher.owe_under_way()
            return txn.identity
        ended = self.completion.finish(self.store.put(ending))
        if ended.state in ENDING and ended.next_producer_id != transaction.NO_PRODUCER_ID:
            return ProducerIdAndEpoch(ended.next_producer_id, 0)
        return ended.identity

    def with_producer_id(self, step: Callable[[int | None], T], without: Callable[[], T]) -> T | Coroutine[Any, Any, T]:
        """Call `step(None)`; if it raises NewProducerIdNeeded, call it with a new id, or call `without()` if no id is available.

        Return the result, or a coroutine that returns it if a block of ids must be recorded first.
        """
        try:
            return step(None)
        except NewProducerIdNeeded:
            answer = self._node.producer_ids.give(step, without)
            return self._when_synced(answer) if asyncio.iscoroutine(answer) else answer

    async def _when_synced(self, answering: Coroutine[Any, Any, T]) -> T:
        answer: T = await after_flush(self._node.flusher, await answering)
        return answer

    def _check_client_version(self, client_version: int) -> None:
        """Refuse TV2 if `transaction.version` is 0, since records of that version lack its fields. Correct clients never try."""
        if client_version >= 2 and self.store.server_version < 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "transaction.version 0 does not support transactions of version 2"
            )

    def _known(self, transactional_id: str) -> Transaction:
        txn = self.find(transactional_id)
        if txn is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no producer has the transactional id {transactional_id}"
            )
        return txn

    def _now_ms(self) -> int:
        return self._node.env.clock.now_ms()
