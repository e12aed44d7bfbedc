"""Produce (key 0): the request decoder and the response encoder, versions 3 to 13.

Request, version 3-8 (9+ is the same in the flexible encoding, 13 has the topic's id in place of its name):

    transactional_id  nullable string
    acks              int16
    timeout_ms        int32
    topics            array of
      name            string            [13+: topic_id uuid]
      partitions      array of
        index         int32
        records       nullable bytes

Response:

    topics            array of
      name            string            [13+: topic_id uuid]
      partitions      array of
        index int32, error_code int16, base_offset int64, log_append_time_ms int64,
        [5+: log_start_offset int64],
        [8+: record_errors array of (int32, nullable string), error_message nullable string]
    throttle_time_ms  int32

Hand-written because this is the hot path: records are slices of the request's body, not copies. From version 10 on, a leadership
error comes with tagged fields for the new leader and its endpoint (`leaders.py`); a single node never returns such an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.leaders import NO_TAGS, encode_current_leader, encode_node_endpoints
from diamant.protocol.primitives import (
    INT32,
    MAX_ELEMENTS,
    encode_compact_string,
    encode_string,
    encode_uuid,
    encode_uvarint,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tags,
)

FIRST_FLEXIBLE = 9
FIRST_WITH_TOPIC_ID = 13


class ProducePartition(NamedTuple):
    """A partition's records: a slice of the request's body, writable if the body is; None if the client sent null."""

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """A topic to produce to. In version 13 it has a topic id (None if zero) and no name, before that only a name."""

    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducePartitionResult(NamedTuple):
    """The result for one partition. `record_errors` (8+) has (index within the batch, message or None) of each refused record."""

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """The leader and its epoch (10+), if this broker is not the leader."""


class ProduceTopicResult(NamedTuple):
    """The result for one topic. `name` is used up to version 12, `topic_id` from version 13 on."""

    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartitionResult]


_new = tuple.__new__  # makes a named tuple in two thirds of the time that calling its class takes

_ACKS_TIMEOUT = Struct(">hi")
_INDEX_LENGTH = Struct(">ii")
_INT32_AT = INT32.unpack_from


def decode_produce_request(version: int, body: memoryview) -> ProduceRequest:
    """Decode a request of version 3 to 13. Raises ProtocolError if the body is not exactly one such request."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Produce v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> ProduceRequest:
    is_flexible, has_topic_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_ID
    read_text = read_compact_string if is_flexible else read_string
    read_count = read_compact_array_length if is_flexible else read_array_length
    end = len(body)
    transactional_id, position = read_text(body, 0, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    topic_count, position = read_count(body, position + 6, end)
    topics = []
    total = 0
    name: str | None = None
    topic_id: UUID | None = None
    for _ in range(topic_count):
        if has_topic_id:
            topic_id, position = read_uuid(body, position, end)
        else:
            name, position = read_text(body, position, end)
            if name is None:
                raise ProtocolError(f"topic name is null before position {position}")
        count, position = read_count(body, position, end)
        total += count
        if total > MAX_ELEMENTS:
            raise ProtocolError(f"more than {MAX_ELEMENTS} partitions")
        partitions = []
        for _ in range(count):
            if is_flexible:
                (index,) = _INT32_AT(body, position)
                length, position = read_uvarint(body, position + 4)
                length -= 1
            else:
                index, length = _INDEX_LENGTH.unpack_from(body, position)
                position += 8
            if length >= 0:
                stop = position + length
                if stop > end:
                    raise ProtocolError(f"records of {length} bytes at {position}, but {end - position} bytes are left")
                partitions.append(_new(ProducePartition, (index, body[position:stop])))
                position = stop
            elif length == -1:
                partitions.append(ProducePartition(index, None))
            else:
                raise ProtocolError(f"records of {length} bytes at {position}, expected -1 (null) or more")
            if is_flexible:
                position = position + 1 if body[position] == 0 else skip_tags(body, position, end)
        topics.append(_new(ProduceTopic, (name, topic_id, partitions)))
        if is_flexible:
            position = position + 1 if body[position] == 0 else skip_tags(body, position, end)
    if is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request is {position - end} bytes too short")
    return _new(ProduceRequest, (transactional_id, acks, timeout_ms, topics))


# A whole partition without record errors and message. The constants passed for the last fields encode an empty array, a null
# string and an empty block of tagged fields.
_PARTITION_3 = Struct(">ihqq")
_PARTITION_5 = Struct(">ihqqq")
_PARTITION_8 = Struct(">ihqqqih")
_PARTITION_9 = Struct(">ihqqqBBB")


def encode_produce_response(
    version: int,
    topics: list[ProduceTopicResult],
    throttle_time_ms: int = 0,
    node_endpoints: Iterable[tuple[int, str, int, str | None]] = (),
) -> bytes:
    """Encode a response of version 3 to 13, without its header. `node_endpoints`: addresses of the current leaders (10+)."""
    if version >= FIRST_FLEXIBLE:
        tags = encode_node_endpoints(node_endpoints) if node_endpoints else NO_TAGS
        return _encode_flexible(topics, throttle_time_ms, version >= FIRST_WITH_TOPIC_ID, tags)
    parts = [INT32.pack(len(topics))]
    for name, _, partitions in topics:
        if name is None:
            raise ValueError(f"Produce v{version} names topics, but a topic has no name")
        parts.append(encode_string(name))
        parts.append(INT32.pack(len(partitions)))
        for index, error_code, base_offset, append_time, log_start_offset, record_errors, message, _ in partitions:
            if version < 5:
                parts.append(_PARTITION_3.pack(index, error_code, base_offset, append_time))
            elif version < 8:
                parts.append(_PARTITION_5.pack(index, error_code, base_offset, append_time, log_start_offset))
            elif not record_errors and message is None:
                parts.append(_PARTITION_8.pack(index, error_code, base_offset, append_time, log_start_offset, 0, -1))
            else:
                parts.append(_PARTITION_5.pack(index, error_code, base_offset, append_time, log_start_offset))
                parts.append(INT32.pack(len(record_errors)))
                for batch_index, text in record_errors:
                    parts.append(INT32.pack(batch_index) + encode_string(text))
                parts.append(encode_string(message))
    parts.append(INT32.pack(throttle_time_ms))
    return b"".join(parts)


def _encode_flexible(topics: list[ProduceTopicResult], throttle_time_ms: int, has_topic_id: bool, tags: bytes) -> bytes:
    parts = [encode_uvarint(len(topics) + 1)]
    for name, topic_id, partitions in topics:
        if has_topic_id:
            parts.append(encode_uuid(topic_id))
        elif name is None:
            raise ValueError("Produce names topics before version 13, but a topic has no name")
        else:
            parts.append(encode_compact_string(name))
        parts.append(encode_uvarint(len(partitions) + 1))
        for index, error_code, base_offset, append_time, log_start_offset, record_errors, message, leader in partitions:
            if not record_errors and message is None and leader is None:
                parts.append(_PARTITION_9.pack(index, error_code, base_offset, append_time, log_start_offset, 1, 0, 0))
                continue
            parts.append(_PARTITION_5.pack(index, error_code, base_offset, append_time, log_start_offset))
            parts.append(encode_uvarint(len(record_errors) + 1))
            for batch_index, text in record_errors:
                parts.append(INT32.pack(batch_index) + encode_compact_string(text) + b"\x00")
            parts.append(encode_compact_string(message))
            parts.append(NO_TAGS if leader is None else b"\x01" + encode_current_leader(0, leader))
        parts.append(b"\x00")
    parts.append(INT32.pack(throttle_time_ms) + tags)
    return b"".join(parts)
