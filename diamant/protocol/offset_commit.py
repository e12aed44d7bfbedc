"""OffsetCommit (key 8): the request decoder and the response encoder, versions 2 to 10.

Request (8+ in the flexible encoding):

    group_id             string
    generation           int32                         [9+: or the member's epoch]
    member_id            string
    group_instance_id    nullable string               [7+]
    retention_time_ms    int64                         [2-4]
    topics               array of
      name               string                        [10+: topic_id uuid]
      partitions         array of
        index int32, offset int64, [6+: leader_epoch int32], metadata nullable string

Response:

    throttle_time_ms     int32                         [3+]
    topics               array of
      name               string                        [10+: topic_id uuid]
      partitions         array of index int32, error_code int16

Written by hand because consumers send one every few seconds, with all their partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import (
    INT32,
    INT64,
    encode_compact_string,
    encode_string,
    encode_uuid,
    encode_uvarint,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_uuid,
    skip_tags,
)

FIRST_WITH_THROTTLE_TIME = 3
LAST_WITH_RETENTION_TIME = 4
FIRST_WITH_LEADER_EPOCH = 6
FIRST_WITH_INSTANCE_ID = 7
FIRST_FLEXIBLE = 8
FIRST_WITH_TOPIC_ID = 10

NO_LEADER_EPOCH = -1
NO_RETENTION_TIME_MS = -1

MAX_PARTITIONS = 1_000_000
"""Of one request, so that a few bytes each do not become gigabytes."""

_INDEX_OFFSET = Struct(">iq")
_INDEX_OFFSET_EPOCH = Struct(">iqi")
_RESULT = Struct(">ih")
_FLEXIBLE_RESULT = Struct(">ihb")


class CommittedPartition(NamedTuple):
    """One offset to be committed."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class CommittedTopic(NamedTuple):
    """The offsets of a topic, by `name` or, from version 10 on, by `topic_id` (None: all zero)."""

    name: str
    topic_id: UUID | None
    partitions: list[CommittedPartition]


class OffsetCommitRequest(NamedTuple):
    """A request; what its version does not have is at Kafka's default."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[CommittedTopic]


class CommittedTopicResult(NamedTuple):
    """What became of a topic's offsets: (partition index, error code) each."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[tuple[int, int]]


def decode_offset_commit_request(version: int, body: memoryview) -> OffsetCommitRequest:
    """Decode a request of version 2 to 10; bytes after it are not looked at. Raises ProtocolError."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"OffsetCommit v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> OffsetCommitRequest:
    is_flexible = version >= FIRST_FLEXIBLE
    has_epoch = version >= FIRST_WITH_LEADER_EPOCH
    has_topic_id = version >= FIRST_WITH_TOPIC_ID
    read_text = read_compact_string if is_flexible else read_string
    read_count = read_compact_array_length if is_flexible else read_array_length
    fixed = _INDEX_OFFSET_EPOCH if has_epoch else _INDEX_OFFSET
    end = len(body)
    group_id, position = read_text(body, 0, end)
    (generation,) = INT32.unpack_from(body, position)
    member_id, position = read_text(body, position + 4, end)
    instance_id = None
    if version >= FIRST_WITH_INSTANCE_ID:
        instance_id, position = read_text(body, position, end)
    retention_time_ms = NO_RETENTION_TIME_MS
    if version <= LAST_WITH_RETENTION_TIME:
        (retention_time_ms,) = INT64.unpack_from(body, position)
        position += 8
    topic_count, position = read_count(body, position, end)
    topics = []
    total = 0
    for _ in range(topic_count):
        name: str | None = ""
        topic_id = None
        if has_topic_id:
            topic_id, position = read_uuid(body, position, end)
        else:
            name, position = read_text(body, position, end)
        count, position = read_count(body, position, end)
        total += count
        if total > MAX_PARTITIONS:
            raise ProtocolError(f"more than {MAX_PARTITIONS} partitions")
        partitions = []
        for _ in range(count):
            values = fixed.unpack_from(body, position)
            metadata, position = read_text(body, position + fixed.size, end)
            if is_flexible:
                position = position + 1 if body[position] == 0 else skip_tags(body, position, end)
            epoch = values[2] if has_epoch else NO_LEADER_EPOCH
            partitions.append(CommittedPartition(values[0], values[1], epoch, metadata))
        if is_flexible:
            position = skip_tags(body, position, end)
        if name is None:
            raise ProtocolError(f"topic name is null before position {position}")
        topics.append(CommittedTopic(name, topic_id, partitions))
    if is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request ends {position - end} bytes before its content")
    if group_id is None or member_id is None:
        raise ProtocolError(f"{'group' if group_id is None else 'member'} id is null")
    return OffsetCommitRequest(group_id, generation, member_id, instance_id, retention_time_ms, topics)


def encode_offset_commit_response(version: int, topics: Sequence[CommittedTopicResult]) -> bytes:
    """Return the body of a response in version 2 to 10."""
    throttle = b"\0\0\0\0" if version >= FIRST_WITH_THROTTLE_TIME else b""
    if version < FIRST_FLEXIBLE:
        parts = [throttle, INT32.pack(len(topics))]
        for topic in topics:
            parts += [encode_string(topic.name), INT32.pack(len(topic.partitions))]
            parts += [_RESULT.pack(index, code) for index, code in topic.partitions]
        return b"".join(parts)
    parts = [throttle, encode_uvarint(len(topics) + 1)]
    for topic in topics:
        has_topic_id = version >= FIRST_WITH_TOPIC_ID
        parts.append(encode_uuid(topic.topic_id) if has_topic_id else encode_compact_string(topic.name))
        parts.append(encode_uvarint(len(topic.partitions) + 1))
        parts += [_FLEXIBLE_RESULT.pack(index, code, 0) for index, code in topic.partitions]
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)
