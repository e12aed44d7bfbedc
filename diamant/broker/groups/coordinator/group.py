"""A group: its committed offsets, and its members by one of two protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.offsets import GroupOffsets

if TYPE_CHECKING:
    from diamant.broker.groups.classic.state_machine import ClassicGroup
    from diamant.broker.groups.consumer.group import ConsumerGroup


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
