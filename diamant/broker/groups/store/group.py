"""A group: its committed offsets, its members by one of two protocols, and the expiry of its offsets.

Expiry is pure, for `offsets.retention.minutes`. Time is counted

- for a simple group from each commit,
- for a classic group that has become Empty from that moment (from each commit where it is not known),
- for a consumer group, and a Stable classic group of consumers, from each commit, for topics that no member reads.

Groups of other protocol types with members, and those in the middle of a rebalance, lose nothing; nor does an offset for which
a transaction is open. A commit that came with a retention time of its own (OffsetCommit up to version 4) goes by that.

Source: OffsetMetadataManager.cleanupExpiredOffsets, ClassicGroup and ConsumerGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import GroupOffsets

if TYPE_CHECKING:
    from diamant.broker.groups.classic.group import ClassicGroup
    from diamant.broker.groups.consumer.group import ConsumerGroup
from diamant.protocol.internal_topics.group_records import (
    NO_TIMESTAMP,
    GroupMetadataKey,
    encode_key,
    encode_record,
    parse_offset_commit_value,
)


class Group:
    """`classic` and `consumer`: at most one is set. With neither it is a simple group, which has offsets only."""

    __slots__ = ("classic", "consumer", "group_id", "offsets")

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None

    @property
    def has_members(self) -> bool:
        """False for groups that may be deleted: Empty or simple."""
        if self.classic is not None:
            return not self.classic.is_empty
        return self.consumer is not None and not self.consumer.is_empty

    @property
    def state(self) -> str:
        """Kafka's name of the state; a simple group is always Empty."""
        if self.classic is not None:
            return self.classic.state.value
        return "Empty" if self.consumer is None else str(self.consumer.state)

    @property
    def group_type(self) -> str:
        """Kafka's name of the protocol, as ListGroups gives it; simple groups count as classic."""
        return "classic" if self.consumer is None else "consumer"

    def is_subscribed(self, topic: str) -> bool:
        """True if a member reads `topic`, as far as that can be told: its offsets neither expire nor can be deleted."""
        if self.classic is not None:
            return self.classic.is_subscribed(topic)
        return self.consumer is not None and self.consumer.is_subscribed(topic)

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """The records that erase the group from the log, without its offsets.

        One for a simple group, too, as in Kafka: one that was read back cannot tell whether it has ever had members.
        """
        if self.consumer is None:
            return [(encode_key(GroupMetadataKey(self.group_id)), None)]
        # Most brokers have no consumer groups.
        from diamant.broker.groups.consumer.records import tombstones

        return [encode_record(*record) for record in tombstones(self.consumer)]


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
    """The (topic, partition) whose offsets have expired at `now_ms`."""
    may_expire, since_ms = _base_time(group)
    if not may_expire:
        return []
    expired = []
    for topic, partitions in group.offsets.committed.items():
        if group.is_subscribed(topic):
            continue
        for partition, (value, _) in partitions.items():
            commit = parse_offset_commit_value(value)
            if commit.expire_timestamp != NO_TIMESTAMP:
                is_expired = now_ms >= commit.expire_timestamp
            else:
                is_expired = now_ms - (commit.commit_timestamp if since_ms is None else since_ms) >= retention_ms
            if is_expired and not group.offsets.is_pending(topic, partition):
                expired.append((topic, partition))
    return expired


def _base_time(group: Group) -> tuple[bool, int | None]:
    """Tell if offsets may expire, and the start of their retention; None for the time of the commit."""
    classic = group.classic
    if classic is None or not classic.protocol_type:
        return True, None
    if classic.is_empty:
        return True, classic.current_state_timestamp_ms
    is_stable = group.state == "Stable"
    return is_stable and classic.uses_consumer_protocol and classic.subscriptions.topics is not None, None
