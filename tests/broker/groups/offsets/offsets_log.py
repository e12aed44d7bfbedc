"""Logs of `__consumer_offsets` for tests, and their contents by the simplest means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from diamant.broker.groups.coordinator.partition_scan import LoadedPartition, PartitionScan
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.control import COMMIT, build_marker, parse_control_type
from diamant.protocol.batches.header import Record
from diamant.protocol.internal_topics.group_records import (
    OffsetCommitKey,
    encode_offset_commit_key,
    encode_offset_commit_value,
    parse_key,
    parse_offset_commit_value,
)
from tests.builder import TIMESTAMP

KeyAndValue = tuple[bytes, bytes | None]


def commit_record(
    offset: int | None, group: str = "g", topic: str = "t", partition: int = 0, **value: Any
) -> KeyAndValue:
    """Return a committed offset, or a tombstone for None."""
    key = encode_offset_commit_key(group, topic, partition)
    if offset is None:
        return key, None
    fields: dict[str, Any] = {"leader_epoch": -1, "metadata": "", "commit_timestamp": TIMESTAMP, **value}
    return key, encode_offset_commit_value(offset, **fields)


class OffsetsLog:
    """Batches with consecutive offsets."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.next_offset = 0

    def write(self, *records: KeyAndValue, timestamp_step_ms: int = 0, **batch: Any) -> OffsetsLog:
        """One batch."""
        built = [
            Record(self.next_offset + index, TIMESTAMP + index * timestamp_step_ms, key, value)
            for index, (key, value) in enumerate(records)
        ]
        self.batches.append(bytes(build_batch(built, **batch)))
        self.next_offset += len(records)
        return self

    def write_pending(self, producer_id: int, *records: KeyAndValue, **batch: Any) -> OffsetsLog:
        """One batch of a transaction."""
        return self.write(*records, producer_id=producer_id, producer_epoch=0, is_transactional=True, **batch)

    def end(self, producer_id: int, *, is_commit: bool) -> OffsetsLog:
        """Return a marker."""
        self.batches.append(
            bytes(
                build_marker(
                    is_commit=is_commit,
                    producer_id=producer_id,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    base_offset=self.next_offset,
                    leader_epoch=0,
                    timestamp=TIMESTAMP,
                )
            )
        )
        self.next_offset += 1
        return self

    @property
    def data(self) -> bytes:
        """Return all bytes."""
        return b"".join(self.batches)


Offsets = dict[tuple[str, str, int], int]


def load(batches: Iterable[bytes]) -> LoadedPartition:
    """Return the broker's reading of a log."""
    scan = PartitionScan("test-0")
    for data in batches:
        scan.feed(data)
    return scan.finish()


def committed(loaded: LoadedPartition) -> Offsets:
    """Committed offsets by group, topic and partition."""
    return {
        (group_id, topic, partition): parse_offset_commit_value(stored[0]).offset
        for group_id, group in loaded.groups.items()
        for topic, partitions in group.offsets.committed.items()
        for partition, stored in partitions.items()
    }


def pending(loaded: LoadedPartition) -> dict[int, Offsets]:
    """Offsets of open transactions by producer."""
    found: dict[int, Offsets] = {}
    for group_id, group in loaded.groups.items():
        for producer_id, offsets in group.offsets.pending.items():
            for (topic, partition), stored in offsets.items():
                place = (group_id, topic, partition)
                found.setdefault(producer_id, {})[place] = parse_offset_commit_value(stored[0]).offset
    return found


def replay(data: bytes) -> tuple[Offsets, dict[int, Offsets], list[Sequence[Any]]]:
    """Return offsets, pending offsets and other records, replayed record by record by the documented format."""
    offsets: dict[tuple[str, str, int], tuple[int, int]] = {}
    open_offsets: dict[int, dict[tuple[str, str, int], tuple[int, int]]] = {}
    others: dict[bytes, bytes | None] = {}
    for position, header in iter_headers(data):
        for record in iter_records(data, position):
            assert record.key is not None
            if header.is_control:
                is_commit = parse_control_type(record.key) == COMMIT
                for place, stored in open_offsets.pop(header.producer_id, {}).items():
                    if is_commit and (place not in offsets or offsets[place][1] < stored[1]):
                        offsets[place] = stored
                continue
            key = parse_key(record.key)
            if not isinstance(key, OffsetCommitKey):
                others.pop(record.key, None)
                others[record.key] = record.value
                continue
            place = (key.group_id, key.topic, key.partition)
            if record.value is None:
                offsets.pop(place, None)
                for some in open_offsets.values():
                    some.pop(place, None)
            else:
                target = open_offsets.setdefault(header.producer_id, {}) if header.is_transactional else offsets
                target[place] = (parse_offset_commit_value(record.value).offset, record.offset)
    return (
        {place: stored[0] for place, stored in offsets.items()},
        {
            producer_id: {place: stored[0] for place, stored in some.items()}
            for producer_id, some in open_offsets.items()
            if some
        },
        [(parse_key(key), value) for key, value in others.items() if value is not None and parse_key(key) is not None],
    )
