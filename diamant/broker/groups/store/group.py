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
    GroupMetadataKey,
    encode_key,
    encode_record,
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
