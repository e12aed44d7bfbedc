"""Fetch (key 1): the request decoder and the response encoder, versions 4 to 18.

Request (12+ in the flexible encoding):

    replica_id        int32                            [up to 14; 15+: within the tagged field 1]
    max_wait_ms       int32
    min_bytes         int32
    max_bytes         int32
    isolation_level   int8
    session_id, session_epoch  int32, int32            [7+]
    topics            array of
      name            string                           [13+: topic_id uuid]
      partitions      array of
        index int32, [9+: current_leader_epoch int32], fetch_offset int64, [12+: last_fetched_epoch int32],
        [5+: log_start_offset int64], max_bytes int32
    forgotten_topics  array of (name or topic_id, array of int32)   [7+]
    rack_id           string                           [11+]

Response:

    throttle_time_ms  int32
    error_code, session_id  int16, int32               [7+]
    topics            array of
      name            string                           [13+: topic_id uuid]
      partitions      array of
        index int32, error_code int16, high_watermark int64, last_stable_offset int64, [5+: log_start_offset int64],
        aborted_transactions nullable array of (producer_id int64, first_offset int64),
        [11+: preferred_read_replica int32], records bytes,
        [12+: tagged field 0: diverging epoch int32, end offset int64], [16+: tagged field 1: current leader]

An encoded response is a list of buffers and of chunks of record data from storage (in memory, or a range of a file), which this
module does not read. Without records, `records` is empty but never null: librdkafka drops a response with null records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple
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

FIRST_FLEXIBLE = 12
_SAME_AGAIN = b"\1\1\1\0"  # the rest of most requests in a session: no topics, none forgotten, no rack, no tags
FIRST_WITH_TOPIC_ID = 13


class FetchPartition(NamedTuple):
    """A partition to fetch from. Fields that the version lacks are -1."""

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """A topic to fetch from. From version 13 on it has a topic id (None if zero) and no name, before that only a name."""

    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """A topic's partitions to remove from the fetch session."""

    name: str | None
    topic_id: UUID | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    """A request. `replica_id` is -1 for consumers; `session_id` 0 and `session_epoch` -1 mean that there is no session."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics: list[ForgottenTopic]
    rack_id: str
    replica_id: int = -1


class FetchPartitionResult(NamedTuple):
    """The result for one partition. `records` are chunks in order, of `records_size` bytes in total.

    `aborted_transactions`: (producer id, first offset), in ascending order of offset; None (null) for read_uncommitted.
    `diverging_epoch`: (epoch, end offset), 12+ only. `current_leader`: (broker, epoch), 16+ only. `preferred_read_replica`: 11+.
    """

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    records: tuple[Any, ...] = ()
    records_size: int = 0
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class FetchTopicResult(NamedTuple):
    """The result for one topic. `name` is used up to version 12, `topic_id` from version 13 on."""

    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartitionResult]


_new = tuple.__new__  # makes a named tuple in two thirds of the time that calling its class takes

# The fields before the topics, beginning with replica_id (up to 14) or max_wait_ms (15+).
_REQUEST_4 = Struct(">iiiib")
_REQUEST_7 = Struct(">iiiibii")
_REQUEST_15 = Struct(">iiibii")

_PARTITION_REQUEST_4 = Struct(">iqi")
_PARTITION_REQUEST_5 = Struct(">iqqi")
_PARTITION_REQUEST_9 = Struct(">iiqqi")
_PARTITION_REQUEST_12 = Struct(">iiqiqi")


def decode_fetch_request(version: int, body: memoryview) -> FetchRequest:
    """Decode a request of version 4 to 18. Raises ProtocolError if the body is not exactly one such request."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Fetch v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> FetchRequest:
    replica_id, session_id, session_epoch = -1, 0, -1
    if version >= 15:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _REQUEST_15.unpack_from(body)
        position = _REQUEST_15.size
    elif version >= 7:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _REQUEST_7.unpack_from(body)
        )
        position = _REQUEST_7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _REQUEST_4.unpack_from(body)
        position = _REQUEST_4.size
    is_flexible = version >= FIRST_FLEXIBLE
    if is_flexible and body[position:] == _SAME_AGAIN:
        return _new(
            FetchRequest,
            (max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, [], [], "", replica_id),
        )
    end = len(body)
    topics, total, position = _read_topics(version, body, position, end)
    forgotten_topics: list[ForgottenTopic] = []
    if is_flexible and body[position] == 1:  # no forgotten topics
        position += 1
    elif version >= 7:
        forgotten_topics, position = _read_forgotten(version, body, position, end, total)
    rack_id: str | None = ""
    if version >= 11:
        rack_id, position = (
            read_compact_string(body, position, end) if is_flexible else read_string(body, position, end)
        )
    if rack_id is None:
        raise ProtocolError("rack id is null")
    if version >= 15 and body[position]:
        replica_id, position = _read_tags(body, position, end)
    elif is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request is {position - end} bytes too short")
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten_topics,
        rack_id,
        replica_id,
    )


