"""Reading a partition of `__consumer_offsets`, as the coordinator's `PartitionLoader` wants it.

The loop looks up the next range of the log, a thread reads and scans it (`loading.py`), so requests go on between two ranges
and, as the interpreter changes threads often, during them.

Bounds: one range of `offsets.load.buffer.size` and one scan.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping
from uuid import UUID

from diamant.broker.groups.coordinator.group import Group
from diamant.broker.groups.coordinator.loading import LoadedPartition, PartitionScan
from diamant.broker.groups.coordinator.offsets import is_of_topic
from diamant.protocol.internal_topics.group_records import parse_offset_commit_value
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import FileSlice

FIRST_VERSION_WITH_TOPIC_ID = 4
"""Of OffsetCommitValue."""

_NO_TOPIC = UUID(int=0)


async def scanned(log: Log, buffer_size: int) -> PartitionScan:
    """The scan of a log up to its end as of now, `buffer_size` bytes at a time. Raises CorruptBatch, OSError, KafkaError."""
    scan = PartitionScan(f"{log.topic}-{log.partition}", log.log_start_offset)
    while scan.next_offset < log.log_end_offset:
        offset = max(scan.next_offset, log.log_start_offset)
        result = log.read(offset, buffer_size, isolation_level=0, min_one_message=True)
        if not result.slices:
            break  # compaction has left nothing from here to the end
        await to_thread(_feed, scan, result.slices)
    return scan


async def finished(scan: PartitionScan) -> LoadedPartition:
    """What the scan adds up to. Raises CorruptBatch."""
    return await to_thread(scan.finish)


async def left_behind(loaded: LoadedPartition, topic_ids: Mapping[str, UUID]) -> list[tuple[Group, str, int]]:
    """Which offsets were committed for topics that do not exist any more, nor another one's of the same name: the broker was
    killed before it could remove them with the topic. `topic_ids`: those that there are, by name.
    """
    return await to_thread(_left_behind, loaded, topic_ids)


def _left_behind(loaded: LoadedPartition, topic_ids: Mapping[str, UUID]) -> list[tuple[Group, str, int]]:
    left = []
    for group in loaded.groups.values():
        for topic, partitions in group.offsets.committed.items():
            topic_id = topic_ids.get(topic, _NO_TOPIC)
            ending = topic_id.bytes  # of a value with this id: a look at it is quicker than parsing
            left += [
                (group, topic, partition)
                for partition, (value, _) in partitions.items()
                if value[1] >= FIRST_VERSION_WITH_TOPIC_ID
                and not value.endswith(ending)
                and not is_of_topic(parse_offset_commit_value(value), topic_id)
            ]
    return left


def _feed(scan: PartitionScan, slices: tuple[FileSlice, ...]) -> None:
    for part in slices:
        scan.feed(part.read())
