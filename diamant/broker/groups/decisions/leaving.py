"""Decisions about members that leave a consumer group or are removed from it.

Source: GroupMetadataManager.consumerGroupLeave, consumerGroupFenceMembers of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Collection

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import NO_PARTITIONS, STATIC_LEAVE_EPOCH, ConsumerGroupMember, with_epoch
from diamant.broker.groups.decisions.change import GroupChange
from diamant.broker.groups.decisions.members import known_static_member
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.protocol.internal_topics.group_records import ConsumerGroupRegularExpressionKey


def leaving_member(group: ConsumerGroup, request: MemberRequest) -> ConsumerGroupMember:
    """Return the leaving member. KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if request.instance_id is None:
        return group.member(request.member_id)
    return known_static_member(group, request.instance_id, request.member_id)


def leave_for_a_while(change: GroupChange, member: ConsumerGroupMember) -> None:
    """Let a static member leave temporarily: it keeps its partitions until its session expires."""
    change.write_assignment(
        member.changed(
            member_epoch=STATIC_LEAVE_EPOCH,
            pending_revocation=NO_PARTITIONS,
            assigned=with_epoch(member.assigned, 0),
        )
    )


def fence(change: GroupChange, members: Collection[ConsumerGroupMember]) -> None:
    """Remove members and increase the group epoch, so that their partitions are reassigned."""
    if not members:
        return
    group = change.group
    counts = group.subscriptions.replaced(None, None)
    for member in members:
        change.remove_member(member.member_id)
        counts.replace(member, None)
        change.stop_timers(member.member_id)
    for regex in group.subscriptions.regexes.keys() - counts.regexes.keys():
        change.records.append((ConsumerGroupRegularExpressionKey(group.group_id, regex), None))
    change.raise_epoch(change.hash_of(counts))
