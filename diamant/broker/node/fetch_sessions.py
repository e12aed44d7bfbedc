"""Fetch sessions (KIP-227): the broker remembers a client's partitions, so that only changes are sent in either direction.

A session keeps track of which of its partitions have to be read: those that the client's request names, those whose log has
changed since they were last read, and those with more data than the last answer could hold. The other partitions cost nothing,
neither when a fetch arrives nor while it waits.

Bounds: `max.incremental.fetch.session.cache.slots` sessions, and MAX_CACHED_PARTITIONS partitions in all of them, at about
0.5 KB each. If all slots are in use, a new session replaces one that has not been used for EVICTION_S, or one that is older than
EVICTION_S and smaller than the new one. If there is none, the client gets no session and sends full requests.

Source: FetchSession, FetchSessionCache, FetchManager.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from uuid import UUID

from diamant.broker.node.purgatory import Purgatory, Watch
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from diamant.storage.log.log import Log

NO_SESSION = 0
INITIAL_EPOCH = 0
"""The epoch of a request that opens a session."""
FINAL_EPOCH = -1
"""The epoch of a request that uses no session, or that closes the session that it names."""

EVICTION_S = 120.0
"""`FetchSession.EVICTION_MS` (`BrokerServer`, MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""

MAX_CACHED_PARTITIONS = 200_000
"""The maximum number of partitions in all sessions together. Kafka has no such limit."""

FIRST_WITH_TOPIC_ID = 13
_MAX_INT = (1 << 31) - 1

PartitionKey: TypeAlias = tuple[str | None, UUID | None, int]
"""Topic name (up to version 12) or id, and partition."""

Wanted: TypeAlias = tuple[str | None, UUID | None, FetchPartition]


class SessionPartition:
    """A partition of a session: the client's request for it, and the offsets last sent to the client."""

    __slots__ = ("high_watermark", "key", "log", "log_start_offset", "topic_name", "wanted")

    def __init__(self, key: PartitionKey, wanted: FetchPartition) -> None:
        self.key = key
        self.wanted = wanted
        self.log: Log | None = None
        self.topic_name: str | None = None
        """The last known name of the topic."""
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_news(self, result: FetchPartitionResult) -> bool:
        """Return whether the answer must include this result; record it as sent (`CachedPartition.maybeUpdateResponseData`)."""
        is_news = result.records_size > 0 or result.diverging_epoch is not None or result.preferred_read_replica >= 0
        if result.high_watermark != self.high_watermark:
            self.high_watermark = result.high_watermark
            is_news = True
        if result.log_start_offset != self.log_start_offset:
            self.log_start_offset = result.log_start_offset
            is_news = True
        if result.error_code:
            # A high watermark is never -1, so the next result without an error counts as changed and is sent.
            self.high_watermark = -1
            is_news = True
        return is_news


class FetchSession:
    """One fetch session. Belongs to the loop thread."""

    def __init__(self, session_id: int, watch: Watch, *, broker_id: int, uses_topic_ids: bool, now_s: float) -> None:
        self.session_id = session_id
        self.broker_id = broker_id
        self.epoch = INITIAL_EPOCH + 1
        """The epoch that the next request must carry."""
        self.uses_topic_ids = uses_topic_ids
        self.created_s = now_s
        self.last_used_s = now_s
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.watch = watch
        self.isolation_level = 0
        self._due: dict[PartitionKey, SessionPartition] = {}
        self._by_log: dict[Log, SessionPartition] = {}
        self._seen_by: object = None

    @property
    def size(self) -> int:
        """The number of the session's partitions."""
        return len(self.partitions)

    def next_epoch(self) -> None:
        """Move to the epoch of the next request (`FetchMetadata.nextEpoch`)."""
        self.epoch = 1 if self.epoch == _MAX_INT else self.epoch + 1

    def update(self, request: FetchRequest) -> None:
        """Add or change the partitions that a request names, and drop its forgotten partitions."""
        for name, topic_id, partitions in request.topics:
            for wanted in partitions:
                self.put((name, topic_id, wanted.index), wanted)
        for name, topic_id, indexes in request.forgotten_topics:
            for index in indexes:
                self._drop((name, topic_id, index))
        if request.isolation_level != self.isolation_level:
            self.isolation_level = request.isolation_level
            self._due = dict(self.partitions)

    def seen_by(self, access_key: object) -> None:
        """Mark all partitions to be read if the client's permissions have changed since its last request."""
        if access_key != self._seen_by:
            self._seen_by = access_key
            self._due = dict(self.partitions)

    def put(self, key: PartitionKey, wanted: FetchPartition) -> SessionPartition:
        """Add or change one partition, mark it to be read, and return it."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = SessionPartition(key, wanted)
        else:
            partition.wanted = wanted
        self._due[key] = partition
        return partition

    def _drop(self, key: PartitionKey) -> None:
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self._due.pop(key, None)
            self.track(partition, None)

    def track(self, partition: SessionPartition, log: Log | None) -> None:
        """Record a partition's current log: None if the partition does not exist, a different one if its topic was recreated."""
        before = partition.log
        if log is before:
            return
        partition.log = log
        if before is not None and self._by_log.get(before) is partition:
            del self._by_log[before]
            self.watch.remove(before)
        if log is not None:
            partition.topic_name = log.topic
            self._by_log[log] = partition
            self.watch.add(log)

    def take_due(self) -> list[SessionPartition]:
        """Return the partitions to read. They stay due until `looked_at`, so nothing is lost if an answer is never sent."""
        if self.watch.dirty:
            self.changed(self.watch.take_dirty())
        return list(self._due.values())

    def changed(self, logs: Iterable[Log]) -> list[SessionPartition]:
        """Mark the partitions of these logs to be read, and return them."""
        partitions = [self._by_log[log] for log in logs if log in self._by_log]
        for partition in partitions:
            self._due.setdefault(partition.key, partition)
        return partitions

    def looked_at(self, partition: SessionPartition, result: FetchPartitionResult) -> None:
        """Record that a partition's result went into an answer. It stays due if there may be more data. A partition that
        returned records moves behind the others.
        """
        if self.partitions.get(partition.key) is not partition:
            return
        is_committed_only = self.isolation_level == 1
        end = result.last_stable_offset if is_committed_only else result.high_watermark
        is_exhausted = (
            result.error_code == 0 and result.diverging_epoch is None and partition.wanted.fetch_offset >= end
        )
        if is_exhausted or result.records_size:
            self._due.pop(partition.key, None)
        if not is_exhausted:
            self._due[partition.key] = partition

    def close(self) -> None:
        """Answer the pending fetch, if there is one, and drop all partitions."""
        self.watch.close()
        self.partitions.clear()
        self._due.clear()
        self._by_log.clear()


class FetchSessions:
    """All fetch sessions of a node, the least recently used first."""

    def __init__(self, purgatory: Purgatory, clock: Callable[[], float], max_partitions: int) -> None:
        """`clock` returns real time in seconds. It measures the age of sessions and the time since their last use."""
        self._purgatory = purgatory
        self._clock = clock
        self._max_partitions = max_partitions
        self._sessions: dict[int, FetchSession] = {}
        self._random = random.Random()
        self.partition_count = 0
        """The number of partitions in all sessions."""
        self.eviction_count = 0
        """The number of sessions evicted to make room for others."""

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        """Return a session without marking it as used; None if it does not exist."""
        return self._sessions.get(session_id)

    def open(
        self,
        wanted: Sequence[Wanted],
        *,
        broker_id: int,
        slots: int,
        uses_topic_ids: bool,
        isolation_level: int,
    ) -> FetchSession | None:
        """Open a session of a broker with these partitions, and return it; None if there is no room for it."""
        now_s = self._clock()
        size = len(wanted)
        if slots <= 0 or not self._make_room(size, slots, now_s):
            return None
        session_id = self._random.randint(1, _MAX_INT)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _MAX_INT)
        watch = self._purgatory.watch()
        session = FetchSession(session_id, watch, broker_id=broker_id, uses_topic_ids=uses_topic_ids, now_s=now_s)
        session.isolation_level = isolation_level
        self._sessions[session_id] = session
        for name, topic_id, partition in wanted:
            session.put((name, topic_id, partition.index), partition)
        self.partition_count += session.size
        return session

    def continued(self, request: FetchRequest, version: int, broker_id: int) -> FetchSession:
        """Apply an incremental request to its session, and return the session.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, or FETCH_SESSION_TOPIC_ID_ERROR if the
        session began with topic names and continues with topic ids, or vice versa.
        """
        session = self._sessions.get(request.session_id)
        if session is None or session.broker_id != broker_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {request.session_id} is at epoch {session.epoch}, not at {request.session_epoch}",
            )
        if session.uses_topic_ids != (version >= FIRST_WITH_TOPIC_ID):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, f"fetch session {request.session_id} mixes topic names and ids"
            )
        if session.watch.waiter is not None:
            session.watch.complete()  # a second request of the session, from another connection
        if request.topics or request.forgotten_topics or request.isolation_level != session.isolation_level:
            before = session.size
            session.update(request)
            self.partition_count += session.size - before
            if self.partition_count > self._max_partitions and session.size > before:
                self.close(session.session_id)
                raise KafkaError(
                    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} grew too large"
                )
        session.next_epoch()
        session.last_used_s = self._clock()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def close(self, session_id: int) -> None:
        """End the session with this id, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= session.size
            session.close()

    def _make_room(self, size: int, slots: int, now_s: float) -> bool:
        """Evict a session if necessary, and return whether there is room (`FetchSessionCacheShard.tryEvict`)."""
        if len(self._sessions) >= slots:
            oldest = next(iter(self._sessions.values()))
            victim = oldest if now_s - oldest.last_used_s > EVICTION_S else None
            if victim is None:
                victim = min(
                    (session for session in self._sessions.values() if now_s - session.created_s > EVICTION_S),
                    key=lambda session: session.size,
                    default=None,
                )
                if victim is None or victim.size >= size:
                    return False
            self.eviction_count += 1
            self.close(victim.session_id)
        return self.partition_count + size <= self._max_partitions and len(self._sessions) < slots
