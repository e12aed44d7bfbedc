"""A member of a consumer group, as the group's records describe it.

Members are immutable: a change creates a new object. For each partition, a member stores its *assignment epoch*: the member
epoch at which the partition was assigned. Commits with an older epoch are refused (KIP-1251).

Source: ConsumerGroupMember, MemberState of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Self, TypeAlias
from uuid import UUID

from diamant.protocol.internal_topics.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""Special member epochs in heartbeats. A static member that leaves temporarily sends -2 and keeps it until it rejoins."""

EpochedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""The assignment epoch by topic id and partition. Contains no topic without partitions. Never changed in place."""

NO_PARTITIONS: EpochedPartitions = {}

Assignment: TypeAlias = Mapping[UUID, Sequence[int]]
"""Ascending partition numbers by topic id. Contains no topic without partitions."""

NOTHING: Assignment = MappingProxyType({})


class MemberState(IntEnum):
    """The progress of a member towards its target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member still has to revoke partitions."""
    UNRELEASED_PARTITIONS = 2
    """The member is waiting for partitions that others have not released yet."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member. Without a regular expression, its `subscribed_topic_regex` is "" or None. No partition is in both `assigned`
    and `pending_revocation`.
    """

    member_id: str
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    assigned: EpochedPartitions = field(default_factory=dict)
    pending_revocation: EpochedPartitions = field(default_factory=dict)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member has reached the target assignment of `target_epoch`."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch at which a partition was assigned, even if its revocation is pending; None if it is not assigned."""
        for owned in (self.assigned, self.pending_revocation):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    def changed(self, **fields: Any) -> Self:
        """Return a copy of the member with these fields changed."""
        return replace(self, **fields)

    def moved_to(self, member_epoch: int, state: MemberState, assigned: EpochedPartitions, **fields: Any) -> Self:
        """Return the member after a reconciliation step, with its current epoch as the previous epoch."""
        return replace(
            self,
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            **fields,
        )

    # -- records -----------------------------------------------------------------------------------------------------

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            tuple(sorted(self.subscribed_topic_names)),
            self.subscribed_topic_regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> Self:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.member_epoch,
            self.previous_member_epoch,
            int(self.state),
            _to_records(self.assigned),
            _to_records(self.pending_revocation),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Self:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_from_records(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_records(value.partitions_pending_revocation, value.member_epoch),
        )


def with_epoch(assignment: Mapping[UUID, Any], epoch: int) -> EpochedPartitions:
    """Return partitions by topic id, all assigned at `epoch`."""
    return {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in assignment.items() if partitions}


def _state(value: int) -> MemberState:
    try:
        return MemberState(value)
    except ValueError:
        return MemberState.UNKNOWN


def _to_records(owned: EpochedPartitions) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(epochs)), tuple(epochs[partition] for partition in sorted(epochs)))
        for topic_id, epochs in owned.items()
    )


def _from_records(records: tuple[TopicPartitions, ...], member_epoch: int) -> EpochedPartitions:
    """Parse partitions. If they lack assignment epochs, as in records from before Kafka 4.3, use the member's epoch."""
    default = max(member_epoch, 0)
    owned: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions, epochs in records:
        if epochs is None or len(epochs) != len(partitions):
            epochs = (default,) * len(partitions)
        if partitions:
            owned[topic_id] = dict(zip(partitions, epochs, strict=True))
    return owned
