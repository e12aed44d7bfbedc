"""The offsets of one group: committed offsets, and pending offsets of open transactions.

An offset is kept in memory as the bytes of its record's value in the log: a commit has to encode them anyway, loading need not
decode them, and most are replaced before they are read.

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
"""An encoded OffsetCommitValue, and the offset of its record in `__consumer_offsets`. This is a plain tuple, because there may be
a million of them and the garbage collector stops tracking plain tuples."""


def is_of_topic(commit: OffsetCommitValue, topic_id: UUID | None) -> bool:
    """Return whether the offset may belong to the topic with this id, not to an earlier topic with the same name."""
    return topic_id is None or commit.topic_id is None or commit.topic_id == topic_id


class GroupOffsets:
    """Committed offsets by topic and partition, and pending offsets by producer id. Belongs to the loop thread.

    Bound: the group's records in `__consumer_offsets`. A pending offset is kept only until its transaction ends.
    """

    __slots__ = ("_producers", "committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[str, dict[int, StoredOffset]] = {}
        self.pending: dict[int, dict[tuple[str, int], StoredOffset]] = {}
        self._producers: dict[tuple[str, int], set[int]] = {}  # producers with a pending offset, by partition

    def __bool__(self) -> bool:
        """Return whether there is any committed or pending offset."""
        return bool(self.committed) or bool(self.pending)

    @property
    def count(self) -> int:
        """The number of committed offsets."""
        return sum(len(partitions) for partitions in self.committed.values())

    def get(self, topic: str, partition: int) -> StoredOffset | None:
        """Return the committed offset of a partition, or None."""
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def has(self, topic: str, partition: int) -> bool:
        """Return whether the partition has a committed or pending offset."""
        return self.get(topic, partition) is not None or self.is_pending(topic, partition)

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield each (topic, partition) with a committed or pending offset, once."""
        for topic, partitions in self.committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self._producers:
            if self.get(topic, partition) is None:
                yield topic, partition

    def partitions_of(self, topic: str, topic_id: UUID | None) -> set[int]:
        """Return a topic's partitions with a committed or pending offset. If `topic_id` is set, skip offsets of other topics."""
        stored_offsets = [*self.committed.get(topic, {}).items()]
        for offsets in self.pending.values():
            stored_offsets += [
                (partition, stored) for (its_topic, partition), stored in offsets.items() if its_topic == topic
            ]
        return {
            partition
            for partition, stored in stored_offsets
            if is_of_topic(parse_offset_commit_value(stored[0]), topic_id)
        }

    def put(self, topic: str, partition: int, stored: StoredOffset) -> None:
        """Store a committed offset."""
        partitions = self.committed.get(topic)
        if partitions is None:
            partitions = self.committed[topic] = {}
        partitions[partition] = stored

    def put_encoded(self, topics: Sequence[TopicOffsets], encoded: EncodedOffsets, log_offset: int) -> None:
        """Store a commit whose records begin at `log_offset` in the log. If a partition occurs twice, the last row wins."""
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
        """Like `put_encoded`, but the commit stays pending until `producer_id`'s transaction ends."""
        for topic, values in zip(topics, encoded.values, strict=True):
            for partition, value in zip(topic.partitions, values, strict=True):
                self.put_pending(producer_id, topic.name, partition, (value, log_offset))
                log_offset += 1

    def put_pending(self, producer_id: int, topic: str, partition: int, stored: StoredOffset) -> None:
        """Store an offset that stays pending until `producer_id`'s transaction ends."""
        place = topic, partition
        self.pending.setdefault(producer_id, {})[place] = stored
        self._producers.setdefault(place, set()).add(producer_id)

    def remove(self, topic: str, partition: int) -> None:
        """Apply a tombstone: remove the committed and the pending offsets of a partition."""
        partitions = self.committed.get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            del self.committed[topic]
        for producer_id in self._producers.pop((topic, partition), ()):
            offsets = self.pending[producer_id]
            del offsets[topic, partition]
            if not offsets:
                del self.pending[producer_id]

    def is_pending(self, topic: str, partition: int) -> bool:
        """Return whether an open transaction has a pending offset for the partition."""
        return (topic, partition) in self._producers

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit a producer's pending offsets, or drop them.

        A pending offset does not replace a committed offset that is later in the log.
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
"""The beginning of an OffsetCommitValue of any version: the version, which is skipped, and the offset."""


def committed_offset_of(value: bytes) -> int:
    """Return the offset in the bytes of an OffsetCommitValue."""
    (offset,) = _COMMITTED_OFFSET.unpack_from(value)
    return int(offset)
