"""OffsetCommit (key 8): the request decoder and the response encoder, versions 2 to 10.

Request (8+ in the flexible encoding):

    group_id             string
    generation           int32                         [9+: or the member's epoch]
    member_id            string
    group_instance_id    nullable string               [7+]
    retention_time_ms    int64                         [2-4]
    topics               see `offset_columns`          [6+: with leader epochs, 10+: by topic id]

Response:

    throttle_time_ms     int32                         [3+]
    topics               see `offset_columns`

Hand-written because consumers send one every few seconds, with all their partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.offset_columns import Layout, TopicOffsets, encode_results, read_topics
from diamant.protocol.primitives import INT32, INT64, read_compact_string, read_string, skip_tags

FIRST_WITH_THROTTLE_TIME = 3
LAST_WITH_RETENTION_TIME = 4
FIRST_WITH_LEADER_EPOCH = 6
FIRST_WITH_INSTANCE_ID = 7
FIRST_FLEXIBLE = 8
FIRST_WITH_TOPIC_ID = 10

NO_RETENTION_TIME_MS = -1

_LAYOUTS = tuple(
    Layout(version >= FIRST_FLEXIBLE, version >= FIRST_WITH_LEADER_EPOCH, version >= FIRST_WITH_TOPIC_ID)
    for version in range(11)
)


class OffsetCommitRequest(NamedTuple):
    """A request; fields missing in its version have Kafka's default."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[TopicOffsets]


def decode_offset_commit_request(version: int, body: memoryview) -> OffsetCommitRequest:
    """Decode a request of version 2 to 10; ignores bytes after it. Raises ProtocolError."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"OffsetCommit v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> OffsetCommitRequest:
    is_flexible = version >= FIRST_FLEXIBLE
    read_text = read_compact_string if is_flexible else read_string
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
    topics, position = read_topics(_LAYOUTS[version], body, position, end)
    if is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request ends {position - end} bytes before its content")
    if group_id is None or member_id is None:
        raise ProtocolError(f"{'group' if group_id is None else 'member'} id is null")
    return OffsetCommitRequest(group_id, generation, member_id, instance_id, retention_time_ms, topics)


def encode_offset_commit_response(
    version: int, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]
) -> bytes:
    """Return the body of the response to `topics` in version 2 to 10; `codes` as in `offset_columns.encode_results`."""
    throttle = b"\0\0\0\0" if version >= FIRST_WITH_THROTTLE_TIME else b""
    tags = b"\0" if version >= FIRST_FLEXIBLE else b""
    return throttle + encode_results(_LAYOUTS[version], topics, codes) + tags
