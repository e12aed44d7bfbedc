"""Batches of coordinators: records with keys, without headers, all of one time, made of nothing but bytes.

    payload = encode_records([(key, value), ...])            a value of None is a tombstone
    batch = build_coordinator_batch(payload, count, timestamp=..., base_sequence=0)

and for committed offsets, by far the most frequent, a whole column at a time:

    encoded = encode_offset_records("group", topics, commit_timestamp, expire_timestamp)
    encoded.payload, encoded.record_count, encoded.values           values: by topic, as `group_records` describes them

The same bytes that `records.build_batch` makes of `Record` objects, for a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from crc32c import crc32c

from diamant.protocol.batches import compression
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
)
from diamant.protocol.internal_topics.group_records import (
    NO_TIMESTAMP,
    encode_offset_commit_value,
    offset_commit_key_front,
)
from diamant.protocol.messages.offset_columns import TopicOffsets
from diamant.protocol.primitives import INT32, INT64, encode_uvarint

RECORD_OVERHEAD_BYTES = 130
"""Of a record that is remembered, beside the names in its key."""
MAX_REMEMBERED_BYTES = 16 * 1024
"""Of the records of some partitions, roughly. 1,024 times is remembered what stays the same in them, 16 MB at most."""

_NOT_COVERED = Struct(">qiibI")
_COVERED = Struct(">hiqqqhii")
"""The header's fields before and from the attributes on, where the checksum begins."""
_OFFSET_VALUE = Struct(">hqi")
_OFFSET_VALUE_VERSION = b"\0\4"


