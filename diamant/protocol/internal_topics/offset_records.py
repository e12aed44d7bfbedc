"""Records of committed offsets, encoded a whole column at a time.

    encoded = encode_offset_records("group", topics, commit_timestamp, expire_timestamp)
    encoded.payload, encoded.record_count, encoded.values           values: by topic, in the format of `group_records`

`coordinator_batch` makes batches of the payload. They have the same bytes as if `batch_records.build_batch` had built them from
`Record` objects, but are built in a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from diamant.protocol.internal_topics.coordinator_batch import record_varint
from diamant.protocol.internal_topics.group_records import (
    NO_TIMESTAMP,
    encode_offset_commit_value,
    offset_commit_key_front,
)
from diamant.protocol.messages.offset_columns import TopicOffsets
from diamant.protocol.primitives import INT32, INT64

RECORD_OVERHEAD_BYTES = 130
"""Memory that a cached record takes, excluding the names in its key."""
MAX_REMEMBERED_BYTES = 16 * 1024
"""Approximate maximum size of a cache entry: the constant parts of one topic's records. The cache's 1,024 entries take at most
16 MB."""

_OFFSET_VALUE = Struct(">hqi")
_OFFSET_VALUE_VERSION = b"\0\4"


class EncodedOffsets(NamedTuple):
    """The records of a commit. `payload` has the format of `encode_records`; `values` has their values, by topic and row."""

    payload: bytes
    record_count: int
    values: list[Sequence[bytes]]


def encode_offset_records(
    group_id: str, topics: Sequence[TopicOffsets], commit_timestamp: int, expire_timestamp: int = NO_TIMESTAMP
) -> EncodedOffsets:
    """Encode committed offsets; times are in ms. Raises OverflowError if a string has more than 32,767 bytes."""
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
    """Return the encoded records of a topic, and their values."""
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
    """Like `_encode_offsets`, for offsets without metadata and expiry, whose records differ from earlier ones only in numbers."""
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
    """The cached parts of a topic's records. `fields` has four items for each: front, offset, leader epoch, rest of the value."""

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
    """Return a function that packs records, and one that unpacks their values. Groups with names of equal length share them.

    A record ends with a zero byte, for no headers.
    """
    version_size = len(_OFFSET_VALUE_VERSION)
    value_size = _OFFSET_VALUE.size + tail_size
    records = Struct(">" + "".join([f"{size}sqi{tail_size}sx" for size in front_sizes]))
    values = Struct(">" + "".join([f"{size - version_size}x{value_size}sx" for size in front_sizes]))
    return records.pack, values.unpack


def _fronts(
    group_id: str, topic: str, partitions: Iterable[int], value_sizes: Iterable[int], first_delta: int
) -> Iterator[bytes]:
    """Yield the bytes that precede the value in each record of a topic."""
    key_front = offset_commit_key_front(group_id, topic)
    key_size = len(key_front) + 4
    key_field = record_varint(key_size) + key_front
    for delta, (partition, value_size) in enumerate(zip(partitions, value_sizes, strict=True), first_delta):
        front = b"".join((b"\0\0", record_varint(delta), key_field, INT32.pack(partition), record_varint(value_size)))
        yield record_varint(len(front) + value_size + 1) + front
