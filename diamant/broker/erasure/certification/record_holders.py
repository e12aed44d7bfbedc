"""The members of share groups that hold records to be removed: they have them in memory, which no removal reaches."""

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
"""The most holders that a report names."""


@dataclass(frozen=True, slots=True)
class RecordHolder:
    """A member of a share group that held records of a partition when they were located for their removal."""

    topic: str
    partition: int
    group: str
    member_id: str
    records: int
    """The number of these records."""
    lock_ends_ms: int
    """The time at which the last of its acquisition locks ends."""


def record_holders(
    groups: GroupCoordinator | None, topics: Topics, partition: TopicPartition, has: Callable[[int], bool]
) -> list[RecordHolder]:
    """Return the members that now hold records of a partition. `has`: which offsets count. Call this on the loop thread."""
    found: dict[tuple[str, str], RecordHolder] = {}
    for group, one in held_of(groups, topics, *partition):
        if count := sum(map(has, range(one.first, one.last + 1))):
            ends_ms, before = one.lock_ends_ms, found.get((group, one.member_id))
            if before is not None:
                count, ends_ms = count + before.records, max(ends_ms, before.lock_ends_ms)
            found[group, one.member_id] = RecordHolder(*partition, group, one.member_id, count, ends_ms)
    return list(found.values())
