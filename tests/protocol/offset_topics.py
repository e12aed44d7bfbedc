"""The topics of OffsetCommit and TxnOffsetCommit requests in one form, independent of the decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from diamant.protocol.messages.offset_columns import TopicOffsets

TOPIC_ID = UUID(int=1 << 100)

Rows = list[tuple[str, UUID | None, list[tuple[int, int, int, str]]]]


def topic_fields(texts: Iterable[str | None]) -> dict[str, Any]:
    """Return a topic with one partition per text, which is the partition's metadata."""
    names = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")
    rows = [dict(zip(names, (index, index + 5, 3, text), strict=True)) for index, text in enumerate(texts)]
    return {"name": "t", "topic_id": TOPIC_ID, "partitions": rows}


def answered_topic(partitions: Iterable[int], *, name: str = "t", topic_id: UUID | None = TOPIC_ID) -> TopicOffsets:
    """Return a topic of a request with only the fields that the response needs."""
    indexes = tuple(partitions)
    return TopicOffsets(name, topic_id, indexes, indexes, indexes, None)


def offsets_by_kio(topics: Sequence[Any]) -> Rows:
    """Convert topics from the generic decoder."""
    return [
        (
            getattr(topic, "name", ""),
            getattr(topic, "topic_id", None),
            [
                (
                    each.partition_index,
                    each.committed_offset,
                    getattr(each, "committed_leader_epoch", -1),
                    each.committed_metadata or "",
                )
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def offsets_by_hand(topics: Sequence[TopicOffsets]) -> Rows:
    """Convert topics from the hand-written decoders."""
    rows = []
    for topic in topics:
        texts = [""] * len(topic.partitions) if topic.metadata is None else topic.metadata
        partitions = zip(topic.partitions, topic.offsets, topic.leader_epochs, texts, strict=True)
        rows.append((topic.name, topic.topic_id, list(partitions)))
    return rows
