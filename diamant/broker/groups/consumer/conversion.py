"""Conversion of groups with members to the other protocol (KIP-848, `group.consumer.migration.policy`).

Upgrade: when a member with the consumer protocol joins a classic group of consumers, the group becomes a consumer group. Its
classic members keep their partitions, and their requests are answered from the consumer group's state. Downgrade: when the last
member with the consumer protocol leaves or is replaced by a classic member, the remaining members form a classic group.

An empty group is converted as soon as a member joins with the other protocol, regardless of the policy.

Pure functions. Source: GroupMetadataManager.validateOnlineUpgrade, validateOnlineDowngradeWith..., ConsumerGroup.
fromClassicGroup, ClassicGroup.fromConsumerGroup of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from uuid import UUID

from diamant.broker.groups.classic.classic_group import ClassicGroup
from diamant.broker.groups.classic.events import GroupProtocol
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import apply, target_record
from diamant.broker.groups.consumer.member import NOTHING, Assignment, ConsumerGroupMember, MemberState, with_epoch
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.protocol.errors import ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import (
    PROTOCOL_TYPE,
    encode_assignment,
    parse_assignment,
    parse_subscription,
    protocol_version,
)
from diamant.protocol.internal_topics.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from diamant.storage.kraft.image import MetadataImage

logger = logging.getLogger(__name__)

UPGRADING_POLICIES = ("upgrade", "bidirectional")
DOWNGRADING_POLICIES = ("downgrade", "bidirectional")
DISABLED = "disabled"


def check_upgrade(classic: ClassicGroup, policy: str, max_size: int) -> None:
    """Raise KafkaError GROUP_ID_NOT_FOUND unless a classic group with members may become a consumer group."""
    if policy not in UPGRADING_POLICIES:
        reason = "online upgrade is disabled"
    elif not classic.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > max_size:
        reason = "the group size exceeds the consumer group maximum size"
    else:
        return
    raise _no_upgrade(classic, reason)


def upgraded(classic: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """Convert a classic group to a consumer group, with its generation id as epoch. Members are Stable and keep their partitions.

    Raises KafkaError GROUP_ID_NOT_FOUND if a member's metadata cannot be parsed, or if a custom assignor's data would be lost.
    """
    group_id, generation = classic.group_id, classic.generation_id
    group = ConsumerGroup(group_id)
    apply(
        group,
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(generation),
    )
    for classic_member in classic.members.values():
        try:
            member, target = _upgraded_member(classic_member, classic, image)
        except (ProtocolError, LookupError) as error:
            logger.info(
                "group %s cannot become a consumer group: member %s: %s", group_id, classic_member.member_id, error
            )
            raise _no_upgrade(classic, "the embedded consumer protocol is malformed") from None
        apply(group, ConsumerGroupMemberMetadataKey(group_id, member.member_id), member.metadata_value())
        apply(group, *target_record(group_id, member.member_id, target))
        apply(group, ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id), member.assignment_value())
    new_hash = metadata_hash(group.subscribed_topics(), image)
    apply(group, ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(generation, new_hash))
    return group


def _upgraded_member(
    member: ClassicMember, classic: ClassicGroup, image: MetadataImage
) -> tuple[ConsumerGroupMember, Assignment]:
    target: dict[UUID, tuple[int, ...]] = {}
    if member.assignment:  # empty if the member has joined but never synced
        assignment = parse_assignment(member.assignment)
        if assignment.user_data:
            raise _no_upgrade(
                classic,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
                "before re-attempting the upgrade",
            )
        for topic, partitions in assignment.partitions.items():
            if topic in image.topics and partitions:
                target[image.topics[topic].topic_id] = tuple(sorted(set(partitions)))
    # If the group has not chosen a protocol yet, use the member's first one.
    protocol = classic.protocol_name if classic.protocol_name is not None else member.protocols[0].name
    subscription = parse_subscription(member.metadata(protocol))
    return (
        ConsumerGroupMember(
            member_id=member.member_id,
            member_epoch=classic.generation_id,
            previous_member_epoch=classic.generation_id,
            state=MemberState.STABLE,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            assigned=with_epoch(target, classic.generation_id),
            classic=classic_metadata(member.session_timeout_ms, member.protocols),
        ),
        target,
    )


def classic_metadata(session_timeout_ms: int, protocols: Collection[GroupProtocol]) -> ClassicMemberMetadata:
    """Return the fields of a classic member's JoinGroup that a consumer group stores."""
    return ClassicMemberMetadata(session_timeout_ms, tuple(ClassicProtocol(name, data) for name, data in protocols))


def may_downgrade(
    group: ConsumerGroup,
    leaving: Collection[ConsumerGroupMember],
    policy: str,
    classic_max_size: int,
    *,
    joining: int = 0,
) -> bool:
    """Return whether a group is downgraded when the `leaving` members leave and `joining` more classic members join."""
    classic_leaving = sum(member.uses_classic_protocol for member in leaving)
    if group.classic_count - classic_leaving != len(group.members) - len(leaving):
        return False
    size = len(group.members) - len(leaving) + joining
    return size > 0 and policy in DOWNGRADING_POLICIES and size <= classic_max_size


def downgraded(
    group: ConsumerGroup,
    leaving: Collection[ConsumerGroupMember],
    joining: ConsumerGroupMember | None,
    image: MetadataImage,
    now_ms: int,
) -> ClassicGroup:
    """Convert a consumer group to a Stable classic group, whose generation id is the group epoch.

    The remaining members are assigned their target assignments. `joining` replaces the static member with the same instance
    id, and takes over its target assignment. Raises KafkaError GROUP_ID_NOT_FOUND if a member's metadata cannot be parsed.
    """
    gone = {member.member_id for member in leaving}
    staying = {member.member_id: member for member in group.members.values() if member.member_id not in gone}
    targets = {member_id: group.target.get(member_id, NOTHING) for member_id in staying}
    if joining is not None:
        replaced = group.static_member(joining.instance_id)
        if replaced is not None:
            staying.pop(replaced.member_id, None)
        staying[joining.member_id] = joining
        targets[joining.member_id] = group.target_of(joining)
    try:
        members = [_downgraded_member(member) for member in staying.values()]
        classic = ClassicGroup.of_members(group.group_id, group.group_epoch, PROTOCOL_TYPE, members, now_ms)
        for member in members:
            version = protocol_version(member.metadata(classic.protocol_name))
            member.assignment = encoded_assignment(targets[member.member_id], image, version)
    except (ProtocolError, LookupError, ValueError) as error:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the consumer group {group.group_id}: {error}."
        ) from None
    return classic


def _downgraded_member(member: ConsumerGroupMember) -> ClassicMember:
    if member.classic is None:
        raise LookupError(f"member {member.member_id} does not use the classic protocol")
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=[GroupProtocol(name, metadata) for name, metadata in member.classic.supported_protocols],
    )


def encoded_assignment(assignment: Assignment, image: MetadataImage, version: int) -> bytes:
    """Encode an assignment as ConsumerProtocolAssignment, which classic consumers read. Deleted topics are left out."""
    topics = image.topics_by_id
    named = {
        topics[topic_id].name: sorted(partitions) for topic_id, partitions in assignment.items() if topic_id in topics
    }
    return encode_assignment(named, version=version)


def _no_upgrade(classic: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
    )