def _read_topics(version: int, body: memoryview, position: int, end: int) -> tuple[list[FetchTopic], int, int]:
    """Read the topics; return them, the number of their partitions, and the position after them."""
    is_flexible = version >= FIRST_FLEXIBLE
    read_count = read_compact_array_length if is_flexible else read_array_length
    row = _PARTITION_REQUEST_12
    if not is_flexible:
        row = _PARTITION_REQUEST_9 if version >= 9 else _PARTITION_REQUEST_5 if version >= 5 else _PARTITION_REQUEST_4
    unpack_partition, partition_size = row.unpack_from, row.size
    topic_count, position = read_count(body, position, end)
    topics = []
    total = 0
    name: str | None = None
    topic_id: UUID | None = None
    for _ in range(topic_count):
        if version >= FIRST_WITH_TOPIC_ID:
            topic_id, position = read_uuid(body, position, end)
        else:
            name, position = _read_name(body, position, end, is_flexible)
        count, position = read_count(body, position, end)
        total += count
        if total > MAX_ELEMENTS:
            raise ProtocolError(f"more than {MAX_ELEMENTS} partitions")
        partitions = []
        for _ in range(count):
            fields = unpack_partition(body, position)
            position += partition_size
            if is_flexible:
                partitions.append(_new(FetchPartition, fields))
                position = position + 1 if body[position] == 0 else skip_tags(body, position, end)
                continue
            leader_epoch = start = -1
            if version >= 9:
                index, leader_epoch, offset, start, limit = fields
            elif version >= 5:
                index, offset, start, limit = fields
            else:
                index, offset, limit = fields
            partitions.append(_new(FetchPartition, (index, leader_epoch, offset, -1, start, limit)))
        topics.append(_new(FetchTopic, (name, topic_id, partitions)))
        if is_flexible:
            position = position + 1 if body[position] == 0 else skip_tags(body, position, end)
    return topics, total, position


def _read_name(body: memoryview, position: int, end: int, is_flexible: bool) -> tuple[str, int]:
    name, position = read_compact_string(body, position, end) if is_flexible else read_string(body, position, end)
    if name is None:
        raise ProtocolError(f"topic name is null before position {position}")
    return name, position


def _read_forgotten(
    version: int, body: memoryview, position: int, end: int, total: int
) -> tuple[list[ForgottenTopic], int]:
    """Read the forgotten topics; return them, and the position after them. `total` partitions have been read before."""
    is_flexible = version >= FIRST_FLEXIBLE
    read_count = read_compact_array_length if is_flexible else read_array_length
    name: str | None = None
    topic_id: UUID | None = None
    forgotten_topics = []
    topic_count, position = read_count(body, position, end)
    for _ in range(topic_count):
        if version >= FIRST_WITH_TOPIC_ID:
            topic_id, position = read_uuid(body, position, end)
        else:
            name, position = _read_name(body, position, end, is_flexible)
        count, position = read_count(body, position, end)
        total += count
        if total > MAX_ELEMENTS:
            raise ProtocolError(f"more than {MAX_ELEMENTS} partitions")
        indexes = list(Struct(f">{count}i").unpack_from(body, position))
        position += 4 * count
        if is_flexible:
            position = skip_tags(body, position, end)
        forgotten_topics.append(ForgottenTopic(name, topic_id, indexes))
    return forgotten_topics, position


