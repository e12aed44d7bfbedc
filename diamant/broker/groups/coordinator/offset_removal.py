"""Removes committed offsets, on request or when their topics are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import TOMBSTONES_PER_BATCH, GroupLog
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.coordinator_batch import encode_records
from diamant.protocol.internal_topics.group_records import encode_offset_commit_key

logger = logging.getLogger(__name__)

GROUPS_PER_TURN = 200
"""The number of groups that are checked in one turn of the loop."""


class OffsetRemoval:
    """Removes offsets of all groups. Belongs to the loop thread."""

    def __init__(self, store: GroupStore, log: GroupLog) -> None:
        self._store = store
        self._log = log

    def delete(self, group_id: str, places: Iterable[tuple[str, int]]) -> set[str]:
        """Delete a group's offsets by (topic, partition). Return the topics whose offsets are kept because members read them.

        Raises KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP if the group has members that are not consumers, and the errors
        of `GroupStore.check_usable` and `GroupLog`. Source: OffsetMetadataManager.deleteOffsets.
        """
        self._store.check_usable(group_id)
        group = self._store.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        group.check_has_offsets()
        if group.classic is not None and group.has_members and not group.classic.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        wanted = list(places)
        subscribed = {topic for topic in {topic for topic, _ in wanted} if group.is_subscribed(topic)}
        self.remove(
            [
                (group, topic, partition)
                for topic, partition in wanted
                if topic not in subscribed and group.offsets.has(topic, partition)
            ]
        )
        return subscribed

    async def remove_deleted_topic(self, name: str, topic_id: UUID) -> None:
        """Remove all groups' offsets of a deleted topic, but not those of a new topic with the same name.

        Yields to the loop regularly, since there may be many thousands of groups.

        Source: OffsetMetadataManager.onTopicsDeleted.
        """
        some: list[Group] = []
        offset_count = 0
        for group in list(self._store.groups.values()):
            some.append(group)
            offset_count += len(group.offsets.committed.get(name, ()))
            if len(some) >= GROUPS_PER_TURN or offset_count >= TOMBSTONES_PER_BATCH:
                self.remove_topic(some, name, topic_id)
                some, offset_count = [], 0
                await asyncio.sleep(0)
        self.remove_topic(some, name, topic_id)

    def remove_topic(self, groups: Iterable[Group], name: str, topic_id: UUID) -> None:
        """Remove some groups' offsets of a deleted topic, but not those of a new topic with the same name."""
        places = []
        for group in groups:
            if name in group.offsets.committed or group.offsets.pending:
                places += [(group, name, partition) for partition in group.offsets.partitions_of(name, topic_id)]
        try:
            self.remove(places)
        except KafkaError as error:
            logger.error("offsets for the deleted topic %s could not be removed: %s", name, error)

    def remove(self, places: Sequence[tuple[Group, str, int]]) -> None:
        """Write tombstones in batches, one partition of the group log after another, and remove the offsets from memory."""
        by_partition: dict[int, list[tuple[Group, str, int]]] = {}
        for place in places:
            by_partition.setdefault(self._log.partition_of(place[0].group_id), []).append(place)
        for partition, its_places in by_partition.items():
            size = min(
                self._log.tombstones_per_batch(group_id) for group_id in {place[0].group_id for place in its_places}
            )
            for start in range(0, len(its_places), size):
                some = its_places[start : start + size]
                tombstones = [
                    (encode_offset_commit_key(group.group_id, topic, index), None) for group, topic, index in some
                ]
                self._log.append_encoded(partition, encode_records(tombstones), len(tombstones))
                for group, topic, index in some:
                    group.offsets.remove(topic, index)
