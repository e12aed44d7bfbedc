"""Share partitions as `status` and the metrics show them: how far a group is, and which records its members hold.

Bounds: the share partitions that were fetched from, as many as the caller wants, with `MAX_HELD` ranges each.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.groups.share.ranges import RecordState

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

MAX_HELD = 100


class HeldRecords(NamedTuple):
    """Offsets `first` to `last`, held by a member until the lock ends; `deliveries` counts this one."""

    member_id: str
    first: int
    last: int
    deliveries: int
    lock_ends_ms: int


class SharePartitionFigures(NamedTuple):
    """`in_flight`: records from the start offset to the last one given out, in `batches`. `held`: at most `MAX_HELD` ranges."""

    group: str
    topic: str
    partition: int
    start_offset: int
    in_flight: int
    batches: int
    held: tuple[HeldRecords, ...]

    def to_fields(self) -> dict[str, object]:
        """As JSON has it."""
        return {**self._asdict(), "held": [one._asdict() for one in self.held]}


def share_figures(groups: GroupCoordinator | None, topics: Topics, limit: int) -> list[SharePartitionFigures]:
    """Return the figures of share partitions that members have fetched from, at most `limit`. On the loop thread."""
    if groups is None:
        return []
    found = []
    for key, stored in groups.share.partitions.state.states.items():
        topic, live = topics.by_id.get(key.topic_id), stored.live
        if topic is None or live is None:
            continue
        held = (
            HeldRecords(run.member_id, run.first, run.last, run.delivery_count, run.lock_ends_ms)
            for run in live.runs()
            if run.state is RecordState.ACQUIRED
        )
        found.append(
            SharePartitionFigures(
                key.group_id,
                topic.name,
                key.partition,
                live.start_offset,
                live.in_flight_count,
                len(live.batches),
                tuple(islice(held, MAX_HELD)),
            )
        )
        if len(found) == limit:
            break
    return sorted(found)
