"""A group: its committed offsets, its members by one of two protocols, and the expiry of its offsets.

Expiry (`offsets.retention.minutes`) is pure. The retention time begins

- for a simple group, with each commit,
- for an Empty classic group, when it became Empty (with each commit if that time is not known),
- for a consumer group, and a Stable classic group of consumers, with each commit, for topics that no member reads.

Nothing expires in groups of other protocol types with members, or during a rebalance; nor does an offset with an open
transaction. A commit with its own retention time (OffsetCommit up to version 4) uses that time.

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
    """`classic` and `consumer`: at most one is set. A group with neither is a simple group, with offsets only."""

    __slots__ = ("classic", "consumer", "group_id", "offsets")

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None

    @property
    def has_members(self) -> bool:
        """Whether the group has members. Groups without, Empty or simple, may be deleted."""
        if self.classic is not None:
            return not self.classic.is_empty
        return self.consumer is not None and not self.consumer.is_empty

    @property
    def state(self) -> str:
        """Kafka's name of the state. A simple group is always Empty."""
        if self.classic is not None:
            return self.classic.state.value
        return "Empty" if self.consumer is None else str(self.consumer.state)

    @property
    def group_type(self) -> str:
        """Kafka's name of the protocol, as in ListGroups. Simple groups count as classic."""
        return "classic" if self.consumer is None else "consumer"

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads `topic`, or may. Such offsets neither expire nor can be deleted."""
        if self.classic is not None:
            return self.classic.is_subscribed(topic)
        return self.consumer is not None and self.consumer.is_subscribed(topic)

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """The records that erase the group from the log, without its offsets.

        As in Kafka, a simple group has one, too: after a reload it is unknown whether it ever had members.
        """
        if self.consumer is None:
            return [(encode_key(GroupMetadataKey(self.group_id)), None)]
        # Most brokers have no consumer groups.
        from diamant.broker.groups.consumer.records import tombstones

        return [encode_record(*record) for record in tombstones(self.consumer)]
