"""The state of a share group (KIP-932): its members, epochs, target assignment, and initialized partitions.

Only records change the state: those just written for a decision, or those read when the group is loaded.

Bound: the group's records in `__consumer_offsets`; `group.share.max.size` members, each at most as large as a request.

Source: ShareGroup, GroupCoordinatorRecordHelpers, GroupMetadataManager.replay of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.broker.groups.share.simple_assignor import Place
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics import group_records as records

FIRST_EPOCH = 1
LEAVE_EPOCH = -1

ShareRecord: TypeAlias = tuple[records.GroupRecordKey, Any]
"""The key and value of a record. A value of None makes it a tombstone."""


class ShareMember(NamedTuple):
    """A member, and the partitions assigned to it."""

    member_id: str
    metadata: records.ShareGroupMemberMetadataValue = records.ShareGroupMemberMetadataValue(None, "", "", ())
    member_epoch: int = 0
    previous_epoch: int = 0
    assigned: tuple[Place, ...] = ()


class ShareGroup:
    """The state of one group. Belongs to the loop thread; other modules must not change its mappings."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.metadata_hash = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, tuple[Place, ...]] = {}
        self.initialized: dict[UUID, records.NamedPartitions] = {}
        """The topics and partitions that have a state in `__share_group_state`."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        """Kafka's name of the state. A share group that exists is either Stable or Empty."""
        return "Stable" if self.members else "Empty"

    def subscribed_topics(self) -> set[str]:
        """Return the names of the topics that members subscribe to."""
        return {name for member in self.members.values() for name in member.metadata.subscribed_topic_names}

    def member(self, member_id: str) -> ShareMember:
        """Return a member. Raises KafkaError UNKNOWN_MEMBER_ID if it does not exist."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def places(self) -> list[Place]:
        """Return the partitions that have a state in `__share_group_state`."""
        return [(topic.topic_id, number) for topic in self.initialized.values() for number in topic.partitions]

    # -- records -----------------------------------------------------------------------------------------------------

    def apply(self, key: records.GroupRecordKey, value: Any) -> None:
        """Apply one record of the group. The value of a tombstone is None."""
        if isinstance(key, records.ShareGroupMemberMetadataKey):
            if value is None:
                self.members.pop(key.member_id, None)
            else:
                member = self.members.get(key.member_id, ShareMember(key.member_id))
                self.members[key.member_id] = member._replace(metadata=value)
        elif isinstance(key, records.ShareGroupCurrentMemberAssignmentKey):
            if value is not None:
                member = self.members.get(key.member_id, ShareMember(key.member_id))
                self.members[key.member_id] = member._replace(
                    member_epoch=value.member_epoch,
                    previous_epoch=value.previous_member_epoch,
                    assigned=_places(value.assigned_partitions),
                )
        elif isinstance(key, records.ShareGroupTargetAssignmentMemberKey):
            if value is None:
                self.target.pop(key.member_id, None)
            else:
                self.target[key.member_id] = _places(value.topic_partitions)
        elif isinstance(key, records.ShareGroupMetadataKey) and value is not None:
            self.group_epoch, self.metadata_hash = value
        elif isinstance(key, records.ShareGroupTargetAssignmentMetadataKey) and value is not None:
            self.assignment_epoch, self.assignment_timestamp_ms = value
        elif isinstance(key, records.ShareGroupStatePartitionMetadataKey):
            topics = () if value is None else value.initialized_topics
            self.initialized = {topic.topic_id: topic for topic in topics}

    def epoch_record(self, epoch: int, metadata_hash: int) -> ShareRecord:
        """Return the record of a new group epoch."""
        return records.ShareGroupMetadataKey(self.group_id), records.ShareGroupMetadataValue(epoch, metadata_hash)

    def assignment_record(self, member_id: str, epoch: int, previous: int, places: Iterable[Place]) -> ShareRecord:
        """Return the record of a member's assignment."""
        value = records.ShareGroupCurrentMemberAssignmentValue(epoch, previous, 0, by_topic(places))
        return records.ShareGroupCurrentMemberAssignmentKey(self.group_id, member_id), value

    def target_records(self, target: Mapping[str, Iterable[Place]], epoch: int, now_ms: int) -> Iterator[ShareRecord]:
        """Yield the target record of each member whose target changes, then the record of the new assignment epoch."""
        for member_id, places in target.items():
            if self.target.get(member_id) != tuple(places):
                value = records.ShareGroupTargetAssignmentMemberValue(by_topic(places))
                yield records.ShareGroupTargetAssignmentMemberKey(self.group_id, member_id), value
        yield (
            records.ShareGroupTargetAssignmentMetadataKey(self.group_id),
            records.ShareGroupTargetAssignmentMetadataValue(epoch, now_ms),
        )

    def state_record(self, topics: Iterable[records.NamedPartitions]) -> ShareRecord:
        """Return the record of the partitions that have a state."""
        value = records.ShareGroupStatePartitionMetadataValue((), tuple(topics), ())
        return records.ShareGroupStatePartitionMetadataKey(self.group_id), value

    def removal(self, member_ids: Iterable[str]) -> Iterator[ShareRecord]:
        """Yield the tombstones of members, in the only order in which Kafka can load them."""
        member_ids = list(member_ids)
        for key in (
            records.ShareGroupCurrentMemberAssignmentKey,
            records.ShareGroupTargetAssignmentMemberKey,
            records.ShareGroupMemberMetadataKey,
        ):
            for member_id in member_ids:
                yield key(self.group_id, member_id), None

    def tombstones(self) -> Iterator[ShareRecord]:
        """Yield the tombstones that delete a group without members."""
        yield records.ShareGroupTargetAssignmentMetadataKey(self.group_id), None
        yield records.ShareGroupStatePartitionMetadataKey(self.group_id), None
        yield records.ShareGroupMetadataKey(self.group_id), None


def _places(topics: Iterable[records.AssignedPartitions]) -> tuple[Place, ...]:
    return tuple(sorted((topic.topic_id, number) for topic in topics for number in topic.partitions))


def by_topic(places: Iterable[Place]) -> tuple[records.AssignedPartitions, ...]:
    """Group partitions by topic."""
    numbers: dict[UUID, list[int]] = {}
    for topic_id, number in places:
        numbers.setdefault(topic_id, []).append(number)
    return tuple(records.AssignedPartitions(topic_id, tuple(of_topic)) for topic_id, of_topic in numbers.items())
