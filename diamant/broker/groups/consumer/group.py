"""A consumer group (KIP-848): its members, epochs and target assignment, and nothing but state.

The state changes by records only, `apply(key, value)`: those that a decision (`change.py`) has just written, or those
that are read back at a start. So memory never differs from the log.

    group epoch       grows with every change of members' subscriptions or of the topics
    assignment epoch  the group epoch that the target assignment was computed for
    member epoch      the assignment epoch that a member has been brought to

A partition is held by a member from the moment it is assigned until the member has reported that it gave it up, or is gone;
`current_epoch_of` says whether one is held.

Bound: what the group's records in `__consumer_offsets` say; `group.consumer.max.size` members, each as large as a request.

Source: ConsumerGroup, ModernGroup of Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from diamant.broker.coordinators.java_order import (
    copied_map_capacity,
    in_java_order,
    string_hash,
    strings_in_timeline_order,
)
from diamant.broker.groups.consumer.assignors import NOTHING, Assignment
from diamant.broker.groups.consumer.member import LEAVE_EPOCH, NO_PARTITIONS, ConsumerGroupMember, EpochedPartitions
from diamant.broker.groups.consumer.reconciliation import NOT_ASSIGNED
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupRecordKey,
    TopicPartitions,
)

PROTOCOL_TYPE = "consumer"
FIRST_EPOCH = 1
"""Group and assignment epoch of a group that has just come into being."""

FIRST_COMMIT_VERSION = 9
"""OffsetCommit from this version on has the member epoch that the consumer protocol needs."""

GroupRecord: TypeAlias = tuple[GroupRecordKey, Any]
"""Key and value of a record; a value of None is a tombstone."""

PartitionCheck: TypeAlias = Callable[[str, UUID | None, int], None]
"""A check of a commit for (topic name, topic id, partition); raises KafkaError."""


class ConsumerGroupState(StrEnum):
    """By Kafka's names, as ListGroups and ConsumerGroupDescribe show them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is behind the group epoch."""
    RECONCILING = "Reconciling"
    """Some member is not yet where the target assignment wants it."""
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedRegularExpression(NamedTuple):
    """The topics that an expression matched: at which offset of the metadata log, and at what time in ms."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """The loop thread owns it. Mappings are for others to read only."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.target: dict[str, Assignment] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.regex_counts: Counter[str] = Counter()
        """The number of members that subscribe to each regular expression."""
        self.name_counts: Counter[str] = Counter()
        """The number of members that subscribe to each topic by name."""
        self.classic_protocol_counts: Counter[str] = Counter()
        self.classic_count = 0
        self.has_partition_metadata = False
        """True if there is a record that only Kafka before 4.1 needed; it is erased with the next change."""
        self.is_dead = False
        self._name_sets: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()  # by their hashes
        self._holders: dict[UUID, dict[int, int]] = {}  # member epoch of the holder of a partition

    # -- what others ask -----------------------------------------------------------------------------------------------

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
        """True if a member subscribes to a topic, by name or by regular expression."""
        return topic in self.name_counts or any(topic in found.topics for found in self.resolved.values())

    def subscribed_topics(self) -> set[str]:
        """All topics that members subscribe to, by either way, existing or not."""
        return self.name_counts.keys() | {topic for found in self.resolved.values() for topic in found.topics}

    def member(self, member_id: str) -> ConsumerGroupMember:
        """KafkaError UNKNOWN_MEMBER_ID if there is none."""
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
        """The target assignment of a member; of a static one that of the member with its instance id."""
        if member.instance_id is None:
            return self.target.get(member.member_id, NOTHING)
        return self.target.get(self.static_members.get(member.instance_id, ""), NOTHING)

    def current_epoch_of(self, topic_id: UUID, partition: int) -> int:
        """The epoch of the member that holds a partition, NOT_ASSIGNED if no member does."""
        return self._holders.get(topic_id, {}).get(partition, NOT_ASSIGNED)

    def preferred_assignor(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> str | None:
        """The assignor that most members ask for, with `before` replaced by `after`; None if no member asks for one.

        Of those that as many ask for it is the first in the map with which Kafka counts, a copy of the group's: a name that
        is new to the copy goes to the front of its bucket (`HashMap.compute`).
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

    def is_homogeneous(self, member_count: int, names: Counter[str], regexes: Counter[str]) -> bool:
        """True if `member_count` members with these subscriptions all have the same one."""
        if not regexes:
            return all(count == member_count for count in names.values())
        return len(regexes) == 1 and regexes.total() == member_count and not names and len(self.resolved) <= 1

    def is_waiting_for_partitions(self, member: ConsumerGroupMember) -> bool:
        """True if other members still hold partitions of the target of `member`."""
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.current_epoch_of(topic_id, partition) != NOT_ASSIGNED
            for topic_id, partitions in self.target.get(member.member_id, NOTHING).items()
            for partition in partitions
        )

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """True if a classic member with these protocols is compatible: all classic members must know one of them."""
        names = list(names)
        if protocol_type != PROTOCOL_TYPE:
            return False
        if self.is_empty:
            return bool(names)
        return any(self.classic_protocol_counts[name] == self.classic_count for name in names)

    # -- offsets -------------------------------------------------------------------------------------------------------

    def validate_commit(
        self,
        member_id: str,
        instance_id: str | None,
        member_epoch: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> PartitionCheck | None:
        """Check a commit; None if all of it may be made, else the check for each of its partitions.

        A commit with an older epoch than the member's counts for partitions that the member had then and still has
        (KIP-1251). KafkaError, for the whole request: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION for
        classic members, UNSUPPORTED_VERSION. Source: ConsumerGroup.validateOffsetCommit.
        """
        if member_epoch < 0 and not self.members:
            return None  # an administrator, or a consumer that assigns itself
        if is_transactional and member_epoch == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        if not is_transactional and not member.uses_classic_protocol and version < FIRST_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"OffsetCommit version {FIRST_COMMIT_VERSION} or above must be used by members using the consumer group "
                "protocol",
            )
        if member_epoch == member.member_epoch:
            return None
        if member_epoch > member.member_epoch:
            raise self._stale(
                member, f"Received {{}} {member_epoch} is newer than current member epoch {member.member_epoch}."
            )

        def check(topic: str, topic_id: UUID | None, partition: int) -> None:
            since = None if topic_id is None else member.assignment_epoch(topic_id, partition)
            if since is None:
                raise self._stale(
                    member, f"Partition {topic}-{partition} is not assigned or pending revocation for member."
                )
            if member_epoch < since:
                raise self._stale(
                    member,
                    f"Received {{}} {member_epoch} is older than assignment epoch {since} for partition "
                    f"{topic}-{partition}.",
                )

        return check

    def validate_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that offsets may be read. KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.

        Source: ConsumerGroup.validateOffsetFetch.
        """
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.member_epoch:
            raise self._stale(
                member,
                f"The received {{}} {member_epoch} does not match the expected member epoch {member.member_epoch}.",
            )

    @staticmethod
    def _stale(member: ConsumerGroupMember, message: str) -> KafkaError:
        if member.uses_classic_protocol:
            return KafkaError(ErrorCode.ILLEGAL_GENERATION, message.format("generation id"))
        return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message.format("member epoch"))

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(self, key: GroupRecordKey, value: Any) -> None:
        """Take in one record of this group (types 3 to 8 and 16), value None for a tombstone.

        What contradicts the state is taken as it comes: compaction may have removed what would explain it.
        """
        handler = _HANDLERS.get(type(key))
        if handler is None:
            raise TypeError(f"{key!r} is not a record of a consumer group")
        handler(self, key, value)

    def tombstones(self) -> Iterator[GroupRecord]:
        """The records that erase the group, in Kafka's order: the group's own record last."""
        group_id = self.group_id
        for member_id in self.members:
            yield ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None
        for member_id in self.members:
            yield ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None
        yield ConsumerGroupTargetAssignmentMetadataKey(group_id), None
        for member_id in self.members:
            yield ConsumerGroupMemberMetadataKey(group_id, member_id), None
        for regex in self.resolved:
            yield ConsumerGroupRegularExpressionKey(group_id, regex), None
        if self.has_partition_metadata:
            yield ConsumerGroupPartitionMetadataKey(group_id), None
        yield ConsumerGroupMetadataKey(group_id), None

    def records(self) -> Iterator[GroupRecord]:
        """The records that create this group (`createConsumerGroupRecords`)."""
        group_id = self.group_id
        for member_id, member in self.members.items():
            yield ConsumerGroupMemberMetadataKey(group_id, member_id), member.metadata_value()
        yield ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(self.group_epoch, self.metadata_hash)
        for member_id in self.members:
            yield target_record(group_id, member_id, self.target.get(member_id, NOTHING))
        yield (
            ConsumerGroupTargetAssignmentMetadataKey(group_id),
            ConsumerGroupTargetAssignmentMetadataValue(self.assignment_epoch, self.assignment_timestamp_ms),
        )
        for member_id, member in self.members.items():
            yield ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), member.assignment_value()

    def _epoch(self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
        if value is None:
            self.is_dead = True
            return
        self.is_dead = False
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def _partition_metadata(self, key: ConsumerGroupPartitionMetadataKey, value: object) -> None:
        self.has_partition_metadata = value is not None

    def _member_metadata(self, key: ConsumerGroupMemberMetadataKey, value: Any) -> None:
        before = self.members.get(key.member_id)
        if value is None:
            self._replace(before, None)
            return
        after = (before or ConsumerGroupMember(member_id=key.member_id)).with_metadata(value)
        self._replace(before, after.changed(subscribed_topic_names=self._shared(after.subscribed_topic_names)))

    def _shared(self, names: frozenset[str]) -> frozenset[str]:
        """The same set for all members that name the same topics: to compare two of 10,000 names takes a while."""
        found = self._name_sets.get(hash(names))
        if found == names:
            return found
        self._name_sets[hash(names)] = names
        return names

    def _current_assignment(self, key: ConsumerGroupCurrentMemberAssignmentKey, value: Any) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            self._replace(before, (before or ConsumerGroupMember(member_id=key.member_id)).with_assignment(value))
        elif before is not None:
            after = before.changed(
                member_epoch=LEAVE_EPOCH,
                previous_member_epoch=LEAVE_EPOCH,
                assigned=NO_PARTITIONS,
                pending_revocation=NO_PARTITIONS,
            )
            self._replace(before, after)

    def _target_metadata(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def _target_member(
        self, key: ConsumerGroupTargetAssignmentMemberKey, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = {
                topic_id: tuple(sorted(partitions)) for topic_id, partitions, _ in value.topic_partitions if partitions
            }

    def _regular_expression(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is None:
            self.resolved.pop(key.regular_expression, None)
        else:
            self.resolved[key.regular_expression] = ResolvedRegularExpression(
                frozenset(value.topics), value.version, value.timestamp
            )

    def _replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        if before is not None:
            self._let_go(before.assigned, before.member_epoch)
            self._let_go(before.pending_revocation, before.member_epoch)
        if after is not None:
            self._hold(after.assigned, after.member_epoch)
            self._hold(after.pending_revocation, after.member_epoch)
            self.members[after.member_id] = after
        elif before is not None:
            del self.members[before.member_id]
        self._count(before, after)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and before is not None and self.static_members.get(instance_id) == before.member_id:
            del self.static_members[instance_id]
        if after is not None and after.instance_id is not None:
            self.static_members[after.instance_id] = after.member_id

    def _count(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        count_change(self.name_counts, names_of(before), names_of(after))
        count_change(self.regex_counts, regexes_of(before), regexes_of(after))
        count_change(self.classic_protocol_counts, _protocols_of(before), _protocols_of(after))
        self.classic_count += bool(after and after.uses_classic_protocol) - bool(
            before and before.uses_classic_protocol
        )

    def _hold(self, partitions: EpochedPartitions, member_epoch: int) -> None:
        for topic_id, epochs in partitions.items():
            holders = self._holders.setdefault(topic_id, {})
            for partition in epochs:
                held = holders.get(partition)
                if held is None or held < member_epoch:
                    holders[partition] = member_epoch

    def _let_go(self, partitions: EpochedPartitions, member_epoch: int) -> None:
        for topic_id, epochs in partitions.items():
            holders = self._holders.get(topic_id)
            if holders is None:
                continue
            for partition in epochs:
                # Another epoch: another member has it already, as the records were written.
                if holders.get(partition) == member_epoch:
                    del holders[partition]
            if not holders:
                del self._holders[topic_id]


def target_record(group_id: str, member_id: str, assignment: Assignment) -> GroupRecord:
    """The record of a member's target assignment."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        tuple(TopicPartitions(topic_id, tuple(partitions)) for topic_id, partitions in assignment.items())
    )
    return ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value


def names_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    """The topics that a member names."""
    return frozenset() if member is None else member.subscribed_topic_names


def regexes_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    """The regular expression of a member, as a set of one or none."""
    return frozenset((member.subscribed_topic_regex,)) if member and member.subscribed_topic_regex else frozenset()


def count_change(counts: Counter[str], before: Iterable[str], after: Iterable[str]) -> None:
    """Count `before` out and `after` in; entries with a count of 0 are dropped."""
    counts.update(after)
    for name in before:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]


def _protocols_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    if member is None or member.classic is None:
        return frozenset()
    return frozenset(protocol.name for protocol in member.classic.supported_protocols)


_HANDLERS: Mapping[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    ConsumerGroupMetadataKey: ConsumerGroup._epoch,
    ConsumerGroupPartitionMetadataKey: ConsumerGroup._partition_metadata,
    ConsumerGroupMemberMetadataKey: ConsumerGroup._member_metadata,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._target_metadata,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._target_member,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._current_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._regular_expression,
}