def encode_records(records: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """Return the records of a batch that begins with the first of them, without its header."""
    parts: list[bytes] = []
    for delta, (key, value) in enumerate(records):
        content = b"".join(
            (
                b"\0\0",  # attributes, time delta
                _varint(delta),
                _varint(len(key)),
                key,
                b"\1" if value is None else _varint(len(value)) + value,
                b"\0",  # no headers
            )
        )
        parts += (_varint(len(content)), content)
    return b"".join(parts)


def build_coordinator_batch(
    payload: bytes,
    count: int,
    *,
    timestamp: int,
    codec: int = compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """Return the batch of `count` (1 or more) records with consecutive offsets from 0 on; transactional if it has a producer."""
    attributes = codec if producer_id == NO_PRODUCER_ID else codec | TRANSACTIONAL_FLAG
    if codec != compression.NONE:
        payload = bytes(compression.compress(codec, payload))
    last_delta = count - 1
    covered = _COVERED.pack(
        attributes, last_delta, timestamp, timestamp, producer_id, producer_epoch, base_sequence, count
    )
    length = len(payload) + HEADER_SIZE - LOG_OVERHEAD
    crc = crc32c(payload, crc32c(covered))
    batch = bytearray(_NOT_COVERED.pack(0, length, NO_PARTITION_LEADER_EPOCH, CURRENT_MAGIC, crc))
    batch += covered
    batch += payload
    return batch


class EncodedOffsets(NamedTuple):
    """The records of a commit: `payload` as `encode_records` gives it, `values` within them by topic and row."""

    payload: bytes
    record_count: int
    values: list[Sequence[bytes]]


def encode_offset_records(
    group_id: str, topics: Sequence[TopicOffsets], commit_timestamp: int, expire_timestamp: int = NO_TIMESTAMP
) -> EncodedOffsets:
    """Encode committed offsets; times are ms. OverflowError for texts that a record cannot hold (32,767 bytes)."""
    payloads = []
    values = []
    count = 0
    for topic in topics:
        if topic.metadata is None and expire_timestamp == NO_TIMESTAMP:
            payload, its_values = _encode_bare_offsets(group_id, topic, commit_timestamp, count)
        else:
            payload, its_values = _encode_offsets(group_id, topic, commit_timestamp, expire_timestamp, count)
        payloads.append(payload)
        values.append(its_values)
        count += len(its_values)
    return EncodedOffsets(payloads[0] if len(payloads) == 1 else b"".join(payloads), count, values)


def _encode_offsets(
    group_id: str, topic: TopicOffsets, commit_timestamp: int, expire_timestamp: int, first_delta: int
) -> tuple[bytes, Sequence[bytes]]:
    """The records of a topic, and their values."""
    _, topic_id, partitions, offsets, leader_epochs, metadata = topic
    values = [
        encode_offset_commit_value(*row, commit_timestamp, expire_timestamp, topic_id)
        for row in zip(offsets, leader_epochs, repeat("", len(offsets)) if metadata is None else metadata, strict=True)
    ]
    fronts = _fronts(group_id, topic.name, partitions, map(len, values), first_delta)
    return b"".join([front + value + b"\0" for front, value in zip(fronts, values, strict=True)]), values


def _encode_bare_offsets(
    group_id: str, topic: TopicOffsets, commit_timestamp: int, first_delta: int
) -> tuple[bytes, Sequence[bytes]]:
    """As `_encode_offsets`, without metadata and an expiry of its own: then only the numbers differ from an earlier commit."""
    name, topic_id, partitions, offsets, leader_epochs, _ = topic
    tail = b"\1" + INT64.pack(commit_timestamp) + (b"\0" if topic_id is None else b"\1\0\x10" + topic_id.bytes)
    count = len(partitions)
    if count * (len(group_id) + len(name) + RECORD_OVERHEAD_BYTES) > MAX_REMEMBERED_BYTES:
        return _encode_offsets(group_id, topic, commit_timestamp, NO_TIMESTAMP, first_delta)
    records = _bare_records(group_id, name, tuple(partitions), len(tail), first_delta)
    fields = records.fields.copy()
    fields[1::4] = offsets
    fields[2::4] = leader_epochs
    fields[3::4] = [tail] * count
    payload = records.pack(*fields)
    return payload, records.unpack_values(payload)


class _BareRecords(NamedTuple):
    """The records of some partitions. `fields` of each: front, offset, leader epoch, and the rest of its value."""

    fields: list[Any]
    pack: Callable[..., bytes]
    unpack_values: Callable[[bytes], tuple[bytes, ...]]


@lru_cache(maxsize=1024)
def _bare_records(
    group_id: str, topic: str, partitions: tuple[int, ...], tail_size: int, first_delta: int
) -> _BareRecords:
    value_size = _OFFSET_VALUE.size + tail_size
    fronts = [
        front + _OFFSET_VALUE_VERSION
        for front in _fronts(group_id, topic, partitions, repeat(value_size, len(partitions)), first_delta)
    ]
    fields: list[Any] = []
    for front in fronts:
        fields += (front, 0, 0, b"")
    return _BareRecords(fields, *_bare_structs(tuple(map(len, fronts)), tail_size))


@lru_cache(maxsize=256)
def _bare_structs(
    front_sizes: tuple[int, ...], tail_size: int
) -> tuple[Callable[..., bytes], Callable[[bytes], tuple[bytes, ...]]]:
    """Groups with names of the same length have these in common. The last byte of a record: it has no headers."""
    version_size = len(_OFFSET_VALUE_VERSION)
    value_size = _OFFSET_VALUE.size + tail_size
    records = Struct(">" + "".join([f"{size}sqi{tail_size}sx" for size in front_sizes]))
    values = Struct(">" + "".join([f"{size - version_size}x{value_size}sx" for size in front_sizes]))
    return records.pack, values.unpack


def _fronts(
    group_id: str, topic: str, partitions: Iterable[int], value_sizes: Iterable[int], first_delta: int
) -> Iterator[bytes]:
    """Yield the bytes before the values of a topic in their records."""
    key_front = offset_commit_key_front(group_id, topic)
    key_size = len(key_front) + 4
    key_field = _varint(key_size) + key_front
    for delta, (partition, value_size) in enumerate(zip(partitions, value_sizes, strict=True), first_delta):
        front = b"".join((b"\0\0", _varint(delta), key_field, INT32.pack(partition), _varint(value_size)))
        yield _varint(len(front) + value_size + 1) + front


def _varint(value: int) -> bytes:
    """A length or a delta (0 or more) as records have them."""
    return encode_uvarint(value << 1)
