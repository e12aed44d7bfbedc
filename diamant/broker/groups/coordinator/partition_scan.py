"""Reads a partition of `__consumer_offsets` into groups, for the coordinator's `PartitionLoader`.

Most records of such a log are superseded by later ones, so the scan decodes as little as possible: it walks over the batches
and keeps the latest value of each key as bytes. The values that remain are decoded at the end.

    scan = PartitionScan("__consumer_offsets-7")
    scan.feed(data)                                        # the bytes of whole batches; called repeatedly
    loaded = scan.finish()

The scan is pure and runs in a thread. The offsets of a transaction are kept by producer id until its marker is read. When the
transaction commits, they replace stored offsets, except those that are later in the log.

The loop looks up the next range of the log, and a thread reads and scans it (`coordinators/partition_loader.py`). So
requests are served between two ranges and, because the interpreter switches threads often, while a range is scanned.

Bounds: one value for each key in the log; one range of `offsets.load.buffer.size` bytes; `MAX_DECOMPRESSED_BYTES` for a
decompressed batch.

Source: CoordinatorLoaderImpl, OffsetMetadataManager.replay, replayEndTransactionMarker, GroupCoordinatorShard.replay.
"""

from __future__ import annotations

import logging
from asyncio import to_thread
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.offsets import StoredOffset, is_of_topic
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records, records_payload
from diamant.protocol.batches.control import COMMIT, parse_control_type
from diamant.protocol.batches.header import (
    CODEC_MASK,
    CONTROL_FLAG,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    parse_header,
)
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics.group_records import (
    GroupRecordKey,
    OffsetCommitKey,
    parse_key,
    parse_offset_commit_value,
    parse_value,
)
from diamant.protocol.internal_topics.other_group_keys import OtherGroupKey, parse_other_key
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import FileSlice

logger = logging.getLogger(__name__)

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024

_HEADER = Struct(">qi4xb4xhi16xq6xi")
"""Base offset, batch length, magic, attributes, last offset delta, producer id, record count."""

_OFFSET_COMMIT = b"\x00\x01"
_MARKER_FRONT = b"\x20\x00\x00\x00\x08\x00\x00\x00"
"""The first bytes of the single record of a transaction marker. The next byte is the low byte of the marker's type."""

_PARTITION = Struct(">i")
_V4_SIZE = 42
"""The size in bytes of an OffsetCommitValue of version 4 with a topic id and empty metadata."""
_TOPIC_ID_TAG = b"\1\0\x10"
"""The number of tagged fields (1), and the tag and the size of this field."""


class GroupRecord(NamedTuple):
    """A record other than an offset commit. `value` is parsed if the key is from `group_records`, and raw for streams groups."""

    key: GroupRecordKey | OtherGroupKey
    value: Any


class LoadedPartition(NamedTuple):
    """The state that a partition's log describes.

    `groups`: the groups with committed or pending offsets. `records`: all other records, in log order.
    `open_transactions`: the (group id, producer id) pairs with pending offsets.
    """

    groups: dict[str, Group]
    records: list[GroupRecord]
    open_transactions: set[tuple[str, int]]


