"""The markers that end transactions, written to the logs of their partitions.

One process holds the coordinator and all partitions, so writing a marker is an append. A partition that cannot take its
marker now is retried later. A deleted partition, or a partition that knows a newer epoch of the producer, needs no marker.
(In the second case, Kafka forgets the whole transaction until its next start; here, that would leave it open forever.)

Source: TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler, KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.broker.transactions.transaction import TopicPartition
from diamant.protocol.batches.control import build_marker
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

_NOT_NEEDED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


def write_marker(
    node: Node,
    groups: Lazy[GroupCoordinator],
    log: Log,
    *,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    coordinator_epoch: int,
) -> None:
    """Append a marker. If it ends a commit of offsets, notify the group coordinator.

    KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR; nothing is written then.
    """
    marker = build_marker(
        is_commit=is_commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        base_offset=0,
        leader_epoch=log.leader_epoch,
        timestamp=node.env.clock.now_ms(),
    )
    log.append_internal(marker)
    node.flusher.owe(log)
    if log.topic == GROUP_OFFSETS_TOPIC and groups.made is not None:
        groups.made.transaction_ended(log.partition, producer_id, is_commit)


def write_markers(
    node: Node,
    groups: Lazy[GroupCoordinator],
    partitions: frozenset[TopicPartition],
    *,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    coordinator_epoch: int,
) -> frozenset[TopicPartition]:
    """Write the markers of a transaction; return the partitions that could not take their marker."""
    missing = []
    for topic, partition in sorted(partitions) if len(partitions) > 1 else partitions:
        try:
            log = _log(node, topic, partition)
            if log is not None:
                write_marker(
                    node,
                    groups,
                    log,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    is_commit=is_commit,
                    coordinator_epoch=coordinator_epoch,
                )
        except (KafkaError, StorageError, OSError) as error:
            if isinstance(error, KafkaError) and error.code in _NOT_NEEDED:
                logger.warning("no marker for producer %d in %s-%d: %s", producer_id, topic, partition, error.detail)
                continue
            logger.error("marker for producer %d in %s-%d failed: %s", producer_id, topic, partition, error)
            missing.append((topic, partition))
    return frozenset(missing)


def _log(node: Node, topic: str, partition: int) -> Log | None:
    """Return the log of a partition; None if it was deleted. Raises KafkaError if it exists but cannot be used.

    If the topic is still being created, the transaction's records were in a deleted topic of the same name.
    """
    try:
        log = node.topics.log(topic, partition)
    except KafkaError as error:
        is_known = topic in node.topics.image.topics and partition in node.topics.image.topics[topic].partitions
        is_new = topic in node.topics.in_creation
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (is_new or not is_known):
            return None
        raise
    return None if log.is_deleted else log
