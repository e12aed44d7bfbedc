"""Finds the member that sent a request: an existing member, a new one, or the successor of a static member.

Source: GroupMetadataManager.getOrMaybeCreateConsumerGroupMember and its siblings of Kafka 4.3.
"""

from __future__ import annotations

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import target_record
from diamant.broker.groups.consumer.member import JOIN_EPOCH, NOTHING, STATIC_LEAVE_EPOCH, ConsumerGroupMember
from diamant.broker.groups.decisions.change import GroupChange
from diamant.broker.groups.decisions.reconciliation import Owned
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.protocol.errors import ErrorCode, KafkaError


def check_room(change: GroupChange, member_id: str) -> None:
    """Raise KafkaError GROUP_MAX_SIZE_REACHED if the group is full and `member_id` is not a member."""
    group = change.group
    if len(group.members) >= change.settings.max_size and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {change.settings.max_size} members.",
        )


def find_member(change: GroupChange, request: MemberRequest, *, is_joining: bool | None = None) -> ConsumerGroupMember:
    """Return the member that sent a request: an existing member, a new one, or the successor of a static member.

    `is_joining`: None to derive it from the member epoch.
    """
    is_joining = request.member_epoch == JOIN_EPOCH if is_joining is None else is_joining
    if request.instance_id is not None:
        return _find_static_member(change, request, request.instance_id, is_joining)
    known = change.group.members.get(request.member_id)
    if known is None and is_joining:
        return ConsumerGroupMember(member_id=request.member_id)
    member = known or change.group.member(request.member_id)
    if request.classic is None:
        check_member_epoch(member, request.member_epoch, request.owned)
    return member


def _find_static_member(
    change: GroupChange, request: MemberRequest, instance_id: str, is_joining: bool
) -> ConsumerGroupMember:
    group = change.group
    known = group.static_member(instance_id)
    if not is_joining:
        known = known_static_member(group, instance_id, request.member_id)
        if request.classic is None:
            check_member_epoch(known, request.member_epoch, request.owned)
        return known
    if known is None:
        return group.members.get(request.member_id) or ConsumerGroupMember(member_id=request.member_id)
    is_consumer_protocol = request.classic is None and not known.uses_classic_protocol
    if is_consumer_protocol and known.member_epoch != STATIC_LEAVE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {known.member_id} member.",
        )
    successor = known.changed(member_id=request.member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    change.remove_member(known.member_id)
    change.write_member(successor)
    change.records.append(
        target_record(group.group_id, successor.member_id, group.target.get(known.member_id, NOTHING))
    )
    change.write_assignment(successor)
    if known.member_id != successor.member_id:
        change.stop_timers(known.member_id)
    return successor


def known_static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerGroupMember:
    """Return the static member with this instance id. Raises KafkaError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if it has
    another member id.
    """
    known = group.static_member(instance_id)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}.",
        )
    return known


def check_member_epoch(member: ConsumerGroupMember, received: int, owned: Owned | None) -> None:
    """Raise KafkaError FENCED_MEMBER_EPOCH unless `received` is the member's epoch, or 0 because the member is joining.

    The previous epoch is also accepted, because the answer with the new one may have been lost. The owned partitions must then
    be a subset of the assigned partitions.
    """
    if received in (JOIN_EPOCH, member.member_epoch):
        return
    is_greater = received > member.member_epoch
    if not is_greater and received == member.previous_member_epoch and owned is not None:
        given = member.assigned
        if all(partition in given.get(topic_id, {}) for topic_id, some in owned.items() for partition in some):
            return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if is_greater else 'smaller'} member epoch ({received}) than the one "
        f"known by the group coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )
