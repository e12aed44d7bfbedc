"""Lists, moves and deletes the start offsets of share groups for administrators.

They can be moved or deleted only while the group has no members. A move creates a new state without records in flight.

Source: GroupCoordinatorService.describeShareGroupOffsets, alterShareGroupOffsets, deleteShareGroupOffsets of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from diamant.broker.groups.delivery.share_delivery import ShareDelivery
from diamant.broker.groups.membership.share_service import ShareGroups
from diamant.broker.groups.share.share_group import ShareGroup
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import NamedPartitions
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.storage.log.log import Log

_HALF = 1 << 63
"""Half the range of 64-bit integers. Any of them may be a start offset, so the lag wraps around as in Java."""


class StartOffset(NamedTuple):
    """The start offset of a share partition, and its lag (the number of records not completed); both are -1 if unknown.

    As in Kafka, the lag is negative if an administrator has moved the start offset beyond the log's end.
    """

    partition: int
    start_offset: int = UNKNOWN_OFFSET
    leader_epoch: int = 0
    lag: int = UNKNOWN_OFFSET


class ShareOffsets:
    """The start offsets of all share groups. Belongs to the loop thread."""

    def __init__(self, groups: ShareGroups, store: GroupStore) -> None:
        self._groups = groups
        self._store = store

    @property
    def _delivery(self) -> ShareDelivery:
        return self._groups.delivery

    def initialized(self, group_id: str) -> Sequence[NamedPartitions]:
        """Return the topics and partitions of a group that have a state; none if there is no such share group."""
        self._groups.check_enabled()
        self._store.check_usable(group_id)
        group = self._store.group(group_id)
        return [] if group is None else self.topics_of(group)

    def topics_of(self, group: Group) -> Sequence[NamedPartitions]:
        """Return a group's topics that have a state. Leaves out deleted topics, which the group forgets at the next heartbeat."""
        found = () if group.share is None else group.share.initialized.values()
        return [topic for topic in found if topic.topic_id in self._groups.image.topics_by_id]

    def of(self, group_id: str, topic_id: UUID, partition: int, log: Log | None) -> StartOffset:
        """Return the start offset of a share partition."""
        key = SharePartitionKey(group_id, topic_id, partition)
        state = self._delivery.state.states.get(key)
        if state is None or state.start_offset == UNKNOWN_OFFSET:
            return StartOffset(partition)
        start, completed, _ = state.current()
        lag = UNKNOWN_OFFSET
        if log is not None and state.completed_count != UNKNOWN_OFFSET:
            lag = (log.log_end_offset - start - completed + _HALF) % (2 * _HALF) - _HALF
        return StartOffset(partition, start, state.leader_epoch, lag)

    def group_to_change(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """Return the group, which must have no members. Raises KafkaError GROUP_ID_NOT_FOUND, unless `may_be_new`, or
        NON_EMPTY_GROUP.
        """
        self._groups.check_enabled()
        self._store.check_usable(group_id)
        if may_be_new and self._store.group(group_id) is None:
            return ShareGroup(group_id)
        group = self._groups.share_group(group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        return group

    def alter(self, group: ShareGroup, name: str, topic_id: UUID, offsets: Mapping[int, int]) -> None:
        """Move the start offsets of a topic's partitions to `offsets`. Raises KafkaError as `ShareState.initialize` does."""
        for partition, offset in offsets.items():
            key = SharePartitionKey(group.group_id, topic_id, partition)
            self._delivery.state.initialize(key, group.group_epoch, offset)
        known = group.initialized.get(topic_id, NamedPartitions(topic_id, name, ()))
        numbers = tuple(sorted({*known.partitions, *offsets}))
        topics = {**group.initialized, topic_id: known._replace(partitions=numbers)}
        self._groups.commit(group, [group.state_record(topics.values())])

    def delete(self, group: ShareGroup, topic_ids: Iterable[UUID]) -> None:
        """Delete the states of topics. Raises KafkaError as `InternalTopic.append` does."""
        gone = set(topic_ids)
        self._delivery.state.remove(
            SharePartitionKey(group.group_id, *place) for place in group.places() if place[0] in gone
        )
        rest = [topic for topic_id, topic in group.initialized.items() if topic_id not in gone]
        if len(rest) < len(group.initialized):
            self._groups.commit(group, [group.state_record(rest)])
