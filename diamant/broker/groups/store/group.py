"""A group: its committed offsets, and its members, which use one of several protocols.

Offsets expire (`coordinator/offset_expiry.py`) when `offsets.retention.minutes` have passed

- in a simple group, since the commit,
- in an Empty classic group, since the group became Empty, or since the commit if that time is unknown,
- in a consumer group or a Stable classic group of consumers, since the commit, for topics that no member reads.

Other classic groups with members keep their offsets, as do classic groups during a rebalance. An offset that an open
transaction also commits does not expire. A commit with its own retention time (OffsetCommit up to version 4) uses that time.

Source: OffsetMetadataManager.cleanupExpiredOffsets, ClassicGroup and ConsumerGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import GroupOffsets

if TYPE_CHECKING:
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
    from diamant.broker.groups.share.share_group import ShareGroup
    from diamant.broker.groups.store.other_group import OtherGroup
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import (
    GroupMetadataKey,
    encode_key,
    encode_record,
)


class Group:
    """A group. At most one of `classic`, `consumer`, `share` and `other` is set; a simple group has only offsets."""

    __slots__ = ("classic", "consumer", "group_id", "offsets", "other", "share")

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None
        self.share: ShareGroup | None = None
        self.other: OtherGroup | None = None

    @property
    def is_simple(self) -> bool:
        """Whether the group is a simple group, which has only offsets."""
        return self.classic is None and self.consumer is None and self.share is None and self.other is None

    @property
    def is_kept_when_empty(self) -> bool:
        """Whether the group is kept when it has neither members nor offsets. True for share groups."""
        return self.share is not None

    @property
    def has_members(self) -> bool:
        """Whether the group has members. If not, it may be deleted."""
        if self.classic is not None:
            return not self.classic.is_empty
        if self.share is not None:
            return not self.share.is_empty
        if self.other is not None:
            return not self.other.is_empty
        return self.consumer is not None and not self.consumer.is_empty

    @property
    def state(self) -> str:
        """Kafka's name of the state. A simple group is always Empty."""
        if self.classic is not None:
            return self.classic.state.value
        if self.share is not None:
            return self.share.state
        if self.other is not None:
            return self.other.state
        return "Empty" if self.consumer is None else str(self.consumer.state)

    @property
    def group_type(self) -> str:
        """Kafka's name of the protocol, as in ListGroups. Simple groups count as classic."""
        if self.share is not None:
            return "share"
        if self.other is not None:
            return self.other.group_type
        return "classic" if self.consumer is None else "consumer"

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads `topic`, or may read it. If so, its offsets do not expire and cannot be deleted."""
        if self.classic is not None:
            return self.classic.is_subscribed(topic)
        if self.share is not None:
            return topic in self.share.subscribed_topics()
        if self.other is not None:
            return not self.other.is_empty  # its members' subscriptions are unknown
        return self.consumer is not None and self.consumer.is_subscribed(topic)

    def check_has_offsets(self) -> None:
        """Raise KafkaError GROUP_ID_NOT_FOUND if this is a share group, which cannot have committed offsets."""
        if self.share is not None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """Return the tombstones of the group's records, except those of its offsets.

        As in Kafka, this includes a tombstone for a simple group, because a loaded group may have had members earlier.
        """
        if self.share is not None:
            return [encode_record(*record) for record in self.share.tombstones()]
        if self.other is not None:
            return self.other.tombstones(self.group_id)
        if self.consumer is None:
            return [(encode_key(GroupMetadataKey(self.group_id)), None)]
        # Imported late, because most brokers have no consumer groups.
        from diamant.broker.groups.consumer.consumer_group_records import tombstones

        return [encode_record(*record) for record in tombstones(self.consumer)]
