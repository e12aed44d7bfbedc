"""Delivers the records of share partitions: members acquire and acknowledge them, locks expire, and changes are written to the
state topic.

Every operation takes one turn of the loop: decide, append the changes, answer. So answered acknowledgements survive SIGKILL.
As in Kafka, acquisitions are not written: after the broker starts, records that were acquired are delivered again, and the
lost delivery does not count. Locks expire by the broker's clock. As in Kafka, a fetch that would read below the log's start
notices that the start has moved.

Bounds: a `SharePartition` and the time of the next lock expiry, for each share partition that was fetched from.

Source: SharePartitionManager, DelayedShareFetch, ShareFetchUtils of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.config.group_table import text_of_group, value_of_group
from diamant.broker.groups.delivery.read_batches import aborted_ranges, gone, read_batches, slices_of, without
from diamant.broker.groups.delivery.share_sessions import SessionKey, ShareSessions
from diamant.broker.groups.delivery.share_starts import ShareStarts
from diamant.broker.groups.delivery.share_state import ShareState
from diamant.broker.groups.share.acknowledgement import AcknowledgementBatch, AcknowledgeType, acknowledge
from diamant.broker.groups.share.acquisition import Acquired, Acquirer, ShareLimits, acquire
from diamant.broker.groups.share.ranges import RecordState
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET, SharePartition
from diamant.broker.network.api import REQUEST_ERRORS
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.share_records import SharePartitionKey, StateBatch
from diamant.protocol.kraft.records import GROUP_RESOURCE
from diamant.storage.log.log import READ_COMMITTED, Log
from diamant.storage.segments.segment import FileSlice

if TYPE_CHECKING:
    from diamant.broker.brokers.table import LeaderMove
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

LOCK_DURATION_MS = "share.record.lock.duration.ms"
DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
MAX_RECORD_LOCKS = "share.partition.max.record.locks"
START = "share.auto.offset.reset"
ISOLATION_LEVEL = "share.isolation.level"
RETRY_MS = 1_000
"""The time until expired locks are checked again, if their partition could not be used."""
NOT_HOSTED = "This server does not host this topic-partition."
RENEW = "share.renew.acknowledge.enable"


class LivePartition(NamedTuple):
    """A share partition and its log."""

    key: SharePartitionKey
    log: Log
    state: SharePartition


class WantedRecords(NamedTuple):
    """A member's request for records of a partition, with its limits (see `acquisition.Acquirer`)."""

    member_id: str
    max_records: int
    max_bytes: int
    batch_size: int
    is_record_limit: bool


class Given(NamedTuple):
    """The records acquired for a member: the file ranges of whole batches, and the offsets in them that the member now holds."""

    slices: tuple[FileSlice, ...]
    acquired: tuple[Acquired, ...]

    @property
    def record_count(self) -> int:
        """The number of acquired offsets."""
        return sum(one.last - one.first + 1 for one in self.acquired)


NOTHING = Given((), ())
MORE_TO_SKIP = Given((), ())
"""Means that no records were found yet, but that some may follow after many aborted or removed records."""
SKIPS_PER_TURN = 32


