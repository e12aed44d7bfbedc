"""Produce (key 0), versions 3 to 13: append one batch per partition.

Behaviour: with one replica, acks 0, 1 and -1 append in the same way. With acks=0 there is no response; a failure closes the
connection so that the client notices. With `flush.messages`, the response waits until the records are on disk. Produce
creates no topics. Transactional batches are accepted if their partition belongs to the producer's transaction
(`transactions/verification.py`). Versions: 8 adds errors of single records (KIP-467), 9 is flexible, 10 names the leader if it
is another broker (KIP-951), 11 adds TRANSACTION_ABORTABLE, 12 adds partitions to the transaction automatically (TV2, KIP-890),
13 has topic ids (KIP-516).

If appended records cannot be synced, they stay in the log, so the response must not say that they are missing. A producer
without an id gets NOT_ENOUGH_REPLICAS_AFTER_APPEND. For one with an id, the connection is closed without a response: after any
error code, librdkafka finds a gap in the sequence and resends all unacknowledged records in a new epoch, where the broker does
not recognize them as duplicates.

Source: KafkaApis.handleProduceRequest, ReplicaManager.handleProduceAppend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from diamant.broker.handlers.data.delayed_produce import AppendedPart, DelayedProduce
from diamant.broker.network.api import REQUEST_ERRORS, Answer, CloseConnection, RequestContext, error_of
from diamant.broker.network.pending_answer import Body, PendingAnswer
from diamant.broker.node.flusher import check_synced, has_failed
from diamant.broker.security.authorization import permissions
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.broker.topics.leader_check import NotLeader, check_leader
from diamant.protocol.batches.header import HEADER_SIZE, NO_PRODUCER_ID, PRODUCER_ID
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.produce import (
    ProducePartitionResult,
    ProduceRequest,
    ProduceTopicResult,
    decode_produce_request,
    encode_produce_response,
)
from diamant.protocol.wire import apis
from diamant.storage.config_key import LONG_MAX
from diamant.storage.log.append_checks import CheckedBatch, HeavyBatch
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_LEADER = 10
FIRST_WITH_TOPIC_ID = 13
ADMIN_CLIENT_ID = "__admin_client"
"""The client id that may write to internal topics, so that tools can repair them (AuthHelper)."""

IS_TRANSACTIONAL = 0x10
ATTRIBUTES_LOW_BYTE = 22
FIRST_WITH_ABORTABLE = 11
FIRST_TV2 = 12
_PRODUCER = Struct(">qhi")
"""Producer id, epoch and base sequence in a batch header."""
_NO_RECORDS = memoryview(b"")
_UNANSWERED = ProducePartitionResult(0, int(ErrorCode.UNKNOWN_SERVER_ERROR), -1, -1, -1)

# Errors reported with log start -1; all others are reported with the actual one (ReplicaManager.appendToLocalLog).
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def handle(
    transactions: Lazy[TransactionCoordinator], node: Node, context: RequestContext, request: ProduceRequest
) -> Answer:
    """Append every batch of the request separately, in order."""
    appending = Appending(transactions, node, context, request)
    appending.append_light()
    return appending.append_heavy() if appending.heavy else appending.answer()


class HeavyPart(NamedTuple):
    """A batch that takes long to check. Its result goes into `results[position]`."""

    results: list[ProducePartitionResult]
    position: int
    name: str | None
    topic_id: UUID | None
    partition: int
    records: memoryview


class Appending:
    """A Produce request in progress. Batches that take long to check are checked in a thread, all others on the loop."""

    def __init__(
        self, transactions: Lazy[TransactionCoordinator], node: Node, context: RequestContext, request: ProduceRequest
    ) -> None:
        self._transactions = transactions
        self._node = node
        self._context = context
        self._request = request
        self._version = context.api_version
        self._is_open = context.access.is_open
        self._results: list[ProduceTopicResult] = []
        self._to_flush: list[AppendedPart] = []
        self._has_sequences = False
        """True if a batch that waits for a flush has a producer id."""
        self._refused: KafkaError | None = None
        """The error of the whole request."""
        self._refused_writes: Mapping[tuple[str, int], KafkaError] = {}
        """The transaction coordinator's errors, by topic and partition."""
        self.heavy: list[HeavyPart] = []

    def append_light(self) -> None:
        """Append the batches before the first heavy one, and put all others into `heavy`."""
        version = self._version
        self._verify_transaction()
        for name, topic_id, partitions in self._request.topics:
            topic_results: list[ProducePartitionResult] = []
            for index, sent in partitions:
                records = _NO_RECORDS if sent is None else sent
                log: Log | None = None
                try:
                    log = self._log(name, topic_id, index)
                    if self.heavy:
                        raise HeavyBatch
                    checked = log.check_batch(records, produce_version=version, is_light=True)
                    topic_results.append(self._append(log, index, checked))
                    if log.config.flush_messages != LONG_MAX:
                        self._note_flush(log, checked, topic_results, len(topic_results) - 1)
                except HeavyBatch:
                    part = HeavyPart(topic_results, len(topic_results), name, topic_id, index, records)
                    self.heavy.append(part)
                    topic_results.append(_UNANSWERED)
                except REQUEST_ERRORS as error:
                    topic_results.append(self._refuse(index, log, error))
            self._results.append(ProduceTopicResult(name, topic_id, topic_results))

    async def append_heavy(self) -> Body | None:
        """Check each batch of `heavy` in a thread and append it, one after the other. Return the response; None with acks=0."""
        loop = asyncio.get_running_loop()
        for results, position, name, topic_id, index, records in self.heavy:
            log: Log | None = None
            try:
                log = self._log(name, topic_id, index)
                check = partial(log.check_batch, records, produce_version=self._version)
                checked = await loop.run_in_executor(self._node.batch_checkers, check)
                # By now the log may be deleted, or the transaction may have ended.
                log = self._log(name, topic_id, index)
                self._verify_again(log, records)
                results[position] = self._append(log, index, checked)
                if log.config.flush_messages != LONG_MAX:
                    self._note_flush(log, checked, results, position)
            except REQUEST_ERRORS as error:
                results[position] = self._refuse(index, log, error)
        answer = self.answer()
        return answer if answer is None or isinstance(answer, bytes) else await answer

    def answer(self) -> bytes | Coroutine[Any, Any, Body | None] | None:
        """Return the response; if records must be flushed first, a coroutine that returns it; with acks=0, None."""
        if self._request.acks == 0:
            for topic in self._results:
                for result in topic.partitions:
                    if result.error_code:
                        raise CloseConnection(
                            f"Produce with acks=0 failed: error {result.error_code}: {result.error_message}"
                        )
            return None
        if self._to_flush:
            return self._answer_when_flushed()
        if self._node.topics.brokers is None:
            return encode_produce_response(self._version, self._results)
        return self._encode()

    def _log(self, name: str | None, topic_id: UUID | None, index: int) -> Log:
        acks = self._request.acks
        if self._refused is not None:
            raise self._refused
        if not self._is_open:
            self._check_access(name, topic_id)
        if not -1 <= acks <= 1:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}, expected -1, 0 or 1")
        log = self._find(name, topic_id, index)
        self._check_allowed(log)
        refused = self._refused_writes.get((log.topic, index)) if self._refused_writes else None
        if refused is not None:
            raise refused
        return log

    def _check_access(self, name: str | None, topic_id: UUID | None) -> None:
        """Raise KafkaError unless the client may write to the topic. An unknown id is refused later."""
        if self._version >= FIRST_WITH_TOPIC_ID:
            topic = self._node.topics.by_id.get(topic_id) if topic_id is not None else None
            name = None if topic is None else topic.name
        if name is not None and not self._context.access.allows(permissions.WRITE_TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")

    def _find(self, name: str | None, topic_id: UUID | None, index: int) -> Log:
        topics = self._node.topics
        return topics.log_by_id(topic_id, index) if self._version >= FIRST_WITH_TOPIC_ID else topics.log(name, index)

    def _check_allowed(self, log: Log) -> None:
        if log.topic in INTERNAL_TOPICS and self._context.client_id != ADMIN_CLIENT_ID:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic} is internal: clients may not write to it")
        brokers = self._node.topics.brokers
        if brokers is not None:
            check_leader(brokers, log, self._context.connection.broker_id)
            if self._request.acks == -1 and not brokers.has_enough_in_sync(log):
                size = len(brokers.partition(log.topic, log.partition).isr)
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"The size of the current ISR : {size} is insufficient to satisfy the min.isr requirement of "
                    f"{log.config.min_insync_replicas} for partition {log.topic}-{log.partition}",
                )

    # -- transactions ----------------------------------------------------------------------------------------------------

    def _verify_transaction(self) -> None:
        """Check all transactional batches of the request with the coordinator in one call."""
        transactional = [
            (name, topic_id, index, records)
            for name, topic_id, partitions in self._request.topics
            for index, records in partitions
            if records is not None and _is_transactional(records)
        ]
        if not transactional:
            return
        transactional_id = self._request.transactional_id
        if transactional_id is None or not self._context.access.allows(
            permissions.WRITE_TRANSACTIONAL_ID, transactional_id
        ):
            self._refused = KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")
            return
        if not -1 <= self._request.acks <= 1:
            return
        producers = set()
        writes = []
        for name, topic_id, index, records in transactional:
            producer_id, producer_epoch, base_sequence = _PRODUCER.unpack_from(records, PRODUCER_ID)
            if producer_id == NO_PRODUCER_ID:
                continue
            producers.add((producer_id, producer_epoch))
            try:
                if not self._is_open:
                    self._check_access(name, topic_id)
                log = self._find(name, topic_id, index)
                self._check_allowed(log)
            except KafkaError:
                continue  # appending the batch reports the error
            writes.append((log, base_sequence))
        if len(producers) > 1:
            self._refused = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        elif writes:
            self._refused_writes = self._ask(producers.pop(), writes)

    def _verify_again(self, log: Log, records: memoryview) -> None:
        if not _is_transactional(records):
            return
        producer_id, producer_epoch, base_sequence = _PRODUCER.unpack_from(records, PRODUCER_ID)
        if producer_id != NO_PRODUCER_ID:
            for refused in self._ask((producer_id, producer_epoch), [(log, base_sequence)]).values():
                raise refused

    def _ask(self, producer: tuple[int, int], writes: list[tuple[Log, int]]) -> Mapping[tuple[str, int], KafkaError]:
        from diamant.broker.transactions.transaction import ProducerIdAndEpoch
        from diamant.broker.transactions.verification import Support, Write

        assert self._request.transactional_id is not None
        return self._transactions().verification.check(
            self._request.transactional_id,
            ProducerIdAndEpoch(*producer),
            [Write(*write) for write in writes],
            Support(self._version >= FIRST_WITH_ABORTABLE, self._version >= FIRST_TV2),
            is_enabled=self._node.config.transaction_partition_verification_enable,
        )

    def _append(self, log: Log, index: int, checked: CheckedBatch) -> ProducePartitionResult:
        appended = log.append_checked(checked)
        counts = self._node.topic_metrics.topic(log.topic)
        counts.messages_in += checked.header.record_count
        counts.bytes_in += len(checked.batch)
        return ProducePartitionResult(
            index, 0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset
        )

    def _note_flush(
        self, log: Log, checked: CheckedBatch, results: list[ProducePartitionResult], position: int
    ) -> None:
        """Delay the response if `flush.messages` requires a flush, even for a duplicate, whose original may be unflushed."""
        if log.is_flush_wanted:
            self._to_flush.append(AppendedPart(log, results, position))
            self._has_sequences |= checked.header.producer_id != NO_PRODUCER_ID

    def _refuse(self, index: int, log: Log | None, error: Exception) -> ProducePartitionResult:
        if isinstance(error, KafkaError) and error.record_errors:
            self._node.topic_metrics.refused(error.record_errors)
        refused = _refused(index, log, error)
        self._node.topic_metrics.count_error(apis.PRODUCE, refused.error_code)
        if isinstance(error, NotLeader):
            leader = error.current_leader if self._version >= FIRST_WITH_LEADER else None
            return refused._replace(error_message=None, current_leader=leader)
        return refused

    def _encode(self) -> bytes:
        brokers = self._node.topics.brokers
        if brokers is None or self._version < FIRST_WITH_LEADER:
            return encode_produce_response(self._version, self._results)
        leaders = [result.current_leader for topic in self._results for result in topic.partitions]
        endpoints = brokers.endpoints(leaders, self._context.connection)
        return encode_produce_response(self._version, self._results, node_endpoints=endpoints)

    async def _answer_when_flushed(self) -> Body | None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._request.timeout_ms / 1000
        await self._node.flusher.flushed(part.log for part in self._to_flush)
        if self._has_sequences:
            check_synced([part.log for part in self._to_flush])
        flushed = []
        for part in self._to_flush:
            if not has_failed(part.log):
                flushed.append(part)
            else:
                unsynced = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                part.results[part.position] = self._refuse_appended(part.results[part.position], unsynced)
        brokers = self._node.topics.brokers
        if brokers is None or self._request.acks != -1:
            return self._encode()
        broker_id = self._context.connection.broker_id
        delayed = DelayedProduce(flushed, brokers, broker_id, self._refuse_appended, self._encode)
        left_ms = int((deadline_s - loop.time()) * 1000)
        if left_ms <= 0 or delayed.refresh():
            return delayed.encode()
        answer = self._node.purgatory.wait(delayed, (part.log for part in flushed), left_ms)
        return await answer if isinstance(answer, PendingAnswer) else delayed.encode()

    def _refuse_appended(self, result: ProducePartitionResult, error: KafkaError) -> ProducePartitionResult:
        """Add an error to the result of appended records. It keeps their offsets, since they stay in the log."""
        refused = self._refuse(result.index, None, error)
        return result._replace(error_code=refused.error_code, current_leader=refused.current_leader)


def _is_transactional(records: memoryview) -> bool:
    return len(records) >= HEADER_SIZE and bool(records[ATTRIBUTES_LOW_BYTE] & IS_TRANSACTIONAL)


def _refused(index: int, log: Log | None, error: Exception) -> ProducePartitionResult:
    code, message = error_of(error)
    log_start_offset = -1 if log is None or code in _WITHOUT_LOG_START else log.log_start_offset
    record_errors = error.record_errors if isinstance(error, KafkaError) else ()
    return ProducePartitionResult(index, code, -1, -1, log_start_offset, record_errors, message)


decode = decode_produce_request
