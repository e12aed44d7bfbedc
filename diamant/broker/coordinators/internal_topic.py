"""The topic with a coordinator's state, such as `__consumer_offsets`, `__transaction_state` or `__share_group_state`.

All records of one group, transactional id or share partition are in one partition, chosen by the hash of its name. The topic is
created when it is first needed, such as when a client first looks for a coordinator.

A record takes effect once it is in the partition's log. It is appended, with one write to the page cache, in the same turn of the
loop that decides on the change. So acknowledged changes survive SIGKILL, and memory never differs from the log.

Source: GroupCoordinatorService.partitionFor, TransactionStateManager.partitionFor, DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.coordinators.java_order import string_hash
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches import compression
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.coordinator_batch import build_coordinator_batch, encode_records
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable
    from diamant.broker.node.node import Node

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class KeyValue(NamedTuple):
    """A record of a coordinator. A value of None is a tombstone."""

    key: bytes
    value: bytes | None


@lru_cache(maxsize=256)
def partition_of(text: str, partition_count: int) -> int:
    """Return the partition of a group or transactional id (`Utils.abs`: the smallest integer counts as 0).

    The last 256 results are cached, since hashing ten characters takes a microsecond.
    """
    value = string_hash(text)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


def coordinator_of(brokers: BrokerTable, topic: str, text: str) -> int | None:
    """Return the broker that coordinates a group or transactional id, -1 if no broker does; None if the topic does not exist."""
    image = brokers.image.topics.get(topic)
    return None if image is None else image.partitions[partition_of(text, len(image.partitions))].leader


class InternalTopic:
    """One coordinator's topic. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        codec: int = compression.NONE,
        *,
        factor: int,
        base_sequence: int = NO_SEQUENCE,
    ) -> None:
        """`partition_count`, `configs` and `factor` (replicas) are for a new topic, `codec` and `base_sequence` for batches.

        If batches may have a producer, `base_sequence` must be 0, since Kafka's cleaner refuses to rewrite batches with another.
        """
        self.name = name
        self._node = node
        self._new_partition_count = partition_count
        self._factor = factor
        self._configs = configs
        self._codec = codec
        self._base_sequence = base_sequence

    @property
    def exists(self) -> bool:
        """Whether all partitions of the topic can be used."""
        return self.name in self._node.topics.by_name

    @property
    def partition_count(self) -> int:
        """The number of partitions that the topic has, or will be created with."""
        image = self._node.topics.image.topics.get(self.name)
        return self._new_partition_count if image is None else len(image.partitions)

    def partition_of(self, text: str) -> int:
        """Return the partition of a group or transactional id."""
        image = self._node.topics.image.topics.get(self.name)
        return partition_of(text, self._new_partition_count if image is None else len(image.partitions))

    def is_at(self, broker_id: int, text: str) -> bool:
        """Return whether a broker coordinates a group or transactional id. Always true with one broker or without the topic."""
        brokers = self._node.topics.brokers
        return brokers is None or coordinator_of(brokers, self.name, text) in (None, broker_id)

    def check_at(self, broker_id: int, text: str) -> None:
        """Raise KafkaError NOT_COORDINATOR unless `is_at` is True."""
        if not self.is_at(broker_id, text):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def log(self, partition: int) -> Log:
        """Return the log of a partition. Raises KafkaError COORDINATOR_NOT_AVAILABLE if it does not exist or cannot be used."""
        topic = self._node.topics.by_name.get(self.name)
        log = None if topic is None else topic.logs.get(partition)
        if log is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.name}-{partition} cannot be used: send FindCoordinator first, which creates the topic"
                if topic is None
                else f"{self.name}-{partition} could not be opened, see the broker's log",
            )
        return log

    async def ensure(self) -> None:
        """Create the topic if it does not exist; return once it can be used. Raises KafkaError."""
        topics = self._node.topics
        if self.name in topics.by_name:
            return
        if self.name not in topics.in_creation:
            await create_topics(
                topics,
                [check_new_topic(topics, self.name, self._new_partition_count, self._factor, configs=self._configs)],
            )
        else:
            await topics.settled([self.name])

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append `records` as one batch, transactional if it has a producer; return its base offset.

        `timestamp_ms`: the records' timestamp, by default the clock's time. Raises KafkaError, which leaves the log unchanged:
        COORDINATOR_NOT_AVAILABLE, MESSAGE_TOO_LARGE (the topic's `max.message.bytes`), KAFKA_STORAGE_ERROR.
        """
        return self.append_encoded(
            partition,
            encode_records(records),
            len(records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=timestamp_ms,
        )

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
        """Append `count` encoded records (`coordinator_batch`), as `append` does."""
        log = self.log(partition)
        batch = build_coordinator_batch(
            payload,
            count,
            timestamp=self._node.env.clock.now_ms() if timestamp_ms is None else timestamp_ms,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._base_sequence,
        )
        if len(batch) > log.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(batch)} bytes for {self.name}-{partition} exceeds its "
                f"max.message.bytes={log.config.max_message_bytes}",
            )
        base_offset = log.append_internal(batch).base_offset
        self._node.flusher.owe(log)
        return base_offset
