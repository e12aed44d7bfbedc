"""The transaction coordinator: transactions by id, loaded from and written to `__transaction_state`.

Every change takes one turn of the loop: decide (`transaction`), append the record, change memory, write what follows
from it. A commit is PrepareCommit in the log, a marker in each partition, CompleteCommit in the log. SIGKILL between any
two of these leaves a directory from which the next start continues: Prepare* holds the decision, and markers
written twice do no harm. Only where a partition cannot take its marker (a failing disk) does a transaction stay in
Prepare* while the broker runs. It is tried again with growing pauses, and whenever its producer asks.

Differences from Kafka: markers are written before EndTxn is answered, so the next transaction need not wait for them.

Memory: one `Transaction` (about 500 bytes and 100 for each open partition) per transactional id that was used within
`transactional.id.expiration.ms`; as in Kafka nothing else bounds their number.

Source: TransactionCoordinator, TransactionStateManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from diamant.broker.coordinators.internal_topic import InternalTopic, KeyValue
from diamant.broker.coordinators.partition_loader import PartitionLoader
from diamant.broker.node.flusher import after_flush
from diamant.broker.node.scheduler import Periodic, ScheduledTask
from diamant.broker.node.topics import TRANSACTION_STATE_TOPIC, Topic
from diamant.broker.transactions import markers
from diamant.broker.transactions import partition_scan as loading
from diamant.broker.transactions import transaction as life
from diamant.broker.transactions.transaction import (
    ENDING,
    ONGOING,
    NewProducerIdNeeded,
    ProducerIdAndEpoch,
    TopicPartition,
    Transaction,
)
from diamant.broker.transactions.verification import TransactionVerification
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.transaction_records import encode_key, encode_value
from diamant.storage.kraft.features import TRANSACTION_VERSION

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.1, 10.0
"""Pauses between tries to write markers that a partition refused."""

TOMBSTONE_BATCH = 500
"""Tombstones in one batch: their keys stay far below any sensible `max.message.bytes`."""


class TransactionCoordinator:
    """All transactions of the broker. The loop thread owns it."""

    def __init__(self, node: Node, groups: Lazy[GroupCoordinator]) -> None:
        """`groups` is notified of markers in its topic, if it is there."""
        config = node.config
        self._node = node
        self._groups = groups
        self.topic = InternalTopic(
            node,
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": "1",
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        self.transactions: dict[str, Transaction] = {}
        """By transactional id; to be read only."""
        self.verification = TransactionVerification(self)
        self._open: dict[str, None] = {}
        """Ids of transactions in progress, oldest first."""
        self._missing_markers: dict[str, frozenset[TopicPartition]] = {}
        self._retry_s = FIRST_RETRY_S
        self._retry_timer: asyncio.TimerHandle | None = None
        self._in_use: Topic | None = None  # whose records `transactions` is
        self._loader: PartitionLoader[dict[str, Transaction]] | None = None  # None when every partition is loaded
        self._is_stopped = False
        self._timeouts = Periodic(node.env.clock, config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._expiry = Periodic(node.env.clock, config.transaction_remove_expired_transaction_cleanup_interval_ms)
        timeouts, expiry = self._timeouts.look_now, self._expiry.look_now
        node.scheduler.add(
            ScheduledTask("transaction timeouts", self._timeouts_due_ms, self._abort_timed_out, timeouts)
        )
        node.scheduler.add(
            ScheduledTask("expiry of transactional ids", self._expiry_due_ms, self._remove_expired, expiry)
        )
        node.topics.listeners.append(self)
        self._use(node.topics.by_name.get(TRANSACTION_STATE_TOPIC))

    # -- life ------------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Cancel timers and the loading in progress."""
        self._is_stopped = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        if self._loader is not None:
            await self._loader.stop()

    @property
    def server_version(self) -> int:
        """The finalized `transaction.version`: 0, 1 or 2."""
        return self._node.metadata.image.features.get(TRANSACTION_VERSION, 0)

    @property
    def open_transactions(self) -> list[Transaction]:
        """Transactions in progress or ending, the oldest first."""
        return [self.transactions[transactional_id] for transactional_id in self._open]

    @property
    def is_loading(self) -> bool:
        """True while some transactions are not in memory yet."""
        return self._loader is not None and not self._loader.is_done

    async def loaded(self) -> None:
        """Wait until everything is loaded that can be now."""
        if self._loader is not None:
            await self._loader.done()

    @property
    def next_timeout_ms(self) -> int | None:
        """Time at which the first open transaction times out; None without any."""
        found = (self.transactions[transactional_id] for transactional_id in self._open)
        return min((txn.start_ms + txn.timeout_ms + 1 for txn in found if txn.state not in ENDING), default=None)

    # -- what requests ask -----------------------------------------------------------------------------------------------

    def look_up(self, transactional_id: str) -> Transaction | None:
        """Return what is known of an id.

        KafkaError: INVALID_REQUEST for the empty id; NOT_COORDINATOR as long as the topic does not exist (FindCoordinator
        makes it) or its partition cannot be used; COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        self._check_loaded(transactional_id)
        return self.transactions.get(transactional_id)

    def find(self, transactional_id: str) -> Transaction | None:
        """As `look_up`, with the markers of the last transaction written if that is possible by now."""
        txn = self.look_up(transactional_id)
        if txn is not None and txn.state in ENDING:
            txn = self._finish(txn)
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
            return self._put(life.created(transactional_id, new_producer_id, timeout_ms, now_ms)).identity
        following = life.initialized(
            txn,
            expected,
            timeout_ms,
            now_ms,
            new_producer_id=new_producer_id,
            server_version=self.server_version,
        )
        if following.state in ENDING:
            self._finish(self._put(following))
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"the open transaction of {transactional_id} had to be aborted first, come again",
            )
        return self._put(following).identity

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
        following = life.with_partitions(txn, producer, partitions, self._now_ms(), client_version=client_version)
        if following is not txn:
            self._put(following)
        else:
            # They may have been added a moment ago, by the same request.
            self._node.flusher.owe(self.topic.log(self.topic.partition_of(transactional_id)))

    def verify_partitions(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Collection[TopicPartition]:
        """Return the partitions that are part of the producer's transaction. KafkaError: as `add_partitions`."""
        txn = self._known(transactional_id)
        life.check_producer(txn, producer)
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
        ending = life.ended(
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
        ended = self._finish(self._put(ending))
        if ended.state in ENDING and ended.next_producer_id != life.NO_PRODUCER_ID:
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

    def check_all_loaded(self) -> None:
        """KafkaError COORDINATOR_LOAD_IN_PROGRESS as long as some transactions are not in memory yet. Those that the disk does
        not give are not waited for.
        """
        if self._loader is not None and not self._loader.is_done:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self._loader.waiting_count} partitions of {self.topic.name} are still to be read",
            )

    def partitions_without_marker(self, txn: Transaction) -> frozenset[TopicPartition]:
        """Return the partitions of a transaction, of one that is ending those whose markers are missing."""
        return self._missing_markers.get(txn.transactional_id, txn.partitions)

    # -- changes ---------------------------------------------------------------------------------------------------------

    def _check_client_version(self, client_version: int) -> None:
        """A client that follows the finalized features never fails this; Kafka could not write its records either."""
        if client_version >= 2 and self.server_version < 1:
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

    def _put(self, txn: Transaction) -> Transaction:
        """Write a transaction down, then let it count. KafkaError if it could not be written; nothing changed then."""
        transactional_id = txn.transactional_id
        value = encode_value(life.to_value(txn), 1 if self.server_version >= 1 else 0)
        record = KeyValue(encode_key(transactional_id), value)
        try:
            self.topic.append(self.topic.partition_of(transactional_id), [record])
        except KafkaError as error:
            raise _append_error(error) from error
        self._take(txn)
        return txn

    def _take(self, txn: Transaction) -> None:
        self.transactions[txn.transactional_id] = txn
        if txn.state is ONGOING or txn.state in ENDING:
            if not self._open:
                self._timeouts.done()
                self._node.scheduler.poke()
            self._open.setdefault(txn.transactional_id)
        else:
            self._open.pop(txn.transactional_id, None)

    def _finish(self, txn: Transaction) -> Transaction:
        """Write the markers that are missing, and that it is complete; the transaction as it is then.

        Never raises: what cannot be done now is done later.
        """
        transactional_id = txn.transactional_id
        missing = markers.write_markers(
            self._node,
            self._groups,
            self._missing_markers.get(transactional_id, txn.partitions),
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            is_commit=txn.is_commit,
            coordinator_epoch=self._coordinator_epoch(transactional_id),
        )
        try:
            if not missing:
                done = self._put(life.completed(txn, self._now_ms()))
                self._missing_markers.pop(transactional_id, None)
                return done
        except KafkaError as error:
            logger.error("the end of transaction %s could not be written: %s", transactional_id, error.detail)
        self._missing_markers[transactional_id] = missing
        self._retry_later()
        return txn

    def _coordinator_epoch(self, transactional_id: str) -> int:
        return self.topic.log(self.topic.partition_of(transactional_id)).leader_epoch

    def _now_ms(self) -> int:
        return self._node.env.clock.now_ms()

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self._is_stopped:
            self._retry_timer = asyncio.get_running_loop().call_later(self._retry_s, self._retry)
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _retry(self) -> None:
        self._retry_timer = None
        for transactional_id in list(self._missing_markers):
            self._finish(self.transactions[transactional_id])
        if not self._missing_markers:
            self._retry_s = FIRST_RETRY_S

    # -- loading ---------------------------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        """Take the topic for ours if it is that of the transactions (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(topic)

    def topic_deleted(self, topic: Topic) -> None:
        """Forget all that was known from the topic if it is that of the transactions (`Topics.listeners`)."""
        if topic.name == TRANSACTION_STATE_TOPIC:
            self._use(None)

    def _use(self, topic: Topic | None) -> None:
        if self._loader is not None:
            self._loader.cancel()
            self._loader = None
        for state in (self.transactions, self._open, self._missing_markers):
            state.clear()
        self._in_use = topic
        if topic is None or self._is_stopped:
            return
        loader = PartitionLoader(topic, self.topic.partition_count, "transactions", loading.load, self._take_over)
        if not loader.is_complete:
            self._loader = loader
            loader.start()

    def _check_loaded(self, transactional_id: str) -> None:
        if self._in_use is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.topic.name} does not exist: ask FindCoordinator first")
        partition = self.topic.partition_of(transactional_id)
        if partition not in self._in_use.logs:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self.topic.name}-{partition} cannot be used, see the broker's log"
            )
        if self._loader is not None:
            self._loader.check(partition)
            if self._loader.is_complete:
                self._loader = None

    async def _take_over(self, partition: int, found: dict[str, Transaction]) -> None:
        """Take over a partition that was read, and finish the transactions whose end was decided."""
        unfinished = []
        strangers = 0
        for txn in found.values():
            if self.topic.partition_of(txn.transactional_id) != partition:
                strangers += 1
                continue
            self._take(txn)
            if txn.state in ENDING:
                unfinished.append(txn)
        if strangers:
            # The topic was given more partitions. Records of these ids since then are in others, and count.
            logger.warning("%s-%d: %d ids that belong elsewhere are left out", self.topic.name, partition, strangers)
        for txn in unfinished:
            logger.info("%s: %s of transaction %s is finished", self.topic.name, txn.state.label, txn.transactional_id)
            self._finish(txn)
        if found:
            self._node.scheduler.poke()

    # -- by the clock ----------------------------------------------------------------------------------------------------

    def _timeouts_due_ms(self) -> int | None:
        return self._timeouts.due_ms() if self._open else None

    async def _abort_timed_out(self) -> None:
        self._timeouts.done()
        now_ms = self._now_ms()
        for transactional_id in list(self._open):
            txn = self.transactions.get(transactional_id)
            if txn is not None and txn.is_timed_out(now_ms):
                await self._abort(transactional_id)
            elif txn is not None and txn.state in ENDING:
                self._finish(txn)

    async def _abort(self, transactional_id: str) -> None:
        def abort(new_producer_id: int | None) -> None:
            txn = self.transactions.get(transactional_id)
            now_ms = self._now_ms()
            if txn is None or not txn.is_timed_out(now_ms):
                return  # it ended while an id was fetched
            aborted = life.fenced(txn, now_ms, server_version=self.server_version, new_producer_id=new_producer_id)
            self._finish(self._put(aborted))
            logger.info("transaction %s was open for more than %d ms: aborted", transactional_id, txn.timeout_ms)

        try:
            try:
                abort(None)
            except NewProducerIdNeeded:
                aborting = self._node.producer_ids.give(abort, lambda: None)
                if aborting is not None:
                    await aborting
        except KafkaError as error:
            logger.error("transaction %s could not be aborted: %s", transactional_id, error.detail)

    def _expiry_due_ms(self) -> int | None:
        return self._expiry.due_ms() if self.transactions else None

    async def _remove_expired(self) -> None:
        """Write tombstones for ids unused for `transactional.id.expiration.ms`, and forget them."""
        self._expiry.done()
        now_ms = self._now_ms()
        limit_ms = self._node.config.transactional_id_expiration_ms
        expired: dict[int, list[str]] = {}
        for count, txn in enumerate(list(self.transactions.values()), start=1):
            if txn.is_expired(now_ms, limit_ms):
                expired.setdefault(self.topic.partition_of(txn.transactional_id), []).append(txn.transactional_id)
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
            if (txn := self.transactions.get(transactional_id)) is not None and txn.is_expired(limit_ms, 0)
        ]
        if not still:
            return
        try:
            self.topic.append(partition, [KeyValue(encode_key(transactional_id), None) for transactional_id in still])
        except KafkaError as error:
            logger.error("%d transactional ids could not be removed: %s", len(still), error.detail)
            return
        for transactional_id in still:
            del self.transactions[transactional_id]


def _append_error(error: KafkaError) -> KafkaError:
    """The client's error if the state cannot be written (TransactionStateManager.appendTransactionToLog)."""
    code = error.code
    if code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        code = ErrorCode.NOT_COORDINATOR
    elif code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, error.detail)
