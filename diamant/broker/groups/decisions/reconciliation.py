"""Moves one member from its current to its target assignment, one step per heartbeat.

A member that has to revoke partitions keeps its epoch until it confirms the revocation. Then it moves to the epoch of the
target assignment and is assigned the free partitions, and later those that other members release. A partition that another
member may still hold is never assigned (`current_epoch_of`).

    STABLE -> UNREVOKED_PARTITIONS -> (revocation confirmed) -> UNRELEASED_PARTITIONS -> STABLE

Pure functions of the member's and the group's state. Source: CurrentAssignmentBuilder of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from diamant.broker.groups.consumer.member import (
    NO_PARTITIONS,
    Assignment,
    ConsumerGroupMember,
    EpochedPartitions,
    MemberState,
)
from diamant.broker.groups.consumer.partition_holders import NOT_ASSIGNED
from diamant.protocol.errors import ErrorCode, KafkaError

Owned: TypeAlias = Mapping[UUID, Sequence[int]]
"""Partitions that a member reports as owned, by topic id."""


def next_step(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Assignment,
    *,
    subscribed_topic_ids: Collection[UUID],
    has_subscription_changed: bool,
    owned: Owned | None,
    current_epoch_of: Callable[[UUID, int], int],
) -> ConsumerGroupMember:
    """Return the member after the next step, or the same member if it cannot proceed.

    `owned`: the partitions that this heartbeat reports as owned, None if it does not report them.
    `current_epoch_of(topic_id, partition)`: the epoch of the member that holds a partition, NOT_ASSIGNED if none does.
    Raises KafkaError FENCED_MEMBER_EPOCH if the member's state is unknown because a later version wrote it, unless it reports
    that it owns nothing.
    """
    if not has_subscription_changed and member.is_reconciled_to(target_epoch):
        return member
    step = _Step(member, target_epoch, target, subscribed_topic_ids, owned, current_epoch_of)
    if member.state is MemberState.STABLE:
        if member.member_epoch != target_epoch:
            return step.towards_target(member.member_epoch)
        return step.without_unsubscribed() if has_subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if step.owns_any(member.pending_revocation):
            return step.without_unsubscribed() if has_subscription_changed else member
        return step.towards_target(member.member_epoch)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return step.towards_target(member.member_epoch)
    if owned is None or any(owned.values()):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return step.towards_target(target_epoch)


@dataclass(slots=True)
class _Step:
    member: ConsumerGroupMember
    target_epoch: int
    target: Assignment
    subscribed: Collection[UUID]
    owned: Owned | None
    current_epoch_of: Callable[[UUID, int], int]

    def owns_any(self, partitions: EpochedPartitions) -> bool:
        """Return whether the member may still use any of these partitions. True if it did not report which it owns."""
        if self.owned is None:
            return True
        return any(
            partition in partitions.get(topic_id, {}) for topic_id, some in self.owned.items() for partition in some
        )

    def without_unsubscribed(self) -> ConsumerGroupMember:
        """Return the member after it has dropped the topics to which it no longer subscribes. Needs no new target assignment.

        As in Kafka, a member without subscriptions takes this step even if it owns nothing, so that its previous epoch becomes
        invalid.
        """
        member = self.member
        dropped = {topic_id for topic_id in member.assigned if topic_id not in self.subscribed}
        if not dropped and (self.subscribed or member.pending_revocation):
            return member
        kept = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in dropped}
        pending = dict(member.pending_revocation)
        for topic_id in dropped:
            pending[topic_id] = {**pending.get(topic_id, {}), **member.assigned[topic_id]}
        if pending and self.owns_any(pending):
            return member.moved_to(
                member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending_revocation=pending
            )
        return member.moved_to(member.member_epoch, member.state, kept)

    def towards_target(self, member_epoch: int) -> ConsumerGroupMember:
        member = self.member
        kept: dict[UUID, dict[int, int]] = {}
        to_revoke: dict[UUID, dict[int, int]] = {}
        free: dict[UUID, list[int]] = {}
        has_unreleased = False
        for topic_id in dict.fromkeys((*self.target, *member.assigned)):
            wanted = set(self.target.get(topic_id, ())) if topic_id in self.subscribed else set()
            current = member.assigned.get(topic_id, {})
            keep = {partition: epoch for partition, epoch in current.items() if partition in wanted}
            revoke = {partition: epoch for partition, epoch in current.items() if partition not in wanted}
            for partition in sorted(wanted - keep.keys()):
                # If this member still has to revoke the partition, no other member holds it.
                is_own = partition in member.pending_revocation.get(topic_id, {})
                if is_own or self.current_epoch_of(topic_id, partition) == NOT_ASSIGNED:
                    free.setdefault(topic_id, []).append(partition)
                else:
                    has_unreleased = True
            if keep:
                kept[topic_id] = keep
            if revoke:
                to_revoke[topic_id] = revoke
        if to_revoke and self.owns_any(to_revoke):
            return member.moved_to(member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending_revocation=to_revoke)
        for topic_id, partitions in free.items():
            kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, self.target_epoch))
        state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
        return member.moved_to(self.target_epoch, state, kept, pending_revocation=NO_PARTITIONS)