def _read_tags(body: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read the tagged fields of a request (15+); return the replica id in tag 1 (replica state), or -1, and the next position."""
    replica_id = -1
    count, position = read_uvarint(body, position)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        if size > end - position:
            raise ProtocolError(f"tagged field of {size} bytes at {position}, but {end - position} bytes are left")
        if tag == 1:
            if size < 4:
                raise ProtocolError(f"replica state of {size} bytes, expected at least 4")
            (replica_id,) = INT32.unpack_from(body, position)
        position += size
    return replica_id, position


_RESPONSE_7 = Struct(">ihi")
_EMPTY_RESPONSE = Struct(">ihiBB")  # flexible, without topics

# A partition up to its aborted transactions.
_PARTITION_4 = Struct(">ihqq")
_PARTITION_5 = Struct(">ihqqq")
# The same with null for the aborted transactions, then the preferred read replica (11+) and the records' length (up to 11).
_QUIET_PARTITION_4 = Struct(">ihqqii")
_QUIET_PARTITION_5 = Struct(">ihqqqii")
_QUIET_PARTITION_11 = Struct(">ihqqqiii")
_QUIET_PARTITION_12 = Struct(">ihqqqBi")
_ABORTED = Struct(">qq")
_ABORTED_COMPACT = Struct(">qqB")
_DIVERGING_EPOCH = Struct(">BBBiqB")


def encode_fetch_response(
    version: int,
    topics: Sequence[FetchTopicResult],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_time_ms: int = 0,
    node_endpoints: Iterable[tuple[int, str, int, str | None]] = (),
) -> list[Any]:
    """Encode a response of version 4 to 18, without its header, as buffers and record chunks in order.

    The chunks are the items of `FetchPartitionResult.records`, unchanged. `node_endpoints` are the leaders' addresses (16+).
    """
    if version >= FIRST_FLEXIBLE:
        if not topics:
            return [_EMPTY_RESPONSE.pack(throttle_time_ms, error_code, session_id, 1, 0)]
        tags = encode_node_endpoints(node_endpoints) if node_endpoints else NO_TAGS
        return _encode_flexible(version, topics, error_code, session_id, throttle_time_ms, tags)
    return _encode_classic(version, topics, error_code, session_id, throttle_time_ms)


def _encode_classic(
    version: int, topics: Sequence[FetchTopicResult], error_code: int, session_id: int, throttle_time_ms: int
) -> list[Any]:
    chunks: list[Any] = []
    if version >= 7:
        buffer = bytearray(_RESPONSE_7.pack(throttle_time_ms, error_code, session_id))
    else:
        buffer = bytearray(INT32.pack(throttle_time_ms))
    buffer += INT32.pack(len(topics))
    for name, _, partitions in topics:
        if name is None:
            raise ValueError(f"Fetch v{version} names topics, but a topic has no name")
        buffer += encode_string(name)
        buffer += INT32.pack(len(partitions))
        for index, error, high_watermark, last_stable, log_start, aborted, records, size, _, _, preferred in partitions:
            if aborted is None:
                if version >= 11:
                    buffer += _QUIET_PARTITION_11.pack(
                        index, error, high_watermark, last_stable, log_start, -1, preferred, size
                    )
                elif version >= 5:
                    buffer += _QUIET_PARTITION_5.pack(index, error, high_watermark, last_stable, log_start, -1, size)
                else:
                    buffer += _QUIET_PARTITION_4.pack(index, error, high_watermark, last_stable, -1, size)
            else:
                if version >= 5:
                    buffer += _PARTITION_5.pack(index, error, high_watermark, last_stable, log_start)
                else:
                    buffer += _PARTITION_4.pack(index, error, high_watermark, last_stable)
                buffer += INT32.pack(len(aborted))
                for producer_id, first_offset in aborted:
                    buffer += _ABORTED.pack(producer_id, first_offset)
                if version >= 11:
                    buffer += INT32.pack(preferred)
                buffer += INT32.pack(size)
            if records:
                chunks.append(buffer)
                chunks += records
                buffer = bytearray()
    if buffer:
        chunks.append(buffer)
    return chunks


def _encode_flexible(
    version: int,
    topics: Sequence[FetchTopicResult],
    error_code: int,
    session_id: int,
    throttle_time_ms: int,
    tags: bytes,
) -> list[Any]:
    chunks: list[Any] = []
    buffer = bytearray(_RESPONSE_7.pack(throttle_time_ms, error_code, session_id))
    buffer += encode_uvarint(len(topics) + 1)
    has_topic_id = version >= FIRST_WITH_TOPIC_ID
    for name, topic_id, partitions in topics:
        if has_topic_id:
            buffer += encode_uuid(topic_id)
        elif name is None:
            raise ValueError(f"Fetch v{version} names topics, but a topic has no name")
        else:
            buffer += encode_compact_string(name)
        buffer += encode_uvarint(len(partitions) + 1)
        for (
            index,
            error,
            high_watermark,
            last_stable,
            log_start,
            aborted,
            records,
            size,
            diverging,
            leader,
            preferred,
        ) in partitions:
            if aborted is None:
                buffer += _QUIET_PARTITION_12.pack(index, error, high_watermark, last_stable, log_start, 0, preferred)
            else:
                buffer += _PARTITION_5.pack(index, error, high_watermark, last_stable, log_start)
                buffer += encode_uvarint(len(aborted) + 1)
                for producer_id, first_offset in aborted:
                    buffer += _ABORTED_COMPACT.pack(producer_id, first_offset, 0)
                buffer += INT32.pack(preferred)
            buffer += encode_uvarint(size + 1)
            if records:
                chunks.append(buffer)
                chunks += records
                buffer = bytearray()
            if leader is not None:
                buffer += b"\x01" + encode_current_leader(1, leader)
            elif diverging is None:
                buffer.append(0)
            else:
                # One tagged field: tag 0 with 13 bytes, the last of which is an empty block of tagged fields.
                buffer += _DIVERGING_EPOCH.pack(1, 0, 13, *diverging, 0)
        buffer.append(0)
    buffer += tags
    chunks.append(buffer)
    return chunks
