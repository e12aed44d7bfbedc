"""Columns of offsets by topic: the part of the wire format shared by OffsetCommit and TxnOffsetCommit.

Request:

    topics               array of
      name               string                        [or topic_id uuid]
      partitions         array of
        index int32, offset int64, [leader_epoch int32], metadata nullable string

Response:

    topics               array of
      name               string                        [or topic_id uuid]
      partitions         array of index int32, error_code int16

Consumers usually commit all their partitions together, without metadata. All rows of a topic then have the same size, so they are
read as columns, and stay columns until they are appended to the log. Commits of the same partitions have the same response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import (
    INT32,
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

NO_LEADER_EPOCH = -1

MAX_PARTITIONS = 1_000_000
"""Maximum number of partitions in a request. Without it, a few bytes per partition could become gigabytes of memory."""

MAX_REMEMBERED_PARTITIONS = 100
"""Up to this number of partitions, a topic's response is cached (1,024 entries, at most 5 MB) and its rows are read together."""


class TopicOffsets(NamedTuple):
    """Offsets to commit for partitions of a topic, in columns of equal length.

    `name` is "" or `topic_id` is None if the request does not contain it. `metadata` is None if no partition has any.
    """

    name: str
    topic_id: UUID | None
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None

    def rows(self, wanted: Sequence[int]) -> TopicOffsets:
        """Return only the rows with the given indexes."""
        return self._replace(
            partitions=tuple([self.partitions[row] for row in wanted]),
            offsets=[self.offsets[row] for row in wanted],
            leader_epochs=[self.leader_epochs[row] for row in wanted],
            metadata=None if self.metadata is None else [self.metadata[row] for row in wanted],
        )


class Layout(NamedTuple):
    """The encoding of one version, and the fields that it has."""

    is_flexible: bool
    has_leader_epoch: bool
    has_topic_id: bool


_ROW = Struct(">iq")
_ROW_WITH_EPOCH = Struct(">iqi")
# A row without metadata. The last field is the metadata's length, in flexible versions followed by the number of tagged fields.
_BARE_ROW = "iqH"
_BARE_ROW_WITH_EPOCH = "iqiH"
_NO_METADATA = frozenset({0, 0xFFFF})
_NO_METADATA_FLEXIBLE = frozenset({0x0100, 0})

_RESULT = Struct(">ih")
_FLEXIBLE_RESULT = Struct(">ihb")


def read_topics(layout: Layout, body: memoryview, position: int, end: int) -> tuple[list[TopicOffsets], int]:
    """Read the topics of a request; return them, and the position after them.

    Raises ProtocolError, IndexError, struct.error or UnicodeDecodeError if they are malformed.
    """
    is_flexible, has_epoch, has_topic_id = layout
    read_count = read_compact_array_length if is_flexible else read_array_length
    read_text = read_compact_string if is_flexible else read_string
    bare_row = _BARE_ROW_WITH_EPOCH if has_epoch else _BARE_ROW
    no_metadata = _NO_METADATA_FLEXIBLE if is_flexible else _NO_METADATA
    topic_count, position = read_count(body, position, end)
    topics = []
    total = 0
    for _ in range(topic_count):
        name = ""
        topic_id = None
        if has_topic_id:
            topic_id, position = read_uuid(body, position, end)
        else:
            text, position = read_text(body, position, end)
            if text is None:
                raise ProtocolError(f"topic name is null before position {position}")
            name = text
        count, position = read_count(body, position, end)
        total += count
        if total > MAX_PARTITIONS:
            raise ProtocolError(f"more than {MAX_PARTITIONS} partitions")
        values: Sequence[int] = ()
        if 0 < count <= MAX_REMEMBERED_PARTITIONS:
            bare = _rows(bare_row, count)
            if position + bare.size <= end:
                values = bare.unpack_from(body, position)
        width = len(bare_row)
        # Any metadata moves all later rows, so use the columns only if no row has metadata.
        if values and no_metadata.issuperset(values[width - 1 :: width]):
            epochs = values[2::width] if has_epoch else (NO_LEADER_EPOCH,) * count
            topics.append(TopicOffsets(name, topic_id, values[::width], values[1::width], epochs, None))
            position += bare.size
        else:
            offsets, position = _read_rows(layout, body, position, end, count)
            topics.append(TopicOffsets(name, topic_id, *offsets))
        if is_flexible:
            position = skip_tags(body, position, end)
    return topics, position


@lru_cache(maxsize=2 * MAX_REMEMBERED_PARTITIONS)
def _rows(row: str, count: int) -> Struct:
    return Struct(">" + row * count)


def _read_rows(
    layout: Layout, body: memoryview, position: int, end: int, count: int
) -> tuple[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[str] | None], int]:
    """Read rows one by one: for topics whose rows have metadata or tagged fields, and for topics with no rows or very many.

    The metadata column is None if no row has metadata.
    """
    is_flexible, has_epoch, _ = layout
    read_text = read_compact_string if is_flexible else read_string
    fixed = _ROW_WITH_EPOCH if has_epoch else _ROW
    partitions, offsets, epochs, texts = [], [], [], []
    for _ in range(count):
        partition, offset, *epoch = fixed.unpack_from(body, position)
        text, position = read_text(body, position + fixed.size, end)
        if is_flexible:
            position = skip_tags(body, position, end)
        partitions.append(partition)
        offsets.append(offset)
        epochs.append(epoch[0] if epoch else NO_LEADER_EPOCH)
        texts.append(text or "")
    return (tuple(partitions), offsets, epochs, texts if any(texts) else None), position


def encode_results(layout: Layout, topics: Sequence[TopicOffsets], codes: Mapping[tuple[int, int], int]) -> bytes:
    """Encode the topics of the response to `topics`, but not the response's tagged fields, which follow.

    `codes` maps (index of the topic, row) to the error code of each refused offset.
    """
    if not codes and len(topics) == 1 and len(topics[0].partitions) <= MAX_REMEMBERED_PARTITIONS:
        name, topic_id, partitions, *_ = topics[0]
        return _encode_committed(layout, name, topic_id, tuple(partitions))
    parts = [_encode_count(layout, len(topics))]
    for number, (name, topic_id, partitions, *_) in enumerate(topics):
        its_codes = [codes.get((number, row), 0) for row in range(len(partitions))] if codes else [0] * len(partitions)
        parts.append(_encode_topic(layout, name, topic_id, partitions, its_codes))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _encode_committed(layout: Layout, name: str, topic_id: UUID | None, partitions: tuple[int, ...]) -> bytes:
    return _encode_count(layout, 1) + _encode_topic(layout, name, topic_id, partitions, [0] * len(partitions))


def _encode_topic(
    layout: Layout, name: str, topic_id: UUID | None, partitions: Sequence[int], codes: Sequence[int]
) -> bytes:
    is_flexible, _, has_topic_id = layout
    encode_text = encode_compact_string if is_flexible else encode_string
    head = (encode_uuid(topic_id) if has_topic_id else encode_text(name)) + _encode_count(layout, len(partitions))
    rows = zip(partitions, codes, strict=True)
    if is_flexible:
        return head + b"".join([_FLEXIBLE_RESULT.pack(*row, 0) for row in rows]) + b"\0"
    return head + b"".join([_RESULT.pack(*row) for row in rows])


def _encode_count(layout: Layout, count: int) -> bytes:
    return encode_uvarint(count + 1) if layout.is_flexible else INT32.pack(count)
