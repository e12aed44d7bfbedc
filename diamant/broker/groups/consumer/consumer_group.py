"""The state of a consumer group (KIP-848): its members, epochs and target assignment.

    group epoch       is incremented when members' subscriptions or their topics change
    assignment epoch  the group epoch for which the target assignment was computed
    member epoch      the assignment epoch that a member has reached

Bound: the group's records in `__consumer_offsets`; `group.consumer.max.size` members, each at most as large as a request.

Source: ConsumerGroup, ModernGroup of Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple
from weakref import WeakValueDictionary

from diamant.broker.coordinators.java_order import (
    copied_map_capacity,
    in_java_order,
    string_hash,
    strings_in_timeline_order,
)
from diamant.broker.groups.consumer.member import NOTHING, Assignment, ConsumerGroupMember
from diamant.broker.groups.consumer.partition_holders import NOT_ASSIGNED, PartitionHolders
from diamant.broker.groups.consumer.subscription_counts import SubscriptionCounts, count_change
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE

FIRST_EPOCH = 1
"""The group epoch and the assignment epoch of a new group."""


class ConsumerGroupState(StrEnum):
    """The states of a consumer group, by the names that ListGroups and ConsumerGroupDescribe return."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is behind the group epoch."""
    RECONCILING = "Reconciling"
    """At least one member has not reached its target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedRegularExpression(NamedTuple):
    """The topics that an expression matched at `timestamp_ms`, when `version` was the end offset of the metadata log."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """The state of one group. Belongs to the loop thread; other modules must not change its mappings."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Maps each instance id to its member id."""
        self.target: dict[str, Assignment] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.subscriptions = SubscriptionCounts()
        self.classic_protocol_counts: Counter[str] = Counter()
        self.classic_count = 0
        self.has_partition_metadata = False
        """Whether the log contains a record that only Kafka before 4.1 needs. The next change of the group deletes it."""
        self.is_dead = False
        self._name_sets: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()  # by hash
        self.holders = PartitionHolders()

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic, by name or by regular expression."""
        return topic in self.subscriptions.names or any(topic in resolved.topics for resolved in self.resolved.values())

    def subscribed_topics(self) -> set[str]:
        """Return all topics that members subscribe to, by name or expression, existing or not."""
        return self.subscriptions.names.keys() | {
            topic for resolved in self.resolved.values() for topic in resolved.topics
        }

    def member(self, member_id: str) -> ConsumerGroupMember:
        """Return a member. Raises KafkaError UNKNOWN_MEMBER_ID if it does not exist."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member: ConsumerGroupMember) -> Assignment:
        """Return a member's target assignment. A static member shares the target of the current member with its instance id."""
        if member.instance_id is None:
            return self.target.get(member.member_id, NOTHING)
        return self.target.get(self.static_members.get(member.instance_id, ""), NOTHING)

    def preferred_assignor(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> str | None:
        """Return the assignor that most members request, with `before` replaced by `after`; None if no member requests one.

        Ties are broken as in Kafka: by the order of its map of counts, a copy of the group's map in which `HashMap.compute`
        inserts a new name at the front of its bucket.
        """
        counts = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        names: list[str] = strings_in_timeline_order([name for name in counts if name])
        capacity = copied_map_capacity(len(names))
        if before is not None and before.member_id in self.members and before.server_assignor:
            counts[before.server_assignor] -= 1
            if not counts[before.server_assignor]:
                names.remove(before.server_assignor)
        if after is not None and after.server_assignor:
            counts[after.server_assignor] += 1
            if after.server_assignor not in names:
                names.insert(0, after.server_assignor)
        return max(in_java_order(names, string_hash, capacity), key=counts.__getitem__, default=None)

    def is_waiting_for_partitions(self, member: ConsumerGroupMember) -> bool:
        """Return whether other members still hold partitions of the member's target assignment."""
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.holders.epoch_of(topic_id, partition) != NOT_ASSIGNED
            for topic_id, partitions in self.target.get(member.member_id, NOTHING).items()
            for partition in partitions
        )

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a classic member with these protocols may join: all classic members must support one of them."""
        names = list(names)
        if protocol_type != PROTOCOL_TYPE:
            return False
        if self.is_empty:
            return bool(names)
        return any(self.classic_protocol_counts[name] == self.classic_count for name in names)

    # -- changes, by records (`consumer_group_records.py`) -------------------------------------------------------------

    def shared_names(self, names: frozenset[str]) -> frozenset[str]:
        """Return one set object for all members with the same `names`: comparing a set of 10,000 names with a copy is slow."""
        shared = self._name_sets.get(hash(names))
        if shared == names:
            return shared
        self._name_sets[hash(names)] = names
        return names

    def replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """Replace a member. If `before` is None, add `after`; if `after` is None, remove `before`."""
        self.holders.replace(before, after)
        if after is not None:
            self.members[after.member_id] = after
        elif before is not None:
            del self.members[before.member_id]
        self.subscriptions.replace(before, after)
        count_change(self.classic_protocol_counts, _protocols_of(before), _protocols_of(after))
        was_classic, is_classic = (member is not None and member.uses_classic_protocol for member in (before, after))
        self.classic_count += is_classic - was_classic
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and before is not None and self.static_members.get(instance_id) == before.member_id:
            del self.static_members[instance_id]
        if after is not None and after.instance_id is not None:
            self.static_members[after.instance_id] = after.member_id


def _protocols_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    if member is None or member.classic is None:
        return frozenset()
    return frozenset(protocol.name for protocol in member.classic.supported_protocols)
