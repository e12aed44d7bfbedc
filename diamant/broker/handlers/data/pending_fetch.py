"""A fetch in progress: its access checks, its results so far, and its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from diamant.broker.config.broker_table import RACK_AWARE
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.node.purgatory import Purgatory
from diamant.broker.node.topic_metrics import BrokerTopicMetrics
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access
from diamant.broker.topics.leader_check import NotLeader, check_leader
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopicResult,
    encode_fetch_response,
)
from diamant.storage.log.log import Log, ReadResult

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable
    from diamant.broker.node.fetch_sessions import Wanted
    from diamant.broker.security.quotas.quotas import FetchThrottle

FETCH = 1
FIRST_FROM_FOLLOWERS = 11
FIRST_WITH_LEADER = 16
FIRST_WITH_TOPIC_ID = 13


PARTITION_BYTES = 48
"""Bytes charged to a client's quota for each partition of a response, in addition to the records."""

_OF_THE_TOPIC = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID})

FINAL_EPOCH = -1
"""The session epoch of a client without a session."""


def partitions_of(request: FetchRequest) -> list[Wanted]:
    """Return the partitions of a request, in its order."""
    return [(name, topic_id, partition) for name, topic_id, partitions in request.topics for partition in partitions]


class PendingFetch:
    """A fetch with its results so far, one per requested partition."""

    __slots__ = (
        "_access",
        "_budget",
        "_connection",
        "_is_urgent",
        "_metrics",
        "_min_bytes",
        "_positions",
        "_request",
        "_results",
        "_size",
        "_throttle",
        "_topics",
        "_version",
        "_wanted",
    )

    def __init__(
        self,
        topics: Topics,
        metrics: BrokerTopicMetrics,
        context: RequestContext,
        request: FetchRequest,
        wanted: list[Wanted],
        fetch_max_bytes: int,
        throttle: FetchThrottle | None = None,
    ) -> None:
        self._topics = topics
        self._metrics = metrics
        self._version, _, connection, access = context
        self._access = None if access.is_open else access
        self._connection = connection
        self._request = request
        self._throttle = throttle
        self._budget = min(request.max_bytes, fetch_max_bytes)
        if throttle is not None:
            self._budget = throttle.max_bytes(self._budget)
        self._min_bytes = min(request.min_bytes, self._budget)
        self._size = 0
        # True to answer immediately: to report an error, a divergence or a nearer replica, or if there is nothing to read.
        self._is_urgent = not wanted
        self._wanted = wanted
        self._results: list[FetchPartitionResult] = []
        self._positions: dict[Log, list[int]] = {}  # a partition may be named twice

    def read_all(self) -> bool:
        """Read every partition once; return whether the fetch can be answered now."""
        for position in range(len(self._wanted)):
            result = self._read(position)
            self._results.append(result)
            self._size += result.records_size
        return self._is_urgent or self._size >= self._min_bytes

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Read the partitions of these logs again; return whether the wait is over."""
        for log in logs:
            for position in self._positions[log]:
                self._size -= self._results[position].records_size
                result = self._results[position] = self._read(position)
                self._size += result.records_size
        return self._is_urgent or self._size >= self._min_bytes

    def wait(self, purgatory: Purgatory) -> Answer:
        """Return the answer once there is enough data or the wait has timed out."""
        for position, (name, topic_id, partition) in enumerate(self._wanted):
            self._positions.setdefault(self._log(name, topic_id, partition.index), []).append(position)
        if self._throttle is not None:
            self._throttle.wait()
        return purgatory.wait(self, self._positions, self._request.max_wait_ms)

    def encode(self) -> list[Any]:
        """Return the response body: buffers and ranges of log files."""
        return self._throttled() or self._encode()

    def _throttled(self, session_id: int = 0) -> list[Any] | None:
        """Return the response to a throttled client, without records; None if the client is not throttled."""
        if self._throttle is None:
            return None
        throttle_time_ms = self._throttle.throttle_time_ms(self._size + PARTITION_BYTES * len(self._results))
        if not throttle_time_ms:
            return None
        return encode_fetch_response(self._version, (), session_id=session_id, throttle_time_ms=throttle_time_ms)

    def _encode(self, session_id: int = 0) -> list[Any]:
        if self._size:
            self._count()
        position = 0
        topics = []
        for name, topic_id, partitions in self._request.topics:
            following = position + len(partitions)
            topics.append(FetchTopicResult(name, topic_id, self._results[position:following]))
            position = following
        if self._topics.brokers is None:
            return encode_fetch_response(self._version, topics, session_id=session_id)
        return self._response(topics, session_id)

    def _response(self, topics: list[FetchTopicResult], session_id: int) -> list[Any]:
        """Return the response, with the addresses of the leaders that its errors name."""
        brokers = self._topics.brokers
        if brokers is None or self._version < FIRST_WITH_LEADER:
            return encode_fetch_response(self._version, topics, session_id=session_id)
        leaders = [result.current_leader for topic in topics for result in topic.partitions]
        endpoints = brokers.endpoints(leaders, self._connection)
        return encode_fetch_response(self._version, topics, session_id=session_id, node_endpoints=endpoints)

    def _check_several(self, brokers: BrokerTable, log: Log, wanted: FetchPartition) -> FetchPartitionResult | None:
        """Check that the client's broker may serve the partition. If the client should read from another replica in its rack
        (KIP-392), return a result that says so; otherwise None.
        """
        broker_id = self._connection.broker_id
        may_follow = self._version >= FIRST_FROM_FOLLOWERS
        check_leader(brokers, log, broker_id, wanted.current_leader_epoch, may_follow=may_follow)
        rack = self._request.rack_id
        if not rack or self._topics.config.replica_selector_class != RACK_AWARE:
            return None
        partition = brokers.partition(log.topic, log.partition)
        nearer = brokers.preferred_replica(partition, rack) if partition.leader == broker_id else None
        if nearer is None:
            return None
        return FetchPartitionResult(wanted.index, 0, *self._ends(log), preferred_read_replica=nearer)

    def _ends(self, log: Log) -> tuple[int, int, int]:
        """Return the high watermark, the last stable offset and the log start, as the client's broker knows them."""
        brokers, stable = self._topics.brokers, log.last_stable_offset
        end = None if brokers is None else brokers.end_at(self._connection.broker_id, log)
        if end is None:
            return log.high_watermark, stable, log.log_start_offset
        return end, min(stable, end), log.log_start_offset

    def _count(self) -> None:
        for (name, topic_id, _), result in zip(self._wanted, self._results, strict=True):
            if result.records_size:
                topic = self._topics.by_id.get(topic_id) if name is None and topic_id is not None else None
                self._metrics.topic(name or (topic.name if topic else "")).bytes_out += result.records_size

    def _log(self, name: str | None, topic_id: UUID | None, index: int) -> Log:
        if self._version >= FIRST_WITH_TOPIC_ID:
            return self._topics.log_by_id(topic_id, index)
        return self._topics.log(name, index)

    def _check_access(self, access: Access, name: str | None, topic_id: UUID | None) -> None:
        """Raise KafkaError unless the client may read the topic. An unknown id is refused later."""
        if name is None:
            topic = self._topics.by_id.get(topic_id) if topic_id is not None else None
            if topic is None:
                return
            name = topic.name
        is_consumer = self._request.replica_id < 0
        if not (
            access.allows(permissions.READ_TOPIC, name) if is_consumer else access.allows(permissions.CLUSTER_ACTION)
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")

    def _read(self, position: int) -> FetchPartitionResult:
        name, topic_id, wanted = self._wanted[position]
        try:
            if self._access is not None:
                self._check_access(self._access, name, topic_id)
            log = self._log(name, topic_id, wanted.index)
            brokers = self._topics.brokers
            if brokers is not None:
                referred = self._check_several(brokers, log, wanted)
                if referred is not None:
                    self._is_urgent = True
                    return referred
            elif 0 <= wanted.current_leader_epoch != log.leader_epoch:
                check_leader(None, log, self._connection.broker_id, wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0 and (diverging := _diverging_epoch(log, wanted)) is not None:
                self._is_urgent = True
                return FetchPartitionResult(wanted.index, 0, *self._ends(log), diverging_epoch=diverging)
            read = log.read(
                wanted.fetch_offset,
                max(0, min(wanted.max_bytes, self._budget - self._size)),
                isolation_level=self._request.isolation_level,
                min_one_message=self._size == 0,
                up_to=None if brokers is None else brokers.end_at(self._connection.broker_id, log),
            )
        except REQUEST_ERRORS as error:
            self._is_urgent = True
            code, _ = error_of(error)
            self._metrics.count_error(FETCH, code)
            # Errors about the topic carry an empty list of aborted transactions, other errors null.
            is_of_topic = code in _OF_THE_TOPIC or (name is not None and name not in self._topics.by_name)
            refused = FetchPartitionResult(wanted.index, code, aborted_transactions=[] if is_of_topic else None)
            if isinstance(error, NotLeader) and self._version >= FIRST_WITH_LEADER:
                return refused._replace(current_leader=error.current_leader)
            return refused
        return _result(wanted.index, read)


def _result(index: int, read: ReadResult) -> FetchPartitionResult:
    aborted = None if read.aborted is None else [(txn.producer_id, txn.first_offset) for txn in read.aborted]
    return FetchPartitionResult(
        index,
        0,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start_offset,
        aborted,
        read.slices,
        read.size,
    )


def _diverging_epoch(log: Log, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return the last epoch in which the client's log may agree with ours, with its end offset; None if the logs do not diverge.

    The logs diverge if the client's last epoch is unknown here or ended earlier. Source: Partition.readRecords.
    """
    epoch_end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch_end.end_offset < 0 or epoch_end.leader_epoch < 0:
        return None
    if epoch_end.leader_epoch < wanted.last_fetched_epoch or epoch_end.end_offset < wanted.fetch_offset:
        return epoch_end.leader_epoch, epoch_end.end_offset
    return None
