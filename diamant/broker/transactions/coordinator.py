"""The transaction coordinator: requests of transactional producers.

Every change takes one turn of the loop: decide (`transaction`), append the record, change memory, write what follows
from it. A commit is PrepareCommit in the log, a marker in each partition, CompleteCommit in the log. SIGKILL between any
two of these leaves a directory from which the next start continues: Prepare* holds the decision, and markers
written twice do no harm (`completion.py`).

Differences from Kafka: markers are written before EndTxn is answered, so the next transaction need not wait for them.

Source: TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from diamant.broker.node.flusher import after_flush
from diamant.broker.topics.internal_names import TRANSACTION_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.broker.transactions import transaction
from diamant.broker.transactions.completion import TransactionCompletion
from diamant.broker.transactions.expiry import TransactionExpiry
from diamant.broker.transactions.store import TransactionStore
from diamant.broker.transactions.timeouts import TransactionTimeouts
from diamant.broker.transactions.transaction import (
    ENDING,
    NewProducerIdNeeded,
    ProducerIdAndEpoch,
    TopicPartition,
    Transaction,
)
from diamant.broker.transactions.verification import TransactionVerification
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node


class TransactionCoordinator:
    """All transactions of the broker. The loop thread owns it."""

    def __init__(self, node: Node, groups: Lazy[GroupCoordinator]) -> None:
        """`groups` is notified of markers in its topic, if it is there."""
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
        """Wait until everything is loaded that can be now."""
        await self.store.loaded()

    def topic_created(self, topic: Topic) -> None:
        """Take the topic for ours if it is that of the transactions (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(topic)

    def topic_deleted(self, topic: Topic) -> None:
        """Forget all that was known from the topic if it is that of the transactions (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(None)

    def _use(self, topic: Topic | None) -> None:
        self.completion.clear()
        self.store.use(topic)

    def find(self, transactional_id: str) -> Transaction | None:
        """As `TransactionStore.look_up`, with the markers of the last transaction written if that is possible by now."""
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
        """Give a transactional producer its id and an epoch that fences all before it (InitProducerId).

        NewProducerIdNeeded without `new_producer_id` if one is. KafkaError: as `find`; INVALID_TRANSACTION_TIMEOUT,
        PRODUCER_FENCED; CONCURRENT_TRANSACTIONS while a transaction is in progress, which is thereby aborted.
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
                f"the open transaction of {transactional_id} had to be aborted first, come again",
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
        """Make partitions part of the transaction, which begins with the first of them.

        The caller has seen to it that they exist. KafkaError: as `find`, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS; UNSUPPORTED_VERSION for TV2 if not even `transaction.version` 1 is finalized.
        """
        self._check_client_version(client_version)
        txn = self._known(transactional_id)
        following = transaction.with_partitions(
            txn, producer, partitions, self._now_ms(), client_version=client_version
        )
        if following is not txn:
            self.store.put(following)
        else:
            # They may have been added a moment ago, by the same request.
            self.store.owe_flush(transactional_id)

    def verify_partitions(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Collection[TopicPartition]:
        """Return the partitions that are part of the producer's transaction. KafkaError: as `add_partitions`."""
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
        """Commit or abort; who the producer is from now on (with `client_version` 2 its epoch is raised).

        NewProducerIdNeeded without `new_producer_id` if one is. KafkaError: as `add_partitions`, INVALID_TXN_STATE.
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

    def with_producer_id(
        self, step: Callable[[int | None], bytes], without: Callable[[], bytes]
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Do `step(None)`, then with a new producer id if it raises NewProducerIdNeeded; `without()` if there is none.

        The result, or a coroutine that gives it where a block of ids must be recorded first.
        """
        try:
            return step(None)
        except NewProducerIdNeeded:
            answer = self._node.producer_ids.give(step, without)
            return answer if isinstance(answer, bytes) else self._when_synced(answer)

    async def _when_synced(self, answering: Coroutine[Any, Any, bytes]) -> bytes:
        answer: bytes = await after_flush(self._node.flusher, await answering)
        return answer

    def _check_client_version(self, client_version: int) -> None:
        """A client that follows the finalized features never fails this; Kafka could not write its records either."""
        if client_version >= 2 and self.store.server_version < 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "transaction.version is 0: transactions are ended as they were before it"
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
