"""Determines which tombstones of a log are held for groups, because the slowest committed offset has not passed them.

For a topic with `diamant.tombstone.hold=groups`, all groups are visited once per turn of the loop, however many partitions the
topic has. This takes about 5 ms for 10,000 groups. Then the log is read at the slowest committed offset, as a Fetch would do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.protocol.errors import KafkaError
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.topics.topics import Topics
    from diamant.storage.log.log import Log

BASE_OFFSET_BYTES = 8


class GroupHolds:
    """The holds on the logs of one broker. Belongs to the loop thread.

    Memory: one entry for each partition of the topics that were checked in the current turn of the loop.
    """

    def __init__(self, groups: Lazy[GroupCoordinator], topics: Topics, loop: asyncio.AbstractEventLoop) -> None:
        self._groups = groups
        self._topics = topics
        self._loop = loop
        self._slowest: dict[str, dict[int, tuple[int, str]]] = {}
        """The committed offset and the id of the slowest group, by topic and partition, valid for this turn of the loop."""

    def hold(self, log: Log) -> TombstoneHold | None:
        """Return the current hold on a log; None if every group has read to the log's end.

        Until all groups are loaded, every tombstone is held, because an unloaded group may be behind.
        """
        max_ms = log.config.diamant_tombstone_hold_max_ms
        if GROUP_OFFSETS_TOPIC not in self._topics.by_name:
            return None
        if self._groups().loading.not_loaded():
            return TombstoneHold(log.log_start_offset - 1, max_ms, None, log.log_start_offset)
        slowest = self._slowest_of(log.topic).get(log.partition)
        if slowest is None or slowest[0] >= log.log_end_offset:
            return None
        offset, group_id = slowest
        return TombstoneHold(_batch_with(log, max(offset, log.log_start_offset)) - 1, max_ms, group_id, offset)

    def _slowest_of(self, topic: str) -> dict[int, tuple[int, str]]:
        slowest = self._slowest.get(topic)
        if slowest is None:
            if not self._slowest:
                self._loop.call_soon(self._slowest.clear)
            slowest = self._slowest[topic] = {}
            for group in self._groups().groups.values():
                for partition, stored in group.offsets.committed.get(topic, {}).items():
                    committed = committed_offset_of(stored[0]), group.group_id
                    if partition not in slowest or committed < slowest[partition]:
                        slowest[partition] = committed
        return slowest


def _batch_with(log: Log, offset: int) -> int:
    """Return the base offset of the batch with which a Fetch at `offset` begins, or that of the segment if it cannot be read."""
    segment = log.segments[max(0, log.floor_segment(offset))]
    try:
        slices = log.read(offset, 1, isolation_level=0, min_one_message=True).slices
        if not slices:
            return offset
        first = slices[0]
        return min(offset, int.from_bytes(first.file.pread(BASE_OFFSET_BYTES, first.position), "big"))
    except (KafkaError, StorageError, OSError):
        return segment.base_offset
