"""Members of share groups that hold records which a job removes. A removal does not reach the copies in their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.share_figures import held_of
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

MAX_HOLDERS = 1_000
"""The maximum number of holders in a report."""


@dataclass(frozen=True, slots=True)
class RecordHolder:
    """A member of a share group that held records of a partition when a job located them to remove them."""

    topic: str
    partition: int
    group: str
    member_id: str
    records: int
    """The number of these records."""
    lock_ends_ms: int
    """When the last of its acquisition locks on them ends."""


def record_holders(
    groups: GroupCoordinator | None, topics: Topics, partition: TopicPartition, has: Callable[[int], bool]
) -> list[RecordHolder]:
    """Return the members that now hold records at offsets for which `has` returns True. Call this on the loop thread."""
    found: dict[tuple[str, str], RecordHolder] = {}
    for group, one in held_of(groups, topics, *partition):
        if count := sum(map(has, range(one.first, one.last + 1))):
            ends_ms, before = one.lock_ends_ms, found.get((group, one.member_id))
            if before is not None:
                count, ends_ms = count + before.records, max(ends_ms, before.lock_ends_ms)
            found[group, one.member_id] = RecordHolder(*partition, group, one.member_id, count, ends_ms)
    return list(found.values())
