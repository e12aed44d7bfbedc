"""The log of groups: `__consumer_offsets`. All records of a group are in the partition that the hash of its id selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diamant.broker.coordinators.internal_topic import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, InternalTopic
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.coordinator_batch import encode_records
from diamant.protocol.internal_topics.group_records import encode_offset_commit_key
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

TOMBSTONES_PER_BATCH = 1000
MAX_TOPIC_NAME_BYTES = 249
RECORD_OVERHEAD_BYTES = 32
"""The maximum size of a tombstone in bytes, in addition to its key."""
BATCH_OVERHEAD_BYTES = 100


class GroupLog:
    """Appends to the partitions of the topic. Appended records take effect immediately. Belongs to the loop thread.

    If an append raises KafkaError, nothing is written: COORDINATOR_NOT_AVAILABLE, MESSAGE_TOO_LARGE, or NOT_COORDINATOR if the
    disk failed.
    """

    def __init__(self, node: Node) -> None:
        config = node.config
        self.topic = InternalTopic(
            node,
            GROUP_OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
            config.offsets_topic_compression_codec,
            factor=config.internal_factor("offsets.topic.replication.factor"),
            base_sequence=0,
        )

    def partition_of(self, group_id: str) -> int:
        """Return the partition that contains a group's records."""
        return self.topic.partition_of(group_id)

    def log_of(self, group_id: str) -> Log:
        """Return the log of a group's records. Raises KafkaError COORDINATOR_NOT_AVAILABLE if it does not exist."""
        return self.topic.log(self.topic.partition_of(group_id))

    def append(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Write records (from `group_records.encode_record`) of a group as one batch; return the offset of the first."""
        return self.append_encoded(self.topic.partition_of(group_id), encode_records(records), len(records))

    def append_encoded(
        self,
        partition: int,
        payload: bytes,
        count: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append `count` encoded records of groups in `partition` as one batch; return the offset of the first."""
        try:
            return self.topic.append_encoded(
                partition,
                payload,
                count,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=timestamp_ms,
            )
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.detail) from error.__cause__
            if error.code == ErrorCode.RECORD_LIST_TOO_LARGE:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, error.detail) from None
            raise

    def tombstones_per_batch(self, group_id: str, reserved: Sequence[tuple[bytes, bytes | None]] = ()) -> int:
        """Return how many tombstones of a group's offsets are certain to fit into a batch with the `reserved` tombstones."""
        reserved_bytes = sum(len(key) + RECORD_OVERHEAD_BYTES for key, _ in reserved)
        limit = self.log_of(group_id).config.max_message_bytes - BATCH_OVERHEAD_BYTES - reserved_bytes
        size = len(encode_offset_commit_key(group_id, "", 0)) + MAX_TOPIC_NAME_BYTES + RECORD_OVERHEAD_BYTES
        return max(min(TOMBSTONES_PER_BATCH, limit // size), 1)