class PartitionScan:
    """Reads one partition's log from `next_offset` on. Any thread may use it, but only one at a time. `name` is for messages."""

    def __init__(self, name: str, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._name = name
        self._offsets: dict[bytes, StoredOffset] = {}
        self._records: dict[bytes, StoredOffset] = {}
        self._pending: dict[int, dict[bytes, StoredOffset]] = {}

    def feed(self, data: bytes) -> None:
        """Read the next whole batches. Raises CorruptBatch if they cannot be read; the scan is then unusable."""
        try:
            self._feed(data)
        except IndexError:
            raise CorruptBatch(0, f"a batch at or after offset {self.next_offset} is truncated") from None

    def _feed(self, data: bytes) -> None:
        unpack = _HEADER.unpack_from
        offsets = self._offsets
        position, end = 0, len(data)
        base_offset = last_delta = -1
        while position < end:
            if end - position < HEADER_SIZE or data[position + 16] != CURRENT_MAGIC:
                position, base_offset, last_delta = self._feed_legacy(data, position)
                continue
            base_offset, length, _, attributes, last_delta, producer_id, count = unpack(data, position)
            following = position + LOG_OVERHEAD + length
            if length < HEADER_SIZE - LOG_OVERHEAD or following > end:
                raise CorruptBatch(position, f"batch length is {length}, {end - position} bytes are left")
            at = position + HEADER_SIZE
            # Fast path, for nearly all batches: one short plain record without headers.
            if count == 1 and not attributes & (CODEC_MASK | CONTROL_FLAG):
                at += 1 if data[at] < 0x80 else 2
                key_size = data[at + 3]
                key_start = at + 4
                if key_size >= 0x80:
                    key_size = key_size & 0x7F | data[key_start] << 7
                    key_start += 1
                key_end = key_start + (key_size >> 1)
                value_size = data[key_end] if key_end < following else 0x81
                value_end = key_end + 1 + (value_size >> 1)
                if (
                    # attributes and both deltas are 0; key and value are not null; the value's size has one byte
                    not (data[at] | data[at + 1] | data[at + 2] | key_size & 1 | value_size & 0x81)
                    and value_end + 1 == following
                    and not data[value_end]
                    and data[key_start : key_start + 2] == _OFFSET_COMMIT
                ):
                    if attributes & TRANSACTIONAL_FLAG:
                        pending = self._pending.setdefault(producer_id, {})
                        pending[data[key_start:key_end]] = (data[key_end + 1 : value_end], base_offset)
                    else:
                        offsets[data[key_start:key_end]] = (data[key_end + 1 : value_end], base_offset)
                    position = following
                    continue
            elif attributes & CONTROL_FLAG and data[at : at + 8] == _MARKER_FRONT:
                self._end_transaction(producer_id, is_commit=data[at + 8] == COMMIT)
                position = following
                continue
            if count:
                self._feed_batch(data, position, parse_header(data, position))
            position = following
        self.next_offset = max(self.next_offset, base_offset + last_delta + 1)

    def _feed_legacy(self, data: bytes, position: int) -> tuple[int, int, int]:
        """Read a message of magic 0 or 1; return the position after it, its base offset and last offset delta."""
        first = next(iter_headers(data, position), None)
        if first is None:
            raise CorruptBatch(position, f"the batch is truncated, {len(data) - position} bytes are left")
        header = first[1]
        self._feed_records(data, position, self._offsets)
        return position + header.size, header.base_offset, header.last_offset_delta

    def _feed_batch(self, data: bytes, position: int, header: BatchHeader) -> None:
        if header.is_control:
            for record in iter_records(data, position):
                self._end_transaction(header.producer_id, is_commit=parse_control_type(record.key) == COMMIT)
            return
        target = self._pending.setdefault(header.producer_id, {}) if header.is_transactional else self._offsets
        payload = records_payload(data, position, header, max_bytes=MAX_DECOMPRESSED_BYTES)
        try:
            is_plain = self._feed_plain(payload, header, target)
        except IndexError:  # not the usual form, such as a tombstone that has a time delta since it was cleaned
            is_plain = False
        if not is_plain:
            self._feed_records(data, position, target)

    def _feed_plain(self, payload: bytes, header: BatchHeader, target: dict[bytes, StoredOffset]) -> bool:
        """Read offsets from records of the usual form. Return False, or raise IndexError, if a record has another form.

        The caller can then read the whole batch again, because the last record of a key wins.
        """
        base_offset = header.base_offset
        position = 0
        for _ in range(header.record_count):
            size = payload[position]
            position += 1
            if size >= 0x80:
                size = size & 0x7F | payload[position] << 7
                position += 1
            following = position + (size >> 1)
            # The attributes and the time delta come first. Both are 0, as all records of a coordinator's batch share a timestamp.
            delta = payload[position + 2]
            at = position + 3
            if delta >= 0x80:
                delta = delta & 0x7F | payload[at] << 7
                at += 1
            key_size = payload[at]
            at += 1
            if key_size >= 0x80:
                key_size = key_size & 0x7F | payload[at] << 7
                at += 1
            key_end = at + (key_size >> 1)
            value_size = payload[key_end]
            value_end = key_end + 1 + (value_size >> 1)
            if (
                payload[position] | payload[position + 1] | (size | delta | key_size) & 1 | value_size & 0x81
                or max(size, delta, key_size) >= 1 << 14
                or value_end + 1 != following
                or payload[value_end]
                or payload[at : at + 2] != _OFFSET_COMMIT
            ):
                return False
            target[payload[at:key_end]] = (payload[key_end + 1 : value_end], base_offset + (delta >> 1))
            position = following
        return position == len(payload)

    def _feed_records(self, data: bytes, position: int, target: dict[bytes, StoredOffset]) -> None:
        """Read a batch of any magic, because batches from before Kafka 0.11 may still exist."""
        for record in iter_records(data, position, max_bytes=MAX_DECOMPRESSED_BYTES):
            key, value = record.key, record.value
            if key is None or len(key) < 2:
                raise CorruptBatch(position, f"the record at offset {record.offset} has no key")
            if key[0] or key[1] > 1:
                # Keep the same records as compaction: the latest of each key, in log order, without deleted keys.
                self._records.pop(key, None)
                if value is not None:
                    self._records[key] = (value, record.offset)
                continue
            key = _OFFSET_COMMIT + key[2:]
            if value is not None:
                target[key] = (value, record.offset)
                continue
            self._offsets.pop(key, None)
            for pending in self._pending.values():
                pending.pop(key, None)

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        pending = self._pending.pop(producer_id, None)
        if pending is None or not is_commit:
            return
        for key, stored in pending.items():
            present = self._offsets.get(key)
            if present is None or present[1] < stored[1]:
                self._offsets[key] = stored

    def finish(self) -> LoadedPartition:
        """Return the state that the log describes. Raises CorruptBatch if a key or value is corrupt. Call only once."""
        groups: dict[str, Group] = {}
        # The keys of one topic's partitions in one group share a prefix.
        by_front: dict[bytes, dict[int, StoredOffset]] = {}
        unpack_partition = _PARTITION.unpack_from
        offsets = self._offsets
        while offsets:
            key, stored = offsets.popitem()
            value = stored[0]
            # Most values have the version that Diamant writes, and short metadata. One check shows that these can be decoded.
            size = len(value)
            if (
                not _V4_SIZE <= size < _V4_SIZE + 0x7F
                or value[0]
                or value[1] != 4
                or value[14] != size - _V4_SIZE + 1
                or value[-19:-16] != _TOPIC_ID_TAG
                or (size > _V4_SIZE and not value[15:-27].isascii())
            ):
                _check_value(stored)
            front = key[:-4]
            partitions = by_front.get(front)
            if partitions is None:
                group_id, topic, _ = _parse_offset_key(key, stored[1])
                group = groups.get(group_id)
                if group is None:
                    group = groups[group_id] = Group(group_id)
                partitions = group.offsets.committed[topic] = by_front[front] = {}
            partitions[unpack_partition(key, len(key) - 4)[0]] = stored
        open_transactions = set()
        for producer_id, pending in self._pending.items():
            for key, stored in pending.items():
                _check_value(stored)
                group_id, topic, partition = _parse_offset_key(key, stored[1])
                group = groups.get(group_id)
                if group is None:
                    group = groups[group_id] = Group(group_id)
                group.offsets.put_pending(producer_id, topic, partition, stored)
                open_transactions.add((group_id, producer_id))
        return LoadedPartition(groups, list(self._group_records()), open_transactions)

    def _group_records(self) -> Iterator[GroupRecord]:
        unknown_count = 0
        for key, (value, offset) in self._records.items():
            try:
                parsed = parse_key(key)
                if parsed is not None:
                    yield GroupRecord(parsed, parse_value(parsed, value))
                elif (other := parse_other_key(key)) is not None:
                    yield GroupRecord(other, value)
                else:
                    unknown_count += 1
            except CorruptBatch as error:
                raise CorruptBatch(0, f"the record at offset {offset}: {error.reason}") from None
        if unknown_count:
            logger.warning("%s: ignored %d records of unknown types", self._name, unknown_count)


def _parse_offset_key(key: bytes, offset: int) -> OffsetCommitKey:
    """Parse the key of the record at `offset`. Raises CorruptBatch, but without the key, as keys must not be logged."""
    try:
        parsed = parse_key(key)
    except CorruptBatch as error:
        raise CorruptBatch(0, f"the record at offset {offset}: {error.reason}") from None
    assert isinstance(parsed, OffsetCommitKey)
    expected = 10 + len(parsed.group_id.encode()) + len(parsed.topic.encode())
    if len(key) != expected:
        raise CorruptBatch(0, f"the record at offset {offset}: its key has {len(key)} bytes, expected {expected}")
    return parsed


def _check_value(stored: StoredOffset) -> None:
    """Raise CorruptBatch unless the value can be decoded later."""
    value, offset = stored
    try:
        parse_offset_commit_value(value)
    except CorruptBatch as error:
        raise CorruptBatch(0, f"the record at offset {offset}: {error.reason}") from None


FIRST_VERSION_WITH_TOPIC_ID = 4
"""The first version of OffsetCommitValue with a topic id."""

_NO_TOPIC = UUID(int=0)


async def scanned(log: Log, buffer_size: int) -> PartitionScan:
    """Scan a log up to its current end, `buffer_size` bytes at a time. Raises CorruptBatch, OSError, KafkaError."""
    scan = PartitionScan(f"{log.topic}-{log.partition}", log.log_start_offset)
    while scan.next_offset < log.log_end_offset:
        offset = max(scan.next_offset, log.log_start_offset)
        result = log.read(offset, buffer_size, isolation_level=0, min_one_message=True)
        if not result.slices:
            break  # compaction has left nothing from here to the end
        await to_thread(_feed, scan, result.slices)
    return scan


async def finished(scan: PartitionScan) -> LoadedPartition:
    """Run `scan.finish()` in a thread and return its result. Raises CorruptBatch."""
    return await to_thread(scan.finish)


async def left_behind(loaded: LoadedPartition, topic_ids: Mapping[str, UUID]) -> list[tuple[Group, str, int]]:
    """Return the offsets of deleted topics, including those whose name is now used by another topic.

    Such offsets are left if the broker was killed before it could remove them. `topic_ids`: the current ids, by name.
    """
    return await to_thread(_left_behind, loaded, topic_ids)


def _left_behind(loaded: LoadedPartition, topic_ids: Mapping[str, UUID]) -> list[tuple[Group, str, int]]:
    left = []
    for group in loaded.groups.values():
        for topic, partitions in group.offsets.committed.items():
            topic_id = topic_ids.get(topic, _NO_TOPIC)
            ending = topic_id.bytes  # A value with this id ends in its bytes: comparing them is faster than parsing.
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
