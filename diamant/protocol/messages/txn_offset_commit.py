"""TxnOffsetCommit (key 28): the request decoder and the response encoder, versions 0 to 6.

Request (3+ in the flexible encoding):

    transactional_id     string
    group_id             string
    producer_id          int64
    producer_epoch       int16
    generation           int32                         [3+; of a group of KIP-848 the member epoch]
    member_id            string                        [3+]
    group_instance_id    nullable string               [3+]
    topics               see `offset_columns`          [2+: with leader epochs; 6+: ids in place of names]

Response:

    throttle_time_ms     int32
    topics               see `offset_columns`

Hand-written because a read-process-write loop sends one per transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.offset_columns import Layout, TopicOffsets, encode_results, read_topics
from diamant.protocol.primitives import INT32, read_compact_string, read_string, skip_tags

FIRST_WITH_LEADER_EPOCH = 2
FIRST_FLEXIBLE = 3
FIRST_WITH_MEMBER = 3
FIRST_WITH_TOPIC_IDS = 6

NO_GENERATION = -1

_PRODUCER = Struct(">qh")
_LAYOUTS = tuple(
    Layout(version >= FIRST_FLEXIBLE, version >= FIRST_WITH_LEADER_EPOCH, version >= FIRST_WITH_TOPIC_IDS)
    for version in range(FIRST_WITH_TOPIC_IDS + 1)
)


class TxnOffsetCommitRequest(NamedTuple):
    """A request; fields missing in its version have Kafka's default."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    group_instance_id: str | None
    topics: list[TopicOffsets]


def decode_txn_offset_commit_request(version: int, body: memoryview) -> TxnOffsetCommitRequest:
    """Decode a request of version 0 to 6; ignores bytes after it. Raises ProtocolError."""
    try:
        return _decode(version, body)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"TxnOffsetCommit v{version} request of {len(body)} bytes: {error}") from error


def _decode(version: int, body: memoryview) -> TxnOffsetCommitRequest:
    is_flexible = version >= FIRST_FLEXIBLE
    read_text = read_compact_string if is_flexible else read_string
    end = len(body)
    transactional_id, position = read_text(body, 0, end)
    group_id, position = read_text(body, position, end)
    producer_id, producer_epoch = _PRODUCER.unpack_from(body, position)
    position += _PRODUCER.size
    generation, member_id, instance_id = NO_GENERATION, "", None
    if version >= FIRST_WITH_MEMBER:
        (generation,) = INT32.unpack_from(body, position)
        text, position = read_text(body, position + 4, end)
        if text is None:
            raise ProtocolError("member id is null")
        member_id = text
        instance_id, position = read_text(body, position, end)
    topics, position = read_topics(_LAYOUTS[version], body, position, end)
    if is_flexible:
        position = skip_tags(body, position, end)
    if position > end:
        raise ProtocolError(f"the request ends {position - end} bytes before its content")
    if transactional_id is None or group_id is None:
        raise ProtocolError(f"{'transactional' if transactional_id is None else 'group'} id is null")
    return TxnOffsetCommitRequest(
        transactional_id, group_id, producer_id, producer_epoch, generation, member_id, instance_id, topics
    )


def encode_txn_offset_commit_response(
    version: int, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]
) -> bytes:
    """Return the body of the response to `topics` in version 0 to 6; `codes` as in `offset_columns.encode_results`."""
    tags = b"\0" if version >= FIRST_FLEXIBLE else b""
    return b"\0\0\0\0" + encode_results(_LAYOUTS[version], topics, codes) + tags
