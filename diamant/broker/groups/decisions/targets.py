"""The target assignment of a group, and each member's reconciliation towards it.

Source: GroupMetadataManager.updateTargetAssignment, maybeReconcile of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.groups.consumer.consumer_group_records import target_record
from diamant.broker.groups.consumer.member import Assignment, ConsumerGroupMember, MemberState
from diamant.broker.groups.decisions.change import GroupChange, MemberTimer, StartTimer, StopTimer
from diamant.broker.groups.decisions.reconciliation import Owned, next_step
from diamant.broker.groups.decisions.subscriptions import replaced
from diamant.broker.groups.decisions.target_assignment import TargetTask, subscribed_names, target_task
from diamant.protocol.internal_topics.group_records import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


def update_target(
    change: GroupChange, before: ConsumerGroupMember, after: ConsumerGroupMember, is_homogeneous: bool
) -> tuple[int, Assignment]:
    """Return the assignment epoch, and the member's target at that epoch.

    If the assignment epoch is behind the group epoch, first compute new targets, unless that has to wait. If the task is not
    light, put it into `change.heavy_task` instead, and return the current target.
    """
    group = change.group
    if group.assignment_epoch >= change.group_epoch or not change.moment.may_assign():
        return group.assignment_epoch, group.target_of(after)
    assignor = group.preferred_assignor(replaced(group, before), after) or change.settings.default_assignor
    members = {
        member_id: member
        for member_id, member in group.members.items()
        if member_id != group.static_members.get(after.instance_id or "") or member_id == after.member_id
    }
    members[after.member_id] = after
    task = target_task(group, members, change.image, change.group_epoch, assignor, is_homogeneous)
    if not task.is_light:
        change.heavy_task = task
        return group.assignment_epoch, group.target_of(after)
    targets = task.run()
    for member_id, target in targets.items():
        _write_target(change, member_id, target)
    finish_targets(change, task)
    return change.group_epoch, targets[after.member_id]


def take_targets(change: GroupChange, targets: Mapping[str, Assignment], task: TargetTask) -> None:
    """Apply a part of a heavy task's result, except for members that have left since the task was created. The target of a
    replaced static member goes to its successor. The caller must call `finish_targets` after the last part.

    Until all parts are applied, the assignment epoch is behind the group epoch, so the whole task is repeated after a crash.
    """
    group = change.group
    for member_id, target in targets.items():
        instance_id = task.members[member_id].instance_id
        owner = member_id if instance_id is None else group.static_members.get(instance_id, member_id)
        if owner in group.members:
            _write_target(change, owner, target)


def finish_targets(change: GroupChange, task: TargetTask) -> None:
    """Set the assignment epoch to the task's group epoch."""
    value = ConsumerGroupTargetAssignmentMetadataValue(task.group_epoch, max(change.moment.now_ms, 0))
    change.records.append((ConsumerGroupTargetAssignmentMetadataKey(change.group.group_id), value))
    change.has_computed_target = True


def _write_target(change: GroupChange, member_id: str, target: Assignment) -> None:
    if change.group.target.get(member_id) != target:
        change.records.append(target_record(change.group.group_id, member_id, target))


def reconcile(
    change: GroupChange,
    member: ConsumerGroupMember,
    epoch: int,
    target: Assignment,
    has_subscription_changed: bool,
    owned: Owned | None,
) -> ConsumerGroupMember:
    """Bring the member a step closer to its target, write its new assignment, and return it."""
    if not has_subscription_changed and member.is_reconciled_to(epoch):
        return member
    topics = change.image.topics
    after = next_step(
        member,
        epoch,
        target,
        subscribed_topic_ids={
            topics[name].topic_id for name in subscribed_names(change.group, member) if name in topics
        },
        has_subscription_changed=has_subscription_changed,
        owned=owned,
        current_epoch_of=change.group.holders.epoch_of,
    )
    if after == member:
        return member
    change.write_assignment(after)
    if not after.uses_classic_protocol:
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            change.timers.append(
                StartTimer(MemberTimer.REBALANCE, after.member_id, after.rebalance_timeout_ms, after.member_epoch)
            )
        else:
            change.timers.append(StopTimer(MemberTimer.REBALANCE, after.member_id))
    return after
