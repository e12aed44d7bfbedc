"""A heartbeat of a consumer group's member, which joins, or shows that it is alive and reports changes.

Source: GroupMetadataManager.consumerGroupHeartbeat of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.broker.groups.decisions.change import GroupChange
from diamant.broker.groups.decisions.members import check_room, find_member
from diamant.broker.groups.decisions.reconciliation import Owned
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.broker.groups.decisions.subscriptions import refresh_metadata, update_subscription, updated
from diamant.broker.groups.decisions.targets import reconcile, update_target


def heartbeat(change: GroupChange, request: MemberRequest, check_pattern: Callable[[str], None]) -> ConsumerGroupMember:
    """Let a member join or continue; return the updated member.

    Raises KafkaError GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID,
    FENCED_INSTANCE_ID, or, from `check_pattern`, INVALID_REGULAR_EXPRESSION.
    """
    check_room(change, request.member_id)
    before = find_member(change, request)
    after = updated(before, request)
    if (
        (after is before or after == before)
        and not change.moment.has_metadata_changed
        and change.group.assignment_epoch >= change.group_epoch
    ):
        # Nearly all heartbeats take this path.
        epoch, target = change.group.assignment_epoch, change.group.target_of(after)
        return reconcile(change, after, epoch, target, False, request.owned)
    bumps, has_changed = update_subscription(change, before, after, check_pattern)
    return settle(change, before, after, bumps, has_changed, request.owned)


def settle(
    change: GroupChange,
    before: ConsumerGroupMember,
    after: ConsumerGroupMember,
    bumps: bool,
    has_changed: bool,
    owned: Owned | None,
) -> ConsumerGroupMember:
    """Bring the group epoch, the target assignment and the member up to date, in this order."""
    is_homogeneous = refresh_metadata(change, before, after, bumps)
    epoch, target = update_target(change, before, after, is_homogeneous)
    return reconcile(change, after, epoch, target, has_changed, owned)
