"""The interface through which the parts of the group coordinator access the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from diamant.broker.groups.store.group import Group
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.groups.consumer.consumer_group import ConsumerGroup


class GroupStore(Protocol):
    """The groups by id. Belongs to the loop thread."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """All loaded groups."""
        ...

    def check_usable(self, group_id: str | None, *, may_be_empty: bool = False) -> None:
        """Raise KafkaError if requests about a group cannot be answered now."""
        ...

    def group(self, group_id: str) -> Group | None:
        """Return the group with this id, of any type, or None."""
        ...

    def group_or_new(self, group_id: str) -> Group:
        """Return the group with this id. Create a simple group in memory if missing."""
        ...

    def forget(self, group_id: str) -> None:
        """Drop a group without members and offsets from memory."""
        ...

    def adopt(self, group: Group) -> None:
        """Register a group that has offsets."""
        ...

    def become(
        self,
        group: Group,
        *,
        classic: ClassicGroup | None = None,
        consumer: ConsumerGroup | None = None,
        error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS,
    ) -> None:
        """Replace a group's members by those of `classic` or `consumer`, or by none."""
        ...
