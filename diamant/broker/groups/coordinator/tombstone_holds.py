"""The tombstones of a log that wait for groups: those that the slowest committed offset has not passed.

Costs a look at each group with `diamant.tombstone.hold=groups`, and a look into the log where a Fetch at that offset would read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.topics.names import GROUP_OFFSETS_TOPIC
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.protocol.errors import KafkaError
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.topics.topics import Topics
    from diamant.storage.log.log import Log

BASE_OFFSET_BYTES = 8


def hold_for_groups(groups: Lazy[GroupCoordinator], topics: Topics, log: Log) -> TombstoneHold | None:
    """Return the hold on a log now; None if every group has read to its end. On the loop thread.

    While groups are not all known, everything is held: one of them may be behind.
    """
    max_ms = log.config.tombstone_hold_max_ms
    if GROUP_OFFSETS_TOPIC not in topics.by_name:
        return None
    if groups().loading.not_loaded():
        return TombstoneHold(log.log_start_offset - 1, max_ms, None, log.log_start_offset)
    slowest = min(_committed(groups(), log), default=None)
    if slowest is None or slowest[0] >= log.log_end_offset:
        return None
    offset, group_id = slowest
    return TombstoneHold(_batch_with(log, max(offset, log.log_start_offset)) - 1, max_ms, group_id, offset)


def _committed(groups: GroupCoordinator, log: Log) -> list[tuple[int, str]]:
    stored = ((group.offsets.get(log.topic, log.partition), group.group_id) for group in groups.groups.values())
    return [(committed_offset_of(found[0]), group_id) for found, group_id in stored if found is not None]


def _batch_with(log: Log, offset: int) -> int:
    """Return the base offset of the batch that a consumer at `offset` reads first; of its segment if that cannot be read."""
    segment = log.segments[max(0, log.floor_segment(offset))]
    try:
        slices = log.read(offset, 1, isolation_level=0, min_one_message=True).slices
        if not slices:
            return offset
        first = slices[0]
        return min(offset, int.from_bytes(first.file.pread(BASE_OFFSET_BYTES, first.position), "big"))
    except (KafkaError, StorageError, OSError):
        return segment.base_offset
