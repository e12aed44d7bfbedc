"""OffsetCommit (key 8, versions 2 to 10) and TxnOffsetCommit (key 28, versions 0 to 6): request decoders, response encoders.

OffsetCommit (8+ in the flexible encoding):

    group_id             string
    generation           int32                         [9+: or the member's epoch]
    member_id            string
    group_instance_id    nullable string               [7+]
    retention_time_ms    int64                         [2-4]
    topics               see `offset_columns`          [6+: with leader epochs, 10+: by topic id]

TxnOffsetCommit (3+ in the flexible encoding):

    transactional_id     string
    group_id             string
    producer_id          int64
    producer_epoch       int16
    generation           int32                         [3+; the member epoch in a KIP-848 group]
    member_id            string                        [3+]
    group_instance_id    nullable string               [3+]
    topics               see `offset_columns`          [2+: with leader epochs, 6+: by topic id]

Responses:

    throttle_time_ms     int32                         [OffsetCommit: 3+]
    topics               see `offset_columns`

Hand-written because consumers send an OffsetCommit with all their partitions every few seconds, and a read-process-write loop
sends a TxnOffsetCommit in each transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.offset_columns import Layout, TopicOffsets, encode_results, read_topics
from diamant.protocol.primitives import INT32, INT64, read_compact_string, read_string, skip_tags

FIRST_WITH_THROTTLE_TIME = 3
LAST_WITH_RETENTION_TIME = 4
FIRST_WITH_INSTANCE_ID = 7
FIRST_WITH_TOPIC_ID = 10
TXN_FIRST_WITH_MEMBER = 3
TXN_FIRST_WITH_TOPIC_ID = 6
NO_GENERATION = -1
NO_RETENTION_TIME_MS = -1

_PRODUCER = Struct(">qh")
_LAYOUTS = tuple(Layout(version >= 8, version >= 6, version >= FIRST_WITH_TOPIC_ID) for version in range(11))
_TXN_LAYOUTS = tuple(Layout(version >= 3, version >= 2, version >= TXN_FIRST_WITH_TOPIC_ID) for version in range(7))


class OffsetCommitRequest(NamedTuple):
    """A request. Fields that its version lacks have Kafka's defaults."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[TopicOffsets]


class TxnOffsetCommitRequest(NamedTuple):
    """A request. Fields that its version lacks have Kafka's defaults."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    group_instance_id: str | None
    topics: list[TopicOffsets]


def decode_offset_commit_request(version: int, body: memoryview) -> OffsetCommitRequest:
    """Decode a request of version 2 to 10, ignoring bytes after it. Raises ProtocolError if it is malformed."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"OffsetCommit v{version} request of {len(body)} bytes: {error}") from error


def decode_txn_offset_commit_request(version: int, body: memoryview) -> TxnOffsetCommitRequest:
    """Decode a request of version 0 to 6, ignoring bytes after it. Raises ProtocolError if it is malformed."""
    try:
        return _decode_txn(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"TxnOffsetCommit v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> OffsetCommitRequest:
    layout = _LAYOUTS[version]
    read_text = read_compact_string if layout.is_flexible else read_string
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
    topics = _read_to_end(layout, body, position, end)
    if group_id is None or member_id is None:
        raise ProtocolError(f"{'group' if group_id is None else 'member'} id is null")
    return OffsetCommitRequest(group_id, generation, member_id, instance_id, retention_time_ms, topics)


def _decode_txn(version: int, body: memoryview) -> TxnOffsetCommitRequest:
    layout = _TXN_LAYOUTS[version]
    read_text = read_compact_string if layout.is_flexible else read_string
    end = len(body)
    transactional_id, position = read_text(body, 0, end)
    group_id, position = read_text(body, position, end)
    producer_id, producer_epoch = _PRODUCER.unpack_from(body, position)
    position += _PRODUCER.size
    generation, instance_id = NO_GENERATION, None
    member_id: str | None = ""
    if version >= TXN_FIRST_WITH_MEMBER:
        (generation,) = INT32.unpack_from(body, position)
        member_id, position = read_text(body, position + 4, end)
        instance_id, position = read_text(body, position, end)
    if member_id is None:
        raise ProtocolError("member id is null")
    topics = _read_to_end(layout, body, position, end)
    if transactional_id is None or group_id is None:
        raise ProtocolError(f"{'transactional' if transactional_id is None else 'group'} id is null")
    return TxnOffsetCommitRequest(
        transactional_id, group_id, producer_id, producer_epoch, generation, member_id, instance_id, topics
    )


def _read_to_end(layout: Layout, body: memoryview, position: int, end: int) -> list[TopicOffsets]:
    topics, position = read_topics(layout, body, position, end)
    if layout.is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request is {position - end} bytes too short")
    return topics


def encode_offset_commit_response(
    version: int, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]
) -> bytes:
    """Encode the response to `topics` in version 2 to 10, without its header. For `codes` see `offset_columns.encode_results`."""
    throttle = b"\0\0\0\0" if version >= FIRST_WITH_THROTTLE_TIME else b""
    return throttle + _encode_results(_LAYOUTS[version], topics, codes)


def encode_txn_offset_commit_response(
    version: int, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]
) -> bytes:
    """Encode the response to `topics` in version 0 to 6, without its header. For `codes` see `offset_columns.encode_results`."""
    return b"\0\0\0\0" + _encode_results(_TXN_LAYOUTS[version], topics, codes)


def _encode_results(layout: Layout, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]) -> bytes:
    return encode_results(layout, topics, codes) + (b"\0" if layout.is_flexible else b"")
