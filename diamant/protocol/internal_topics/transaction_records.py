"""Records of `__transaction_state`: the last state of each transactional id (TransactionLogKey, TransactionLogValue).

    key    int16 0, string transactional id

    value, version 0                        version 1 (flexible: compact lengths, tags at each end)
      int16 version                           the same
      int64 producer id                       int64 producer id
      int16 producer epoch                    int16 producer epoch
      int32 timeout, ms                       int32 timeout, ms
      int8  status                            int8  status
      array of partitions, null in Empty      compact array of partitions, null in Empty
        string topic, array of int32            compact string topic, compact array of int32, tags
      int64 last update, ms                   int64 last update, ms
      int64 start, ms                         int64 start, ms
                                              tags: 0 int64 previous producer id, 1 int64 next producer id,
                                                    2 int16 transaction version of the client; defaults are left out

A null value takes the id away. Version 1 is written from `transaction.version` 1 on. Keys of other versions are to be
skipped. Source: TransactionLog, TransactionLogKey.json, TransactionLogValue.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    encode_compact_string,
    encode_string,
    encode_uvarint,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_uvarint,
    skip_tags,
)

KEY_VERSION = 0
NO_PRODUCER_ID = -1

_HEAD = Struct(">hqhib")
_TIMES = Struct(">qq")
_TAGGED_ID = Struct(">BBq")
_TAGGED_VERSION = Struct(">BBh")


class TransactionValue(NamedTuple):
    """The stored state of one transactional id. Times and the timeout are ms, -1 means none.

    `partitions` are (topic, partition indexes); None is Kafka's null, which it writes in state Empty.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: int
    partitions: Sequence[tuple[str, Sequence[int]]] | None
    last_update_ms: int
    start_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0


def encode_key(transactional_id: str) -> bytes:
    """Return the key of an id; OverflowError if it has more than 32767 bytes."""
    return INT16.pack(KEY_VERSION) + encode_string(transactional_id)


def parse_key(key: bytes) -> str | None:
    """Return the transactional id, None for a key of a version that is not known. ProtocolError if it is malformed."""
    view = memoryview(key)
    try:
        (version,) = INT16.unpack_from(view)
        if version != KEY_VERSION:
            return None
        transactional_id, position = read_string(view, 2, len(view))
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"key of {len(key)} bytes: {error}") from error
    if transactional_id is None or position != len(view):
        raise ProtocolError(f"key of {len(key)} bytes: expected one transactional id")
    return transactional_id


def encode_value(value: TransactionValue, version: int) -> bytes:
    """Return the bytes of a value in `version`, 0 or 1."""
    head = _HEAD.pack(version, value.producer_id, value.producer_epoch, value.timeout_ms, value.status)
    times = _TIMES.pack(value.last_update_ms, value.start_ms)
    if version == 0:
        return head + _classic_partitions(value.partitions) + times
    tags = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_TAGGED_ID.pack(0, 8, value.previous_producer_id))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append(_TAGGED_ID.pack(1, 8, value.next_producer_id))
    if value.client_version:
        tags.append(_TAGGED_VERSION.pack(2, 2, value.client_version))
    return b"".join((head, _compact_partitions(value.partitions), times, bytes((len(tags),)), *tags))


def parse_value(data: bytes) -> TransactionValue:
    """Parse a value of version 0 or of 1 and above, read as 1. ProtocolError if it is malformed."""
    view = memoryview(data)
    try:
        version, producer_id, producer_epoch, timeout_ms, status = _HEAD.unpack_from(view)
        if version < 0:
            raise ProtocolError(f"value of {len(data)} bytes has version {version}")
        read = _read_classic_partitions if version == 0 else _read_compact_partitions
        partitions, position = read(view, _HEAD.size)
        last_update_ms, start_ms = _TIMES.unpack_from(view, position)
        value = TransactionValue(producer_id, producer_epoch, timeout_ms, status, partitions, last_update_ms, start_ms)
        return value if version == 0 else _with_tags(value, view, position + _TIMES.size)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"value of {len(data)} bytes: {error}") from error


def _classic_partitions(topics: Iterable[tuple[str, Sequence[int]]] | None) -> bytes:
    if topics is None:
        return INT32.pack(-1)
    parts = [
        encode_string(topic) + INT32.pack(len(indexes)) + Struct(f">{len(indexes)}i").pack(*indexes)
        for topic, indexes in topics
    ]
    return INT32.pack(len(parts)) + b"".join(parts)


def _compact_partitions(topics: Iterable[tuple[str, Sequence[int]]] | None) -> bytes:
    if topics is None:
        return b"\x00"
    parts = [
        b"".join(
            (
                encode_compact_string(topic),
                encode_uvarint(len(indexes) + 1),
                Struct(f">{len(indexes)}i").pack(*indexes),
                b"\x00",
            )
        )
        for topic, indexes in topics
    ]
    return encode_uvarint(len(parts) + 1) + b"".join(parts)


_Topics = list[tuple[str, Sequence[int]]]


def _read_classic_partitions(view: memoryview, position: int) -> tuple[_Topics | None, int]:
    end = len(view)
    if INT32.unpack_from(view, position)[0] == -1:
        return None, position + 4
    count, position = read_array_length(view, position, end)
    topics: _Topics = []
    for _ in range(count):
        topic, position = read_string(view, position, end)
        size, position = read_array_length(view, position, end)
        topics.append(_topic(topic, view, position, size))
        position += 4 * size
    return topics, position


def _read_compact_partitions(view: memoryview, position: int) -> tuple[_Topics | None, int]:
    end = len(view)
    if view[position] == 0:
        return None, position + 1
    count, position = read_compact_array_length(view, position, end)
    topics: _Topics = []
    for _ in range(count):
        topic, position = read_compact_string(view, position, end)
        size, position = read_compact_array_length(view, position, end)
        topics.append(_topic(topic, view, position, size))
        position = skip_tags(view, position + 4 * size, end)
    return topics, position


def _topic(topic: str | None, view: memoryview, position: int, size: int) -> tuple[str, Sequence[int]]:
    if topic is None:
        raise ProtocolError(f"the topic before position {position} is null")
    return topic, Struct(f">{size}i").unpack_from(view, position)


def _with_tags(value: TransactionValue, view: memoryview, position: int) -> TransactionValue:
    count, position = read_uvarint(view, position)
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        if tag == 0:
            value = value._replace(previous_producer_id=INT64.unpack_from(view, position)[0])
        elif tag == 1:
            value = value._replace(next_producer_id=INT64.unpack_from(view, position)[0])
        elif tag == 2:
            value = value._replace(client_version=INT16.unpack_from(view, position)[0])
        position += size
    return value
