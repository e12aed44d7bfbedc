"""Fetches of clients that request a session (KIP-227). The first such fetch imports this module.

A request with epoch 0 gets a full response and opens a session. Later requests have the session's id and epoch, and name only
partitions to add, change or forget; responses contain only changed partitions. Epoch -1 ends the session. If the session is
unknown or the epoch is wrong, the response has a top-level error and no topics, and clients open a new session.

Source: FetchManager.newContext, FullFetchContext, IncrementalFetchContext, SessionErrorContext.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from diamant.broker.handlers.data.pending_fetch import PendingFetch, partitions_of
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.node.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_WITH_TOPIC_ID,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionPartition,
)
from diamant.broker.node.purgatory import Purgatory
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.fetch import FetchPartitionResult, FetchRequest, FetchTopicResult, encode_fetch_response
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.broker.security.quotas.quotas import FetchThrottle


def handle_in_session(
    node: Node, context: RequestContext, request: FetchRequest, throttle: FetchThrottle | None
) -> Answer:
    """Read the partitions; answer now or once there is enough data."""
    sessions = node.fetch_sessions()
    version = context.api_version
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.close(request.session_id)
        fetch: PendingFetch = _FullFetch(node, context, request, throttle)
    else:
        try:
            session = sessions.continued(request, version, context.connection.broker_id)
        except KafkaError as error:
            return encode_fetch_response(version, (), error_code=int(error.code))
        if not session.partitions:
            # Nothing is left to fetch, so the session is closed (`FetchManager.newContext`).
            sessions.close(session.session_id)
            return encode_fetch_response(version, ())
        fetch = _IncrementalFetch(node, context, request, session, throttle)
    if fetch.read_all() or request.max_wait_ms <= 0:
        return fetch.encode()
    return fetch.wait(node.purgatory)


class _FullFetch(PendingFetch):
    """A fetch of all partitions that its request names. Epoch 0 opens a session."""

    __slots__ = ("_node",)

    def __init__(
        self, node: Node, context: RequestContext, request: FetchRequest, throttle: FetchThrottle | None
    ) -> None:
        super().__init__(
            node.topics,
            node.topic_metrics,
            context,
            request,
            partitions_of(request),
            node.config.fetch_max_bytes,
            throttle,
        )
        self._node = node

    def encode(self) -> list[Any]:
        """Return the response body, with the id of the new session or 0. A throttled client gets no session."""
        throttled = self._throttled()
        if throttled is not None:
            return throttled
        session = self._open_session() if self._request.session_epoch == INITIAL_EPOCH else None
        return self._encode(session_id=NO_SESSION if session is None else session.session_id)

    def _open_session(self) -> FetchSession | None:
        session = self._node.fetch_sessions().open(
            self._wanted,
            broker_id=self._connection.broker_id,
            slots=self._node.config.max_incremental_fetch_session_cache_slots,
            uses_topic_ids=self._version >= FIRST_WITH_TOPIC_ID,
            isolation_level=self._request.isolation_level,
        )
        if session is not None:
            for (name, topic_id, wanted), result in zip(self._wanted, self._results, strict=True):
                partition = session.partitions[name, topic_id, wanted.index]
                session.track(partition, self._log_or_none(name, topic_id, wanted.index))
                partition.is_news(result)
                # The next fetch reads all partitions again, since changes between this read and `track` went unnoticed.
        return session

    def _log_or_none(self, name: str | None, topic_id: UUID | None, index: int) -> Log | None:
        try:
            return self._log(name, topic_id, index)
        except KafkaError:
            return None


class _IncrementalFetch(PendingFetch):
    """A fetch of those partitions of a session that may have changed."""

    __slots__ = ("_partitions", "_session")

    def __init__(
        self,
        node: Node,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession,
        throttle: FetchThrottle | None,
    ) -> None:
        super().__init__(node.topics, node.topic_metrics, context, request, [], node.config.fetch_max_bytes, throttle)
        session.seen_by(context.access.key)
        self._is_urgent = False  # unlike other fetches, wait even if there is no partition to read
        self._session = session
        self._partitions: list[SessionPartition] = []
        for partition in session.take_due():
            self._add(partition)

    def _add(self, partition: SessionPartition) -> int:
        name, topic_id, index = partition.key
        log: Log | None = None
        try:
            log = self._log(name, topic_id, index)
        except KafkaError:
            pass  # Reading the partition reports the error.
        self._session.track(partition, log)
        position = len(self._partitions)
        self._partitions.append(partition)
        self._wanted.append((name, topic_id, partition.wanted))
        if log is not None:
            self._positions[log] = [position]
        return position

    def _read(self, position: int) -> FetchPartitionResult:
        """Read a partition. If its topic was deleted or recreated, return the error codes that Kafka's sessions use for that."""
        result = super()._read(position)
        name = self._partitions[position].topic_name
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_ID and name is not None:
            is_made_anew = name in self._topics.by_name
            code = ErrorCode.INCONSISTENT_TOPIC_ID if is_made_anew else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return result._replace(error_code=int(code))
        return result

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Read the partitions of these logs again; return whether the wait is over."""
        known = []
        for log in logs:
            if log in self._positions:
                known.append(log)
                continue
            for partition in self._session.changed((log,)):
                result = self._read(self._add(partition))
                self._results.append(result)
                self._size += result.records_size
        return super().refresh(known)

    def wait(self, purgatory: Purgatory) -> Answer:
        """Return the answer once there is enough data or the wait has timed out."""
        if self._throttle is not None:
            self._throttle.wait()
        return self._session.watch.wait(self, self._request.max_wait_ms)

    def encode(self) -> list[Any]:
        """Return the response body with the changed partitions. A throttled client gets none; the next fetch reads them again."""
        throttled = self._throttled(self._session.session_id)
        if throttled is not None:
            return throttled
        if not self._partitions:
            return encode_fetch_response(self._version, (), session_id=self._session.session_id)
        if self._size:
            self._count()
        topics: dict[tuple[str | None, UUID | None], list[FetchPartitionResult]] = {}
        for partition, result in zip(self._partitions, self._results, strict=True):
            if partition.is_news(result):
                topics.setdefault(partition.key[:2], []).append(result)
            self._session.looked_at(partition, result)
        answered = [FetchTopicResult(name, topic_id, results) for (name, topic_id), results in topics.items()]
        return self._response(answered, self._session.session_id)
