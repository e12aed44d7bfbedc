"""Computes the target assignment of a consumer group as a task that any thread may run, since its inputs are a snapshot.

The task of a small group runs inline. A task that would block the loop (not `is_light`) runs in a thread, and the group keeps
its last target assignment until the task is done. The result belongs to the group epoch at which the task was created. Between
two assignments of a group, `group.consumer.assignment.interval.ms` must pass.

Source: TargetAssignmentBuilder of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from diamant.broker.coordinators.java_order import copied_capacity, in_java_order, string_hash
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import NOTHING, Assignment, ConsumerGroupMember
from diamant.broker.groups.decisions.assignors import MemberSpec, assign
from diamant.storage.kraft.image import MetadataImage

LIGHT_WEIGHT = 10_000
"""Up to this weight, a task takes 20 ms at most, and usually 1 ms."""

PARTITIONS_PER_PART = 2_000
"""The approximate number of partitions in one part, which is written and applied in about 10 ms."""

Subscription: TypeAlias = tuple[frozenset[str], str | None]
"""Topic names and a regular expression."""


class TargetTask(NamedTuple):
    """The inputs of an assignment. `has`: the previous targets by member id. `topics`: ids and partition counts by name."""

    group_epoch: int
    assignor: str
    members: Mapping[str, ConsumerGroupMember]
    has: Mapping[str, Assignment]
    names: Mapping[Subscription, frozenset[str]]
    """The topics of each subscription, existing or not."""
    topics: Mapping[str, tuple[UUID, int]]
    is_homogeneous: bool

    @property
    def weight(self) -> int:
        """The amount of work: partitions, members and topics; if subscriptions differ, partitions and (member, topic) pairs."""
        partitions = sum(count for _, count in self.topics.values())
        if self.is_homogeneous:
            return partitions + len(self.members) + len(self.topics)
        return partitions + sum(len(self.names[subscription_of(member)]) for member in self.members.values())

    @property
    def is_light(self) -> bool:
        """Whether the task is fast enough to run on the loop."""
        return self.weight <= LIGHT_WEIGHT

    def run(self) -> dict[str, Assignment]:
        """Return the target assignment of every member, by member id."""
        # Members with the same subscription share a list, because sorting is slow.
        ordered = {subscription: self._ordered(names) for subscription, names in self.names.items()}
        specs = {
            member_id: MemberSpec(
                ordered[subscription_of(member)],
                self.has.get(member_id, NOTHING),
                member.instance_id,
                len(self.names[subscription_of(member)]),
            )
            for member_id, member in self.members.items()
        }
        return assign(self.assignor, specs, dict(self.topics.values()), self.is_homogeneous)

    def run_in_parts(self) -> list[dict[str, Assignment]]:
        """Run, and return the changed targets in parts, each of which the loop can apply in one turn."""
        parts: list[dict[str, Assignment]] = []
        room = 0
        for member_id, target in self.run().items():
            if self.has.get(member_id) == target:
                continue
            if room <= 0:
                parts.append({})
                room = PARTITIONS_PER_PART
            parts[-1][member_id] = target
            room -= 1 + sum(map(len, target.values()))
        return parts

    def _ordered(self, names: Collection[str]) -> list[UUID]:
        """Return the ids of the existing topics among `names`, in the order of Kafka's set of names."""
        in_order = in_java_order(sorted(names), string_hash, copied_capacity(len(names)))
        return [self.topics[name][0] for name in in_order if name in self.topics]


def target_task(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerGroupMember],
    image: MetadataImage,
    group_epoch: int,
    assignor: str,
    is_homogeneous: bool,
) -> TargetTask:
    """Return the task for a group with these members. It does not refer to mutable state."""
    names = {}
    for member in members.values():
        subscription = subscription_of(member)
        if subscription not in names:
            names[subscription] = subscribed_names(group, member)
    topics = {}
    for name in frozenset().union(*names.values()):
        topic = image.topics.get(name)
        if topic is not None:
            topics[name] = topic.topic_id, len(topic.partitions)
    has = {
        member_id: target
        for member_id, member in members.items()
        if (target := group.target_of(member) if member.instance_id else group.target.get(member_id)) is not None
    }
    return TargetTask(group_epoch, assignor, members, has, names, topics, is_homogeneous)


def subscription_of(member: ConsumerGroupMember) -> Subscription:
    """Return the subscription of a member as a grouping key."""
    return member.subscribed_topic_names, member.subscribed_topic_regex


def subscribed_names(group: ConsumerGroup, member: ConsumerGroupMember) -> frozenset[str]:
    """Return the topics to which a member subscribes. An unresolved expression matches nothing."""
    resolved = group.resolved.get(member.subscribed_topic_regex or "")
    return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics
