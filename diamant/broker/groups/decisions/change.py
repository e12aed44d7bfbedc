"""A decision about a consumer group: the records to write and the timers to set.

Functions make a decision by adding to a `GroupChange` (`member_heartbeat.py`, `leaving.py`, `targets.py`, `subscriptions.py`).
They read the group, but do not change it. The caller then writes `records`, applies them to `group`, sets the timers, and
answers. If the log refuses the records, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import GroupRecord
from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.consumer.subscription_counts import SubscriptionCounts
from diamant.broker.groups.decisions.target_assignment import TargetTask
from diamant.protocol.internal_topics import group_records as records
from diamant.storage.kraft.image import MetadataImage


class GroupSettings(NamedTuple):
    """Settings from the broker's and the group's configurations."""

    default_assignor: str
    max_size: int


class Moment(NamedTuple):
    """The time and other inputs of a decision.

    `has_metadata_changed`: the topics may have changed since the group last checked them. `may_assign()`: whether the last
    target assignment is old enough for a new one, and none is being computed.
    """

    now_ms: int
    has_metadata_changed: bool
    may_assign: Callable[[], bool]


class MemberTimer(StrEnum):
    """The timers of a member, which is removed when one of them expires. The value is the reason for the removal."""

    SESSION = "the member session expired"
    REBALANCE = "it failed to revoke its partitions in time"
    JOIN = "the classic member failed to join within the rebalance timeout"
    SYNC = "the member failed to sync within timeout"


class StartTimer(NamedTuple):
    """Start a timer. If `member_epoch` is set, the timer has an effect only if the member still has this epoch when it fires."""

    kind: MemberTimer
    member_id: str
    timeout_ms: int
    member_epoch: int | None = None


class StopTimer(NamedTuple):
    kind: MemberTimer
    member_id: str


class GroupChange:
    """One decision about one group. Methods that write or remove something only add to `records`."""

    def __init__(self, group: ConsumerGroup, image: MetadataImage, settings: GroupSettings, moment: Moment) -> None:
        self.group = group
        self.image = image
        self.settings = settings
        self.moment = moment
        self.records: list[GroupRecord] = []
        self.timers: list[StartTimer | StopTimer] = []
        self.has_computed_target = False
        self.heavy_task: TargetTask | None = None
        """A target assignment to compute in a thread. Pass its result to `targets.take_targets` with a later change."""
        self.has_checked_metadata = False
        """Whether the decision has checked the current topics."""
        self.group_epoch = group.group_epoch
        """The group epoch after the decision."""

    def hash_of(self, counts: SubscriptionCounts) -> int:
        """Return the metadata hash of the topics to which these subscriptions refer."""
        topics = set(counts.names)
        for regex, resolved in self.group.resolved.items():
            # Skip an expression to which no member will subscribe any longer.
            if regex in counts.regexes or not self.group.subscriptions.regexes[regex]:
                topics |= resolved.topics
        return metadata_hash(topics, self.image)

    def raise_epoch(self, new_hash: int) -> None:
        """Increase the group epoch by one."""
        self.group_epoch = self.group.group_epoch + 1
        value = records.ConsumerGroupMetadataValue(self.group_epoch, new_hash)
        self.records.append((records.ConsumerGroupMetadataKey(self.group.group_id), value))

    def write_member(self, member: ConsumerGroupMember) -> None:
        """Write a member's metadata."""
        key = records.ConsumerGroupMemberMetadataKey(self.group.group_id, member.member_id)
        self.records.append((key, member.metadata_value()))

    def write_assignment(self, member: ConsumerGroupMember) -> None:
        """Write a member's current assignment."""
        key = records.ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, member.member_id)
        self.records.append((key, member.assignment_value()))

    def remove_member(self, member_id: str) -> None:
        """Remove a member by writing tombstones of its records."""
        group_id = self.group.group_id
        self.records += [
            (records.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
            (records.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
            (records.ConsumerGroupMemberMetadataKey(group_id, member_id), None),
        ]

    def stop_timers(self, member_id: str) -> None:
        """Stop all timers of a member."""
        self.timers += [StopTimer(kind, member_id) for kind in MemberTimer]
