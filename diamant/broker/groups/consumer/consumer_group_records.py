"""The records of a consumer group, and their effects on its state.

Only records change a group: those just written for a decision, or those read when the group is loaded. So memory always
matches the log.

Source: GroupMetadataManager.replay, GroupCoordinatorRecordHelpers of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup, ResolvedRegularExpression
from diamant.broker.groups.consumer.member import LEAVE_EPOCH, NO_PARTITIONS, NOTHING, Assignment, ConsumerGroupMember
from diamant.protocol.internal_topics import group_records as records

GroupRecord: TypeAlias = tuple[records.GroupRecordKey, Any]
"""The key and value of a record. A value of None makes it a tombstone."""


def apply(group: ConsumerGroup, key: records.GroupRecordKey, value: Any) -> None:
    """Apply one record of a group (types 3 to 8 and 16). The value of a tombstone is None.

    A record that contradicts the state is applied anyway, because compaction may have removed earlier records.
    """
    handler = _HANDLERS.get(type(key))
    if handler is None:
        raise TypeError(f"{key!r} is not a record of a consumer group")
    handler(group, key, value)


def tombstones(group: ConsumerGroup) -> Iterator[GroupRecord]:
    """Yield the tombstones that delete the group, in Kafka's order. The tombstone of the group's own record is the last."""
    group_id = group.group_id
    for member_id in group.members:
        yield records.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None
    for member_id in group.members:
        yield records.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None
    yield records.ConsumerGroupTargetAssignmentMetadataKey(group_id), None
    for member_id in group.members:
        yield records.ConsumerGroupMemberMetadataKey(group_id, member_id), None
    for regex in group.resolved:
        yield records.ConsumerGroupRegularExpressionKey(group_id, regex), None
    if group.has_partition_metadata:
        yield records.ConsumerGroupPartitionMetadataKey(group_id), None
    yield records.ConsumerGroupMetadataKey(group_id), None


def creation(group: ConsumerGroup) -> Iterator[GroupRecord]:
    """Yield the records that create this group (`createConsumerGroupRecords`)."""
    group_id = group.group_id
    for member_id, member in group.members.items():
        yield records.ConsumerGroupMemberMetadataKey(group_id, member_id), member.metadata_value()
    yield (
        records.ConsumerGroupMetadataKey(group_id),
        records.ConsumerGroupMetadataValue(group.group_epoch, group.metadata_hash),
    )
    for member_id in group.members:
        yield target_record(group_id, member_id, group.target.get(member_id, NOTHING))
    yield (
        records.ConsumerGroupTargetAssignmentMetadataKey(group_id),
        records.ConsumerGroupTargetAssignmentMetadataValue(group.assignment_epoch, group.assignment_timestamp_ms),
    )
    for member_id, member in group.members.items():
        yield records.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), member.assignment_value()


def target_record(group_id: str, member_id: str, assignment: Assignment) -> GroupRecord:
    """Return the record of a member's target assignment."""
    value = records.ConsumerGroupTargetAssignmentMemberValue(
        tuple(records.TopicPartitions(topic_id, tuple(partitions)) for topic_id, partitions in assignment.items())
    )
    return records.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value


def _epoch(
    group: ConsumerGroup, key: records.ConsumerGroupMetadataKey, value: records.ConsumerGroupMetadataValue | None
) -> None:
    if value is None:
        group.is_dead = True
        return
    group.is_dead = False
    group.group_epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _partition_metadata(group: ConsumerGroup, key: records.ConsumerGroupPartitionMetadataKey, value: object) -> None:
    group.has_partition_metadata = value is not None


def _member_metadata(group: ConsumerGroup, key: records.ConsumerGroupMemberMetadataKey, value: Any) -> None:
    before = group.members.get(key.member_id)
    if value is None:
        group.replace(before, None)
        return
    after = (before or ConsumerGroupMember(member_id=key.member_id)).with_metadata(value)
    group.replace(before, after.changed(subscribed_topic_names=group.shared_names(after.subscribed_topic_names)))


def _current_assignment(group: ConsumerGroup, key: records.ConsumerGroupCurrentMemberAssignmentKey, value: Any) -> None:
    before = group.members.get(key.member_id)
    if value is not None:
        group.replace(before, (before or ConsumerGroupMember(member_id=key.member_id)).with_assignment(value))
    elif before is not None:
        after = before.changed(
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NO_PARTITIONS,
            pending_revocation=NO_PARTITIONS,
        )
        group.replace(before, after)


def _target_metadata(
    group: ConsumerGroup,
    key: records.ConsumerGroupTargetAssignmentMetadataKey,
    value: records.ConsumerGroupTargetAssignmentMetadataValue | None,
) -> None:
    group.assignment_epoch = -1 if value is None else value.assignment_epoch
    group.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp


def _target_member(
    group: ConsumerGroup,
    key: records.ConsumerGroupTargetAssignmentMemberKey,
    value: records.ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = {
            topic_id: tuple(sorted(partitions)) for topic_id, partitions, _ in value.topic_partitions if partitions
        }


def _regular_expression(
    group: ConsumerGroup,
    key: records.ConsumerGroupRegularExpressionKey,
    value: records.ConsumerGroupRegularExpressionValue | None,
) -> None:
    if value is None:
        group.resolved.pop(key.regular_expression, None)
    else:
        group.resolved[key.regular_expression] = ResolvedRegularExpression(
            frozenset(value.topics), value.version, value.timestamp
        )


_HANDLERS: Mapping[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    records.ConsumerGroupMetadataKey: _epoch,
    records.ConsumerGroupPartitionMetadataKey: _partition_metadata,
    records.ConsumerGroupMemberMetadataKey: _member_metadata,
    records.ConsumerGroupTargetAssignmentMetadataKey: _target_metadata,
    records.ConsumerGroupTargetAssignmentMemberKey: _target_member,
    records.ConsumerGroupCurrentMemberAssignmentKey: _current_assignment,
    records.ConsumerGroupRegularExpressionKey: _regular_expression,
}
