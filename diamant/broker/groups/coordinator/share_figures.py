"""The figures of share partitions in `status`, metrics and reports: the group's progress, and the records that members hold.

Bounds: at most the caller's `limit` of share partitions, with `MAX_HELD` ranges each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.groups.share.ranges import RecordState
from diamant.broker.groups.share.share_partition import SharePartition
from diamant.protocol.internal_topics.share_records import SharePartitionKey

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

MAX_HELD = 100


class HeldRecords(NamedTuple):
    """The records at offsets `first` to `last`, which a member holds until the lock ends. `deliveries` includes this one."""

    member_id: str
    first: int
    last: int
    deliveries: int
    lock_ends_ms: int


class SharePartitionFigures(NamedTuple):
    """The figures of one share partition. `in_flight` counts the records from the start offset to the last acquired record.

    `largest_batch` counts the records of the largest batch, `lock_timeouts` the records whose locks have expired since the
    broker started. `held` has at most `MAX_HELD` ranges.
    """

    group: str
    topic: str
    partition: int
    start_offset: int
    in_flight: int
    batches: int
    largest_batch: int
    lock_timeouts: int
    held: tuple[HeldRecords, ...]

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {**self._asdict(), "held": [one._asdict() for one in self.held]}


def share_figures(groups: GroupCoordinator | None, topics: Topics, limit: int) -> list[SharePartitionFigures]:
    """Return the figures of at most `limit` share partitions that members have fetched from. Call on the loop thread."""
    found = []
    for key, live, lock_timeouts in _live(groups):
        topic = topics.by_id.get(key.topic_id)
        if topic is None:
            continue
        found.append(
            SharePartitionFigures(
                key.group_id,
                topic.name,
                key.partition,
                live.start_offset,
                live.in_flight_count,
                len(live.batches),
                max((one.last - one.first + 1 for one in live.batches), default=0),
                lock_timeouts,
                tuple(islice(held_records(live), MAX_HELD)),
            )
        )
        if len(found) == limit:
            break
    return sorted(found)


class Held(NamedTuple):
    """A range of records that a member of a share group holds."""

    group: str
    records: HeldRecords


def held_of(groups: GroupCoordinator | None, topics: Topics, topic: str, partition: int) -> list[Held]:
    """Return the records of a partition that members of share groups hold. Call on the loop thread."""
    known = topics.by_name.get(topic)
    place = None if known is None else (known.topic_id, partition)
    return [
        Held(key.group_id, one)
        for key, live, _ in _live(groups)
        if (key.topic_id, key.partition) == place
        for one in held_records(live)
    ]


def _live(groups: GroupCoordinator | None) -> Iterator[tuple[SharePartitionKey, SharePartition, int]]:
    states = {} if groups is None else groups.share.delivery.state.states
    return ((key, one.live, one.lock_timeouts) for key, one in states.items() if one.live is not None)


def held_records(live: SharePartition) -> Iterator[HeldRecords]:
    """Yield the records that members hold, ascending."""
    return (
        HeldRecords(run.member_id, run.first, run.last, run.delivery_count, run.lock_ends_ms)
        for run in live.runs()
        if run.state is RecordState.ACQUIRED
    )
