"""The group coordinator: groups by id, loaded from and written to `__consumer_offsets`.

All of a group is in one partition of that topic, found by the hash of its id. A change is decided, written and applied in one
turn of the loop, so memory is what the log adds up to, and what was answered survives SIGKILL.

After a start the partitions are loaded in the background (`coordinators/partition_loader.py`). Until one is loaded,
requests about its groups are refused, and move it to the front.

Bounds: what the topic holds, which its cleaner keeps at one record per key; `partition_scan.py` says what reading it
takes.

Source: GroupCoordinatorService, GroupCoordinatorShard, CoordinatorRuntime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from diamant.broker.coordinators.internal_topic import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, InternalTopic
from diamant.broker.coordinators.partition_loader import PartitionLoader
from diamant.broker.groups.coordinator.partition_scan import PartitionScan, finished, left_behind, scanned
from diamant.broker.groups.store.group import Group, expired_offsets
from diamant.broker.groups.store.offsets import without_long_metadata
from diamant.broker.node.topics import GROUP_OFFSETS_TOPIC, Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.coordinator_batch import encode_offset_records, encode_records
from diamant.protocol.internal_topics.group_records import (
    GroupMetadataValue,
    encode_offset_commit_key,
)
from diamant.protocol.messages.offset_columns import TopicOffsets
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LONG_MAX

if TYPE_CHECKING:
    from diamant.broker.groups.classic.group import ClassicGroup
    from diamant.broker.groups.consumer.group import ConsumerGroup
    from diamant.broker.groups.membership.classic_service import ClassicGroups
    from diamant.broker.groups.membership.consumer_service import ConsumerGroups
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

FIRST_WITH_GROUP_ID_NOT_FOUND = 9
"""OffsetCommit: before, a generation of a group that does not exist is ILLEGAL_GENERATION."""

GROUPS_PER_TURN = 200
"""Groups that loading and expiry handle before others get their turn."""

OFFSET_GROUPS_PER_TURN = 2_000
"""As `GROUPS_PER_TURN`, for those that only have to be put in their place."""

TOMBSTONES_PER_BATCH = 1000
MAX_TOPIC_NAME_BYTES = 249
RECORD_OVERHEAD_BYTES = 32
"""The most bytes of a tombstone beside its key."""
BATCH_OVERHEAD_BYTES = 100

NO_RETENTION_MS = -1


class GroupCoordinator:
    """All groups of the broker. The loop thread owns it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self.topic = InternalTopic(
            node,
            GROUP_OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
            config.offsets_topic_compression_codec,
            base_sequence=0,
        )
        self.groups: dict[str, Group] = {}
        self._in_use: Topic | None = None  # whose records `groups` is
        self._loader: PartitionLoader[PartitionScan] | None = None  # None when every partition is loaded
        self._topic_ids: dict[str, UUID] = {}  # of the topics that there were when loading began
        self._open_transactions: dict[tuple[int, int], set[str]] = {}
        self._is_stopped = False
        node.scheduler.every("expiry of offsets", config.offsets_retention_check_interval_ms, self.expire)
        node.topics.listeners.append(self)
        self._use(node.topics.by_name.get(GROUP_OFFSETS_TOPIC))

    @cached_property
    def classic(self) -> ClassicGroups:
        """Groups whose members use the classic protocol; made with the first of them."""
        from diamant.broker.groups.membership.classic_service import ClassicGroups

        return ClassicGroups(self._node, self, lambda: self.consumer.classic_members)

    @cached_property
    def consumer(self) -> ConsumerGroups:
        """Groups whose members use the consumer protocol (KIP-848); made with the first of them."""
        from diamant.broker.groups.membership.consumer_service import ConsumerGroups

        return ConsumerGroups(self._node, self, lambda group: self.classic.rebalance(group))

    # -- life ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Cancel timers and waiting requests. Later requests are refused: nothing waits for a broker that stops."""
        self._is_stopped = True
        if self._loader is not None:
            await self._loader.stop()
        if "classic" in self.__dict__:
            self.classic.stop(self.groups.values())
        if "consumer" in self.__dict__:
            self.consumer.runner.stop()

    async def loaded(self) -> None:
        """Wait until everything is loaded that can be."""
        if self._loader is not None:
            await self._loader.done()

    def check_usable(self, group_id: str | None, *, may_be_empty: bool = False) -> None:
        """Check that requests about a group can be answered now.

        KafkaError: INVALID_GROUP_ID for null, or "" unless `may_be_empty`; NOT_COORDINATOR if there is no topic, or its
        partition cannot be used; COORDINATOR_LOAD_IN_PROGRESS while its partition is being loaded, which is then loaded next;
        COORDINATOR_NOT_AVAILABLE when the broker stops.
        """
        if self._is_stopped:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker stops")
        if not group_id and (group_id is None or not may_be_empty):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id must not be empty.")
        if self._in_use is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{GROUP_OFFSETS_TOPIC} does not exist yet")
        if self._loader is not None:
            self._loader.check(self.topic.partition_of(group_id))
            if self._loader.is_complete:
                self._loader = None
                self._topic_ids = {}

    @property
    def is_loading(self) -> bool:
        """True until every partition is loaded, or has failed."""
        return self._loader is not None and not self._loader.is_done

    def not_loaded(self) -> dict[int, str]:
        """Return the partitions whose groups are not among `groups` as long as that is so, and why."""
        return {} if self._loader is None else self._loader.not_loaded()

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        """The group of that name, of any kind."""
        return self.groups.get(group_id)

    def group_or_new(self, group_id: str) -> Group:
        """As `group`, made as a simple group if there is none. In memory only: write a record, or `forget` it again."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget(self, group_id: str) -> None:
        """Drop a group that has neither members nor offsets from memory; its tombstones were written."""
        group = self.groups.get(group_id)
        if group is not None and group.classic is None and group.consumer is None and not group.offsets:
            del self.groups[group_id]

    def log_of(self, group_id: str) -> Log:
        """The log in which a group's records are. KafkaError COORDINATOR_NOT_AVAILABLE if there is none."""
        return self.topic.log(self.topic.partition_of(group_id))

    def append(
        self,
        group_id: str,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        timestamp_ms: int | None = None,
    ) -> int:
        """Write `records` (from `group_records.encode_record`) of a group as one batch; the offset of the first.

        They count at once. KafkaError, and nothing is written: COORDINATOR_NOT_AVAILABLE, MESSAGE_TOO_LARGE,
        NOT_COORDINATOR if the disk failed.
        """
        return self._append(
            self.topic.partition_of(group_id),
            encode_records(records),
            len(records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=timestamp_ms,
        )

    def _append(
        self,
        partition: int,
        payload: bytes,
        count: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        timestamp_ms: int | None = None,
    ) -> int:
        try:
            return self.topic.append_encoded(
                partition,
                payload,
                count,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=timestamp_ms,
            )
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.detail) from error.__cause__
            if error.code == ErrorCode.RECORD_LIST_TOO_LARGE:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, error.detail) from None
            raise

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, with all its offsets.

        KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, what `check_usable` and `append` raise.
        Source: GroupCoordinatorShard.deleteGroups.
        """
        self.check_usable(group_id, may_be_empty=True)
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.has_members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        self._delete_empty(group)

    def _delete_empty(self, group: Group) -> None:
        """Write the tombstones of a group without members and of its offsets, and drop it.

        In one batch, so that a crash leaves all of it or nothing. Where that would be too large the offsets go first, and the
        last of them with the group: what a crash leaves is then a group with fewer offsets, to be deleted again.
        """
        group_id = group.group_id
        records = group.tombstones()
        places = list(group.offsets.places())
        limit = self._tombstones_per_batch(group_id, sum(len(key) + RECORD_OVERHEAD_BYTES for key, _ in records))
        rest = max(len(places) - limit, 0)
        self._remove_offsets([(group, *place) for place in places[:rest]])
        tombstones = [(encode_offset_commit_key(group_id, *place), None) for place in places[rest:]]
        self.append(group_id, [*tombstones, *records])
        for place in places[rest:]:
            group.offsets.remove(*place)
        self.become(group, error=ErrorCode.GROUP_ID_NOT_FOUND)
        self.forget(group_id)

    def _tombstones_per_batch(self, group_id: str, reserved_bytes: int = 0) -> int:
        """A safe number of tombstones of a group's offsets for one batch, beside `reserved_bytes` of other records."""
        limit = self.log_of(group_id).config.max_message_bytes - BATCH_OVERHEAD_BYTES - reserved_bytes
        size = len(encode_offset_commit_key(group_id, "", 0)) + MAX_TOPIC_NAME_BYTES + RECORD_OVERHEAD_BYTES
        return max(min(TOMBSTONES_PER_BATCH, limit // size), 1)

    def become(
        self,
        group: Group,
        *,
        classic: ClassicGroup | None = None,
        consumer: ConsumerGroup | None = None,
        error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS,
    ) -> None:
        """Give a group other members, of either protocol or of none. Only this method does.

        Timers of the old members stop, and their waiting requests are answered `error`, by default to join again. The
        new members' sessions begin. The records of the change have been written.
        """
        was_classic, was_consumer = group.classic, group.consumer
        group.classic, group.consumer = classic, consumer
        if was_classic is not None:
            self.classic.release(was_classic, error)
        if was_consumer is not None:
            self.consumer.runner.release(was_consumer)
        if classic is not None:
            self.classic.begin(classic)
        if consumer is not None:
            self.consumer.runner.begin(consumer)

    # -- offsets -------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        topics: Sequence[TopicOffsets],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        retention_ms: int = NO_RETENTION_MS,
    ) -> list[tuple[int, int]]:
        """Commit offsets; the (number, row) in `topics` of those that were not, as OFFSET_METADATA_TOO_LARGE.

        `generation` is the member epoch for members of consumer groups, -1 without membership; `version` that of the
        request. KafkaError when all are refused: what `check_usable`, the group's `validate_commit` and `append` raise,
        GROUP_ID_NOT_FOUND or ILLEGAL_GENERATION for a group that is not there. Source: OffsetMetadataManager.commitOffset.
        """
        self.check_usable(group_id, may_be_empty=True)
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0:
                is_known = version >= FIRST_WITH_GROUP_ID_NOT_FOUND
                code = ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION
                raise KafkaError(code, f"Group {group_id} not found.")
            group = Group(group_id)
        _check_member(group, topics, member_id, instance_id, generation, version, is_transactional=False)
        if group.classic is not None and member_id:
            self.classic.seen(group.classic, member_id)
        now_ms = self._node.env.clock.now_ms()
        expire_ms = -1 if retention_ms == NO_RETENTION_MS else min(now_ms + retention_ms, LONG_MAX)
        topics, too_long = without_long_metadata(topics, self._node.config.offset_metadata_max_bytes)
        if topics:
            encoded = encode_offset_records(group_id, topics, now_ms, expire_ms)
            partition = self.topic.partition_of(group_id)
            log_offset = self._append(partition, encoded.payload, encoded.record_count, timestamp_ms=now_ms)
            self.groups[group_id] = group
            group.offsets.put_encoded(topics, encoded, log_offset)
        return too_long

    def commit_transactional(
        self,
        group_id: str,
        topics: Sequence[TopicOffsets],
        *,
        producer_id: int,
        producer_epoch: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
    ) -> list[tuple[int, int]]:
        """As `commit`, to count when `transaction_ended` says that the transaction was committed (TxnOffsetCommit).

        KafkaError as `commit`, ILLEGAL_GENERATION in place of STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND, and what the log
        says about the producer. Source: OffsetMetadataManager.commitTransactionalOffset.
        """
        self.check_usable(group_id)
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Group {group_id} not found.")
            group = Group(group_id)
        try:
            _check_member(group, topics, member_id, instance_id, generation, version, is_transactional=True)
        except KafkaError as error:
            if error.code == ErrorCode.STALE_MEMBER_EPOCH:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.detail) from None
            raise
        now_ms = self._node.env.clock.now_ms()
        topics, too_long = without_long_metadata(topics, self._node.config.offset_metadata_max_bytes)
        if topics:
            encoded = encode_offset_records(group_id, topics, now_ms)
            partition = self.topic.partition_of(group_id)
            log_offset = self._append(
                partition,
                encoded.payload,
                encoded.record_count,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=now_ms,
            )
            self.groups[group_id] = group
            self._open_transactions.setdefault((partition, producer_id), set()).add(group_id)
            group.offsets.put_encoded_pending(producer_id, topics, encoded, log_offset)
        return too_long

    def transaction_ended(self, partition: int, producer_id: int, is_commit: bool, marker_offset: int) -> None:
        """A producer's marker is in `partition` of the topic, at `marker_offset`: its pending offsets count or go.

        A partition that is not loaded yet will come across the marker by itself.
        """
        if self._loader is None:
            self._end_transaction(partition, producer_id, is_commit)
        else:
            self._loader.when_read(partition, lambda: self._end_transaction(partition, producer_id, is_commit))

    def _end_transaction(self, partition: int, producer_id: int, is_commit: bool) -> None:
        for group_id in self._open_transactions.pop((partition, producer_id), ()):
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, is_commit=is_commit)

    def delete_offsets(self, group_id: str, places: Iterable[tuple[str, int]]) -> set[str]:
        """Delete what a group has committed for (topic, partition); the topics that it may not, as members read them.

        KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP for a group with members of another kind than consumers, what
        `check_usable` and `append` raise. Source: OffsetMetadataManager.deleteOffsets.
        """
        self.check_usable(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.classic is not None and group.has_members and not group.classic.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        wanted = list(places)
        subscribed = {topic for topic in {topic for topic, _ in wanted} if group.is_subscribed(topic)}
        self._remove_offsets(
            [
                (group, topic, partition)
                for topic, partition in wanted
                if topic not in subscribed and group.offsets.has(topic, partition)
            ]
        )
        return subscribed

    async def _remove_offsets_of(self, name: str, topic_id: UUID) -> None:
        """Remove what groups have committed for a topic that was deleted, but not what is for another one of its name.

        There may be many thousands of groups, so others get their turn in between.

        Source: OffsetMetadataManager.onTopicsDeleted.
        """
        if self._loader is not None:
            for partition in self._loader.missing_partitions():
                self._loader.when_loaded(partition, lambda: self._remove_topic(self.groups.values(), name, topic_id))
        some: list[Group] = []
        offset_count = 0
        for group in list(self.groups.values()):
            some.append(group)
            offset_count += len(group.offsets.committed.get(name, ()))
            if len(some) >= GROUPS_PER_TURN or offset_count >= TOMBSTONES_PER_BATCH:
                self._remove_topic(some, name, topic_id)
                some, offset_count = [], 0
                await asyncio.sleep(0)
        self._remove_topic(some, name, topic_id)

    def _remove_topic(self, groups: Iterable[Group], name: str, topic_id: UUID) -> None:
        places = []
        for group in groups:
            if name in group.offsets.committed or group.offsets.pending:
                places += [(group, name, partition) for partition in group.offsets.partitions_of(name, topic_id)]
        try:
            self._remove_offsets(places)
        except KafkaError as error:
            logger.error("offsets for the deleted topic %s could not be removed: %s", name, error)

    def _remove_offsets(self, places: Sequence[tuple[Group, str, int]]) -> None:
        """Write tombstones, a batch of the topic's partitions at a time, and follow them."""
        by_partition: dict[int, list[tuple[Group, str, int]]] = {}
        for place in places:
            by_partition.setdefault(self.topic.partition_of(place[0].group_id), []).append(place)
        for partition, its_places in by_partition.items():
            size = min(self._tombstones_per_batch(group_id) for group_id in {place[0].group_id for place in its_places})
            for start in range(0, len(its_places), size):
                some = its_places[start : start + size]
                tombstones = [
                    (encode_offset_commit_key(group.group_id, topic, index), None) for group, topic, index in some
                ]
                self._append(partition, encode_records(tombstones), len(tombstones))
                for group, topic, index in some:
                    group.offsets.remove(topic, index)

    # -- expiry --------------------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Remove offsets that are past their time, and groups that have nothing left.

        Source: GroupCoordinatorShard.cleanupGroupMetadata.
        """
        for count, group_id in enumerate(list(self.groups), start=1):
            group = self.groups.get(group_id)
            if group is not None and not self.is_loading:
                self._expire_group(group)
            if count % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _expire_group(self, group: Group) -> None:
        config = self._node.config
        now_ms = self._node.env.clock.now_ms()
        try:
            expired = expired_offsets(group, now_ms, config.offsets_retention_minutes * 60_000)
            is_all = not group.has_members and len(expired) == group.offsets.count and not group.offsets.pending
            if is_all:
                self._delete_empty(group)
            else:
                self._remove_offsets([(group, *place) for place in expired])
            if expired:
                logger.info("group %s: %d offsets expired", group.group_id, len(expired))
        except KafkaError as error:
            logger.error("offsets of group %s could not be expired: %s", group.group_id, error)

    # -- loading -------------------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        """Take the topic for ours if it is that of the groups (`Topics.listeners`)."""
        if topic.name == GROUP_OFFSETS_TOPIC:
            self._use(topic)

    def topic_deleted(self, topic: Topic) -> Coroutine[Any, Any, None] | None:
        """Remove what was committed for a topic; without the topic of the groups there are none (`Topics.listeners`)."""
        if topic.name == GROUP_OFFSETS_TOPIC:
            self._use(None)
            return None
        return self._remove_offsets_of(topic.name, topic.topic_id)

    def _use(self, topic: Topic | None) -> None:
        self._drop_everything()
        self._in_use = topic
        if topic is None or self._is_stopped:
            return
        buffer_size = self._node.config.offsets_load_buffer_size
        loader = PartitionLoader(
            topic, self.topic.partition_count, "groups", lambda log: scanned(log, buffer_size), self._take_over
        )
        if not loader.is_complete:
            self._loader = loader
            # As of now: nothing is committed for a later topic in a partition that is not loaded.
            self._topic_ids = {name: image.topic_id for name, image in self._node.topics.image.topics.items()}
            loader.start()

    def _drop_everything(self) -> None:
        """The topic is gone, and with it all groups."""
        if self._loader is not None:
            self._loader.cancel()
            self._loader = None
        for group in self.groups.values():
            self.become(group, error=ErrorCode.NOT_COORDINATOR)
        self.groups.clear()
        self._open_transactions.clear()

    def _remove_left_behind(self, places: Sequence[tuple[Group, str, int]]) -> None:
        if places:
            logger.info("%d offsets of topics that were deleted before the last stop are removed", len(places))
            try:
                self._remove_offsets(places)
            except KafkaError as error:
                logger.error("offsets of deleted topics could not be removed: %s", error)

    async def _take_over(self, partition: int, scan: PartitionScan) -> None:
        loaded = await finished(scan)
        left = await left_behind(loaded, self._topic_ids)
        strangers = set()
        for count, (group_id, group) in enumerate(loaded.groups.items(), start=1):
            if self.topic.partition_of(group_id) == partition:
                self.groups[group_id] = group
            else:
                strangers.add(group_id)
            if count % OFFSET_GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        for group_id, producer_id in loaded.open_transactions:
            if group_id not in strangers:
                self._open_transactions.setdefault((partition, producer_id), set()).add(group_id)
        self._remove_left_behind([place for place in left if place[0].group_id not in strangers])
        for count, (key, value) in enumerate(loaded.records, start=1):
            if self.topic.partition_of(key.group_id) != partition:
                strangers.add(key.group_id)
                continue
            group = self.group_or_new(key.group_id)
            if isinstance(value, GroupMetadataValue):
                self.classic.restore(group, value)
            else:
                self.consumer.runner.restore(group, key, value)
            if count % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        if strangers:
            # The topic was given more partitions. Records of these groups since then are in others, and count.
            logger.warning(
                "%s-%d: %d groups that belong elsewhere are left out", self.topic.name, partition, len(strangers)
            )


def _check_member(
    group: Group,
    topics: Sequence[TopicOffsets],
    member_id: str,
    instance_id: str | None,
    generation: int,
    version: int,
    *,
    is_transactional: bool,
) -> None:
    """Check that this member may commit these offsets; raises KafkaError for all of them."""
    if group.classic is not None:
        group.classic.validate_commit(member_id, instance_id, generation, version, is_transactional=is_transactional)
    elif group.consumer is not None:
        from diamant.broker.groups.consumer.offset_checks import validate_commit

        check = validate_commit(
            group.consumer, member_id, instance_id, generation, version, is_transactional=is_transactional
        )
        if check is not None:
            for name, topic_id, partitions, *_ in topics:
                for partition in partitions:
                    check(name, topic_id, partition)
    elif generation >= 0:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has no members")
