"""The growth of topics: partitions added to an existing topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from diamant.broker.topics.creation_checks import MAX_PARTITIONS_PER_REQUEST, check_replicas
from diamant.broker.topics.partitions import create_logs, partition_records
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode, KafkaError


async def add_partitions(
    topics: Topics, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None
) -> None:
    """Grow a topic to `count` partitions. `check_partition_count` must have accepted this in the same turn of the loop."""
    image = topics.image.topics[name]
    added = range(len(image.partitions), count)
    if topics.brokers is None:
        assignments = [(topics.config.node_id,)] * len(added)
    elif assignments is None:
        assignments = topics.brokers.placed(added, len(image.partitions[0].replicas))
    topics.metadata.append(partition_records(topics, image.topic_id, added, assignments))
    synced = asyncio.ensure_future(topics.sync())
    try:
        await create_logs(topics, topics.by_name[name], image, topics.log_config_of(name), added)
    finally:
        topics.generation += 1
        await synced


def check_partition_count(topics: Topics, name: str, count: int, assignments: Sequence[Sequence[int]] | None) -> None:
    """Check that a topic may grow to `count` partitions (ReplicationControlManager.createPartitions). Raises KafkaError."""
    image = topics.image.topics.get(name)
    if image is None or name not in topics.by_name:  # a topic in creation exists only in the image
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(image.partitions)
    if count == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {present} partition(s); {count} would not be an increase.",
        )
    if count - present > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {count - present}, "
            f"at most {MAX_PARTITIONS_PER_REQUEST}",
        )
    if assignments is not None:
        if len(assignments) != count - present:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {count - present} additional partition(s), but only {len(assignments)} "
                "assignment(s) were specified.",
            )
        for replicas in assignments:
            check_replicas(topics, replicas)