class ShareDelivery:
    """Delivers the records of share partitions to members; see the module. Belongs to the loop thread."""

    def __init__(self, node: Node, state: ShareState) -> None:
        self._node = node
        self.state = state
        self.sessions = ShareSessions()
        self.starts = ShareStarts(node)
        self.acknowledged: Counter[AcknowledgeType] = Counter()
        """The number of records acknowledged since the broker started, by type."""
        self._due: list[tuple[int, SharePartitionKey]] = []
        self._is_due: dict[SharePartitionKey, int] = {}
        node.scheduler.add(ScheduledTask("end of record locks", self._next_due_ms, self._expire))

    def value_of(self, group_id: str, name: str) -> int:
        """Return a numeric configuration of a group."""
        return value_of_group(name, self._overrides(group_id), self._node.config)

    def text_of(self, group_id: str, name: str) -> str:
        """Return a configuration of a group whose value is a string."""
        return text_of_group(name, self._overrides(group_id))

    def _overrides(self, group_id: str) -> dict[str, str]:
        return dict(self._node.topics.image.configs.get((GROUP_RESOURCE, group_id), {}))

    def find(self, key: SharePartitionKey) -> LivePartition:
        """Return a share partition, which is loaded on first use.

        Raises KafkaError UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, COORDINATOR_NOT_AVAILABLE if its state is not loaded,
        UNKNOWN_SERVER_ERROR (as in Kafka) if it has no state. Raises StartSearched until its first offset has been found.
        """
        log = self._node.topics.log_by_id(key.topic_id, key.partition)
        if key in self._is_due and self._is_due[key] <= (now_ms := self._node.env.clock.now_ms()):
            self._end_locks(key, now_ms)  # in case the scheduler is busy with another job
        try:
            self.state.check(key)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.detail) from None
        stored = self.state.states.get(key)
        if stored is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no subscription has initialized this share partition")
        live = stored.live
        if live is None:
            start = stored.start_offset
            if start == UNKNOWN_OFFSET:
                start = self.starts.of(key, self.text_of(key.group_id, START), log)
            live = stored.live = SharePartition(start, stored.batches)
            stored.batches = []
        return LivePartition(key, log, live)

    # -- reading -------------------------------------------------------------------------------------------------------

    def give(self, partition: LivePartition, wanted: WantedRecords) -> Given:
        """Acquire available records for a member, at most as many as it wants. Raises KafkaError as `Log.read` does."""
        for _ in range(SKIPS_PER_TURN):
            given = self._give(partition, wanted)
            if given is not None:
                return given
        return MORE_TO_SKIP

    def _give(self, partition: LivePartition, wanted: WantedRecords) -> Given | None:
        key, log, state = partition
        limits = ShareLimits(
            self.value_of(key.group_id, MAX_RECORD_LOCKS), self.value_of(key.group_id, DELIVERY_COUNT_LIMIT)
        )
        if not state.can_acquire(limits.max_in_flight):
            # No member acknowledges aborted or removed records, so the window may be full of them.
            return None if state.advance() else NOTHING
        if state.next_fetch_offset() < log.log_start_offset:
            state.begin_at(log.log_start_offset)
        offset = state.next_fetch_offset()
        if offset >= log.log_end_offset or wanted.max_records <= 0:  # the start offset may be beyond the log's end
            return NOTHING
        isolation = READ_COMMITTED if self.text_of(key.group_id, ISOLATION_LEVEL) == "read_committed" else 0
        result = log.read(offset, wanted.max_bytes, isolation_level=0, min_one_message=True)
        # Later batches cannot be acquired in this turn, so they are not examined.
        begin = max(state.end_offset, offset)
        read = list(read_batches(result.slices, begin, wanted.max_records))
        if isolation and read:
            size = sum(one.header.size for one in read)
            result = log.read(offset, size, isolation_level=isolation, min_one_message=True)
            read = list(read_batches(result.slices, begin, wanted.max_records))
        if offset <= state.end_offset and state.batches:
            end = log.last_stable_offset if isolation else log.log_end_offset
            for first, last in gone(read, offset, min(state.end_offset, end - 1)):
                state.archive(first, last, RecordState.AVAILABLE)
            if state.next_fetch_offset() != offset:
                return None
        if not read:
            return None if state.next_fetch_offset() > offset else NOTHING
        now_ms = self._node.env.clock.now_ms()
        lock_ends_ms = now_ms + self.value_of(key.group_id, LOCK_DURATION_MS)
        asked = Acquirer(wanted.member_id, wanted.max_records, wanted.batch_size, wanted.is_record_limit, lock_ends_ms)
        bounds = [(one.header.base_offset, one.header.last_offset) for one in read]
        acquired = acquire(state, asked, limits, offset, bounds)
        if acquired and result.aborted:
            aborted = list(aborted_ranges(read, result.aborted))
            for first, last in aborted:
                state.archive(first, last, RecordState.ACQUIRED)
            acquired = list(without(acquired, aborted))
        if not acquired:
            return None if state.next_fetch_offset() > offset else NOTHING
        self._watch_lock(key, lock_ends_ms)
        return Given(tuple(slices_of(read, acquired[0].first, acquired[-1].last)), tuple(acquired))

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def acknowledge(self, key: SharePartitionKey, member_id: str, batches: Sequence[AcknowledgementBatch]) -> None:
        """Acknowledge records that the member holds. If KafkaError is raised, nothing has changed.

        Codes: INVALID_RECORD_STATE, INVALID_REQUEST, and UNKNOWN_TOPIC_OR_PARTITION if no member has fetched from the partition
        since it was loaded.
        """
        stored = self.state.states.get(key)
        if stored is None or stored.live is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
        partition = self.find(key)
        state = partition.state
        lock_ends_ms = None
        if self.text_of(key.group_id, RENEW) == "true":
            lock_ends_ms = self._node.env.clock.now_ms() + self.value_of(key.group_id, LOCK_DURATION_MS)
        limit = self.value_of(key.group_id, DELIVERY_COUNT_LIMIT)
        done = acknowledge(state, member_id, batches, limit, lock_ends_ms)
        if lock_ends_ms is not None:
            self._watch_lock(key, lock_ends_ms)
        try:
            self._persist(partition, done.changes)
        except REQUEST_ERRORS:
            done.undo(state)
            raise
        for first, last, types in batches:
            for kind in types:
                self.acknowledged[AcknowledgeType(kind)] += last - first + 1 if len(types) == 1 else 1

    def end_session(self, key: SessionKey) -> None:
        """End a member's session, closed by the member or with its connection, and release the member's records.

        Skips partitions that another broker now leads: their records belong to the member's session with that broker.
        """
        group_id, member_id, broker_id = key
        brokers = self._node.topics.brokers
        for place in self.sessions.close(key):
            share_key = SharePartitionKey(group_id, *place)
            stored = self.state.states.get(share_key)
            if stored is None or stored.live is None:
                continue  # never fetched from or deleted, so no records are held
            try:
                partition = self.find(share_key)
                if brokers is not None and brokers.leader(partition.log.topic, partition.log.partition) != broker_id:
                    continue
                limit = self.value_of(group_id, DELIVERY_COUNT_LIMIT)
                self._persist(partition, partition.state.release(member_id, limit))
            except REQUEST_ERRORS as error:
                logger.warning(
                    "group %s: could not release the records of member %s yet: %s", group_id, member_id, error
                )

    def disconnected(self, peer: str) -> None:
        """End the sessions of a closed connection."""
        for key in self.sessions.of_peer(peer):
            self.end_session(key)

    def _persist(self, partition: LivePartition, changes: Sequence[StateBatch]) -> None:
        """Write changes, advance the start offset, and wake waiting fetches if records may now be available."""
        if not changes:
            return
        key, log, state = partition
        self.state.write(key, state, changes, log.leader_epoch)
        was_full = not state.can_acquire(self.value_of(key.group_id, MAX_RECORD_LOCKS))
        has_room = state.advance() and was_full
        if has_room or any(change.delivery_state == RecordState.AVAILABLE for change in changes):
            self._node.purgatory.wake(log)

    # -- locks ---------------------------------------------------------------------------------------------------------

    def _watch_lock(self, key: SharePartitionKey, lock_ends_ms: int) -> None:
        if key not in self._is_due or self._is_due[key] > lock_ends_ms:
            self._is_due[key] = lock_ends_ms
            heappush(self._due, (lock_ends_ms, key))
            self._node.scheduler.poke()

    def _next_due_ms(self) -> int | None:
        while self._due and self._is_due.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    async def _expire(self) -> None:
        now_ms = self._node.env.clock.now_ms()
        while (due_ms := self._next_due_ms()) is not None and due_ms <= now_ms:
            self._end_locks(self._due[0][1], now_ms)

    def _end_locks(self, key: SharePartitionKey, now_ms: int) -> None:
        del self._is_due[key]
        stored = self.state.states.get(key)
        if stored is None or stored.live is None:
            return
        try:
            partition = self.find(key)
            changes = partition.state.expire(now_ms, self.value_of(key.group_id, DELIVERY_COUNT_LIMIT))
            stored.lock_timeouts += sum(last - first + 1 for first, last, _, _ in changes)
            self._persist(partition, changes)
        except REQUEST_ERRORS as error:
            logger.warning("group %s: could not release records whose locks have ended: %s", key.group_id, error)
        next_ms = stored.live.next_lock_end_ms()
        if next_ms is not None:
            # An expired lock can only remain if the partition could not be used.
            self._watch_lock(key, next_ms if next_ms > now_ms else now_ms + RETRY_MS)

    # -- leaders and topics --------------------------------------------------------------------------------------------

    def partitions_moved(self, moves: Sequence[LeaderMove]) -> None:
        """Release the records of moved partitions without counting their deliveries, since a new leader knows only the stored
        states.

        Source: SharePartitionListener.onBecomingFollower.
        """
        moved = {(move.topic, move.partition) for move in moves}
        by_id = self._node.topics.by_id
        for key, stored in self.state.states.items():
            if stored.live is not None and key.topic_id in by_id and (by_id[key.topic_id].name, key.partition) in moved:
                stored.unload()

    def topic_deleted(self, topic: Topic) -> None:
        """Erase the states of a deleted topic's partitions."""
        keys = [key for key in self.state.states if key.topic_id == topic.topic_id]
        try:
            self.state.remove(keys)
        except REQUEST_ERRORS as error:
            logger.warning("the states of share partitions of %s could not be erased: %s", topic.name, error)
