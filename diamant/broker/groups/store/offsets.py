"""The offsets that one group has committed: those that count, and those of transactions that are still open.

A committed offset stays in memory as the bytes of its record's value, as they are in the log: a commit has made them anyway,
loading need not decode them, and most are replaced before anyone asks.

Source: OffsetMetadataManager.Offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TypeAlias
from uuid import UUID

from diamant.protocol.internal_topics.group_records import OffsetCommitValue, parse_offset_commit_value
from diamant.protocol.internal_topics.offset_records import EncodedOffsets
from diamant.protocol.messages.offset_columns import TopicOffsets

StoredOffset: TypeAlias = tuple[bytes, int]
"""An encoded OffsetCommitValue, and the offset of its record in `__consumer_offsets`. A plain tuple: the garbage
collector stops tracking those, and there may be a million of them."""


def is_of_topic(commit: OffsetCommitValue, topic_id: UUID | None) -> bool:
    """False if the offset was committed for an earlier topic of the same name."""
    return topic_id is None or commit.topic_id is None or commit.topic_id == topic_id


class GroupOffsets:
    """Committed offsets by topic and partition, and pending ones by producer id. The loop thread owns them.

    Bound: what `__consumer_offsets` holds of the group; a pending offset is dropped with its transaction.
    """

    __slots__ = ("_producers", "committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[str, dict[int, StoredOffset]] = {}
        self.pending: dict[int, dict[tuple[str, int], StoredOffset]] = {}
        self._producers: dict[tuple[str, int], set[int]] = {}  # those with a pending offset for a partition

    def __bool__(self) -> bool:
        """True if there is any, pending or not."""
        return bool(self.committed) or bool(self.pending)

    @property
    def count(self) -> int:
        """The number of committed offsets."""
        return sum(len(partitions) for partitions in self.committed.values())

    def get(self, topic: str, partition: int) -> StoredOffset | None:
        """The committed offset of a partition."""
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def has(self, topic: str, partition: int) -> bool:
        """True if there is an offset for the partition, pending or not."""
        return self.get(topic, partition) is not None or self.is_pending(topic, partition)

    def places(self) -> Iterator[tuple[str, int]]:
        """Each (topic, partition) with an offset, pending or not, once."""
        for topic, partitions in self.committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self._producers:
            if self.get(topic, partition) is None:
                yield topic, partition

    def partitions_of(self, topic: str, topic_id: UUID | None) -> set[int]:
        """Partitions of a topic with an offset, pending or not; with an id, without those that are of another topic."""
        found = [*self.committed.get(topic, {}).items()]
        for offsets in self.pending.values():
            found += [(partition, stored) for (its_topic, partition), stored in offsets.items() if its_topic == topic]
        return {partition for partition, stored in found if is_of_topic(parse_offset_commit_value(stored[0]), topic_id)}

    def put(self, topic: str, partition: int, stored: StoredOffset) -> None:
        """Take over a commit."""
        partitions = self.committed.get(topic)
        if partitions is None:
            partitions = self.committed[topic] = {}
        partitions[partition] = stored

    def put_encoded(self, topics: Sequence[TopicOffsets], encoded: EncodedOffsets, log_offset: int) -> None:
        """Take over a commit whose records are in the log from `log_offset` on; of one partition the last row counts."""
        for topic, values in zip(topics, encoded.values, strict=True):
            partitions = self.committed.get(topic.name)
            if partitions is None:
                partitions = self.committed[topic.name] = {}
            for partition, value in zip(topic.partitions, values, strict=True):
                partitions[partition] = (value, log_offset)
                log_offset += 1

    def put_encoded_pending(
        self, producer_id: int, topics: Sequence[TopicOffsets], encoded: EncodedOffsets, log_offset: int
    ) -> None:
        """As `put_encoded`, to count once `producer_id`'s transaction is committed."""
        for topic, values in zip(topics, encoded.values, strict=True):
            for partition, value in zip(topic.partitions, values, strict=True):
                self.put_pending(producer_id, topic.name, partition, (value, log_offset))
                log_offset += 1

    def put_pending(self, producer_id: int, topic: str, partition: int, stored: StoredOffset) -> None:
        """Take over a commit that counts once `producer_id`'s transaction is committed."""
        place = topic, partition
        self.pending.setdefault(producer_id, {})[place] = stored
        self._producers.setdefault(place, set()).add(producer_id)

    def remove(self, topic: str, partition: int) -> None:
        """Follow a tombstone: neither what is committed nor what is pending is left."""
        partitions = self.committed.get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            del self.committed[topic]
        for producer_id in self._producers.pop((topic, partition), ()):
            offsets = self.pending[producer_id]
            del offsets[topic, partition]
            if not offsets:
                del self.pending[producer_id]

    def is_pending(self, topic: str, partition: int) -> bool:
        """True if an open transaction has an offset for the partition."""
        return (topic, partition) in self._producers

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Let the pending offsets of a producer count, or drop them.

        One that was committed later than the pending one, by its place in the log, stays.
        """
        pending = self.pending.pop(producer_id, {})
        for place in pending:
            producers = self._producers[place]
            producers.remove(producer_id)
            if not producers:
                del self._producers[place]
        if not is_commit:
            return
        for (topic, partition), stored in pending.items():
            present = self.get(topic, partition)
            if present is None or present[1] < stored[1]:
                self.put(topic, partition, stored)


_COMMITTED_OFFSET = Struct(">2xq")
"""Of an OffsetCommitValue, every version: the version, then the offset."""


def committed_offset_of(value: bytes) -> int:
    """Return the offset in the bytes of an OffsetCommitValue."""
    (offset,) = _COMMITTED_OFFSET.unpack_from(value)
    return int(offset)
