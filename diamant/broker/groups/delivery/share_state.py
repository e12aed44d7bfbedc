"""The states of all share partitions, in memory and in `__share_group_state`.

A change is appended as an update before its caller answers. After `share.coordinator.snapshot.update.records.per.snapshot`
updates, a snapshot is written, which makes earlier records redundant. Instead of compacting the log, the broker moves its start
up to the oldest record that is still needed.

Bounds: an entry for each initialized share partition. Its stored batches are kept only until a member fetches from it.

Source: ShareCoordinatorShard, ShareGroupOffset, ShareCoordinatorOffsetsManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.coordinators.partition_loader import PartitionLoader
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET, SharePartition, combined
from diamant.broker.topics.internal_names import SHARE_GROUP_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import LOG_OVERHEAD, parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics.share_records import (
    SharePartitionKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    StateBatch,
    coordinator_key,
    encode_share_record,
    parse_share_key,
    parse_share_value,
)
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import FileSlice
from diamant.storage.uuid_text import uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

PRUNE_INTERVAL_MS = 300_000
"""`share.coordinator.state.topic.prune.interval.ms`."""
READ_BYTES = 1 << 20


class StoredState:
    """The stored state of a share partition. Its start offset may be older than that of `live`; `current` returns the latest.

    `batches` is emptied once `live` exists, because it can be derived from `live`. `lock_timeouts`: the number of records whose
    locks have expired since the state was loaded. `snapshot_at`: the offset of the last snapshot.
    """

    __slots__ = (
        "batches",
        "completed_count",
        "create_ms",
        "leader_epoch",
        "live",
        "lock_timeouts",
        "snapshot_at",
        "snapshot_epoch",
        "start_offset",
        "state_epoch",
        "update_count",
    )

    def __init__(self, snapshot: ShareSnapshotValue, snapshot_at: int) -> None:
        self.live: SharePartition | None = None
        self.lock_timeouts = 0
        self.create_ms = snapshot.create_timestamp
        self.batches: list[StateBatch] = []
        self.set_to(snapshot, snapshot_at)

    def set_to(self, snapshot: ShareSnapshotValue, snapshot_at: int) -> None:
        """Replace the state with a snapshot."""
        self.snapshot_epoch = snapshot.snapshot_epoch
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.start_offset = snapshot.start_offset
        self.completed_count = snapshot.delivery_complete_count
        self.batches = [] if self.live is not None else list(snapshot.state_batches)
        self.snapshot_at = snapshot_at
        self.update_count = 0

    def update(self, update: ShareUpdateValue) -> None:
        """Apply an update."""
        if update.start_offset != UNKNOWN_OFFSET:
            self.start_offset = update.start_offset
        self.leader_epoch = update.leader_epoch
        self.completed_count = update.delivery_complete_count
        self.update_count += 1
        if self.live is None:
            self.batches = overlaid(self.batches, update.state_batches, self.start_offset)

    def current(self) -> tuple[int, int, Sequence[StateBatch]]:
        """Return the current start offset, number of completed records, and batches, as a new snapshot would contain them."""
        if self.live is None or self.start_offset == UNKNOWN_OFFSET:
            return self.start_offset, self.completed_count, self.batches
        return self.live.start_offset, self.live.completed_count, self.live.state_batches()

    def unload(self) -> None:
        """Release the records that members have acquired, as happens when the broker starts."""
        if self.live is not None:
            self.start_offset, self.completed_count = self.live.start_offset, self.live.completed_count
            self.batches, self.live = self.live.state_batches(), None


def overlaid(below: Sequence[StateBatch], above: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    """Replace parts of `below` with the later batches `above`, and merge them with `combined` (`PersisterStateBatchCombiner`)."""
    found = list(below)
    for batch in above:
        rest = []
        for old in found:
            if old.last_offset < batch.first_offset or old.first_offset > batch.last_offset:
                rest.append(old)
                continue
            if old.first_offset < batch.first_offset:
                rest.append(old._replace(last_offset=batch.first_offset - 1))
            if old.last_offset > batch.last_offset:
                rest.append(old._replace(first_offset=batch.last_offset + 1))
        found = sorted([*rest, batch])
    return combined(found, start_offset)


class ShareState:
    """The states of all share partitions. Belongs to the loop thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self.topic = InternalTopic(
            node,
            SHARE_GROUP_STATE_TOPIC,
            config.share_coordinator_state_topic_num_partitions,
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "retention.ms": "-1",
                "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
            },
            factor=config.internal_factor("share.coordinator.state.topic.replication.factor"),
            base_sequence=0,
        )
        self.states: dict[SharePartitionKey, StoredState] = {}
        self._loader = self._loader_of(None)
        node.scheduler.every("pruning of share group states", PRUNE_INTERVAL_MS, self.prune)
        self.use(node.topics.by_name.get(SHARE_GROUP_STATE_TOPIC))

    def use(self, topic: Topic | None) -> None:
        """Drop all states, and load those of `topic` unless it is None."""
        self._loader.cancel()
        self.states.clear()
        self._loader = self._loader_of(topic)
        self._loader.start()

    def _loader_of(self, topic: Topic | None) -> PartitionLoader[dict[SharePartitionKey, StoredState]]:
        return PartitionLoader(topic, self.topic.partition_count, "share partitions", _read, self._take_over)

    async def loaded(self) -> None:
        """Wait until every readable partition is loaded."""
        await self._loader.done()

    async def stop(self) -> None:
        """Stop loading."""
        await self._loader.stop()

    def check(self, key: SharePartitionKey) -> None:
        """Raise KafkaError COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless the share partition's state is loaded."""
        if not self._loader.is_complete:
            self._loader.check(self.partition_of(key))

    def partition_of(self, key: SharePartitionKey) -> int:
        """Return the partition of the state topic that contains the records of a share partition."""
        return self.topic.partition_of(coordinator_key(key, uuid_to_text(key.topic_id)))

    # -- changes -----------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int = UNKNOWN_OFFSET) -> None:
        """Write a state of a share partition, at `start_offset` if given. Raises KafkaError as `InternalTopic.append` does."""
        self.check(key)
        now_ms = self._node.env.clock.now_ms()
        before = self.states.get(key)
        leader_epoch = 0 if before is None else before.leader_epoch
        epoch = 0 if before is None else before.snapshot_epoch + 1
        count = UNKNOWN_OFFSET if start_offset == UNKNOWN_OFFSET else 0
        snapshot = ShareSnapshotValue(epoch, state_epoch, leader_epoch, start_offset, now_ms, now_ms, (), count)
        self.states[key] = StoredState(snapshot, self._append(key, snapshot))

    def write(
        self, key: SharePartitionKey, partition: SharePartition, changes: Sequence[StateBatch], leader_epoch: int
    ) -> None:
        """Write changes that `partition` already includes. Raises KafkaError as `InternalTopic.append` does."""
        batches = partition.state_batches
        self._write(key, leader_epoch, partition.start_offset, partition.completed_count, changes, batches)

    def write_update(
        self, key: SharePartitionKey, leader_epoch: int, start: int, count: int, changes: Sequence[StateBatch]
    ) -> None:
        """Write changes of a share partition that no member fetches from. Raises KafkaError as `InternalTopic.append` does."""
        below = self.states[key].batches
        self._write(key, leader_epoch, start, count, changes, lambda: overlaid(below, changes, start))

    def _write(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        start: int,
        count: int,
        changes: Sequence[StateBatch],
        batches: Callable[[], Sequence[StateBatch]],
    ) -> None:
        """Append an update or, after enough updates, a snapshot. `batches` returns the whole state, including the changes."""
        state = self.states[key]
        if state.update_count >= self._node.config.share_coordinator_snapshot_update_records_per_snapshot:
            self._write_snapshot(key, state, leader_epoch, start, count, batches())
            return
        update = ShareUpdateValue(state.snapshot_epoch, leader_epoch, start, tuple(changes), count)
        self._append(key, update)
        state.update(update)

    def _write_snapshot(
        self,
        key: SharePartitionKey,
        state: StoredState,
        leader_epoch: int,
        start: int,
        count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        now_ms = self._node.env.clock.now_ms()
        epoch = state.snapshot_epoch + 1
        snapshot = ShareSnapshotValue(
            epoch, state.state_epoch, leader_epoch, start, state.create_ms, now_ms, tuple(batches), count
        )
        state.set_to(snapshot, self._append(key, snapshot))

    def remove(self, keys: Iterable[SharePartitionKey]) -> None:
        """Delete the states of share partitions."""
        for key in keys:
            if key in self.states:
                self._append(key, None)
                del self.states[key]

    async def prune(self) -> None:
        """Move the start of each log up to the oldest record that is still needed.

        The old snapshot of a rarely written state would keep the log from being pruned. So it is replaced if it is followed by
        more than twice the records that all states of the log can have between two snapshots. Kafka writes a new snapshot of
        every state after five minutes (`ShareCoordinatorShard.snapshotColdPartitions`).
        """
        if not self.topic.exists or not self._loader.is_complete:
            return
        states: dict[int, list[tuple[SharePartitionKey, StoredState]]] = {}
        for key, state in self.states.items():
            states.setdefault(self.partition_of(key), []).append((key, state))
        between = 1 + self._node.config.share_coordinator_snapshot_update_records_per_snapshot
        for partition, found in states.items():
            log = self.topic.log(partition)
            lowest = log.log_end_offset - 2 * between * len(found)
            for key, state in found:
                if state.snapshot_at < lowest:
                    self._write_snapshot(key, state, state.leader_epoch, *state.current())
            needed = min(state.snapshot_at for _, state in found)
            if needed > log.log_start_offset:
                log.delete_records(needed)

    def _append(self, key: SharePartitionKey, value: ShareSnapshotValue | ShareUpdateValue | None) -> int:
        return self.topic.append(self.partition_of(key), [encode_share_record(key, value)])

    async def _take_over(self, partition: int, read: dict[SharePartitionKey, StoredState]) -> None:
        self.states.update({key: state for key, state in read.items() if self.partition_of(key) == partition})


async def _read(log: Log) -> dict[SharePartitionKey, StoredState]:
    states: dict[SharePartitionKey, StoredState] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, READ_BYTES, isolation_level=0, min_one_message=True)
        if not result.slices:
            break
        offset = await asyncio.to_thread(_feed, states, result.slices, offset)
    return states


def _feed(states: dict[SharePartitionKey, StoredState], slices: Sequence[FileSlice], offset: int) -> int:
    for part in slices:
        data = part.read()
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            for record in iter_records(data, position):
                if record.offset >= offset and record.key is not None:
                    try:
                        _apply(states, record.key, record.value, record.offset)
                    except CorruptBatch as error:
                        raise CorruptBatch(0, f"the record at offset {record.offset}: {error.reason}") from None
            position += header.batch_length + LOG_OVERHEAD
            offset = header.base_offset + header.last_offset_delta + 1
    return offset


def _apply(states: dict[SharePartitionKey, StoredState], data: bytes, value: bytes | None, offset: int) -> None:
    key = parse_share_key(data)
    if key is None:
        return
    if value is None:
        states.pop(key, None)
        return
    parsed = parse_share_value(data, value)
    if isinstance(parsed, ShareSnapshotValue):
        states[key] = StoredState(parsed, offset)
    elif key in states and states[key].snapshot_epoch == parsed.snapshot_epoch:
        states[key].update(parsed)
