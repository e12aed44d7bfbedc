"""Checks of topics before their creation (ReplicationControlManager.createTopic)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from diamant.broker.config.broker_table import FACTOR_MAX
from diamant.broker.config.topic_values import validate_topic_configs
from diamant.broker.topics.name_checks import check_collision, check_name
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.uuid_text import random_id

MAX_PARTITIONS_PER_REQUEST = 10_000
"""The limit of Kafka's controller; larger requests are refused."""


class NewTopic(NamedTuple):
    """A topic to create, checked by `check_new_topic`."""

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str]
    replicas: Sequence[Sequence[int]]
    """The replicas of each partition, the preferred leader first."""


def check_new_topic(
    topics: Topics,
    name: str,
    partition_count: int = -1,
    replication_factor: int = -1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> NewTopic:
    """Check a new topic by the rules of CreateTopics, and return it. -1 means the broker's default. Raises KafkaError."""
    check_name(name)
    known, config = topics.image.topics, topics.config
    if name in known:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_collision(name, known)
    replicas: Sequence[Sequence[int]] = ()
    if assignments:
        partition_count = _check_assignments(topics, assignments, partition_count, replication_factor)
        replicas = [assignments[partition] for partition in range(partition_count)]
    else:
        partition_count = config.num_partitions if partition_count == -1 else partition_count
        if partition_count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        factor = config.default_replication_factor if replication_factor == -1 else replication_factor
        _check_replication_factor(topics, factor)
    if partition_count > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    overrides = dict(configs or {})
    if overrides:  # without overrides, Kafka does not check the broker's defaults (ReplicationControlManager)
        validate_topic_configs(overrides, config)
    if topics.brokers is None:
        replicas = [(config.node_id,)] * partition_count
    elif not replicas:
        replicas = topics.brokers.placed(range(partition_count), factor)
    own = {key: value for key, value in overrides.items() if value is not None}
    return NewTopic(name, random_id(), partition_count, own, replicas)


def check_replicas(topics: Topics, replicas: Sequence[int]) -> None:
    """Check that a partition can have these replicas (ReplicationControlManager.validateManualPartitionAssignment).

    A single broker accepts up to `diamant.replication.factor.max` replicas, even on unknown brokers. Raises KafkaError.
    """
    config = topics.config
    most, count = config.diamant_replication_factor_max, len(replicas)
    reason = ""
    if not replicas:
        reason = "an empty replica list."
    for broker_id in sorted(replicas):
        is_unknown = broker_id != config.node_id and (broker_id < 0 or count > most or most == 1)
        if broker_id not in topics.brokers.broker_ids if topics.brokers is not None else is_unknown:
            reason = f"broker {broker_id}, but no such broker is registered."
            reason += _advice(count) if topics.brokers is None and count > most and broker_id > 0 else ""
            break
        if list(replicas).count(broker_id) > 1:
            reason = f"the broker {broker_id} more than once."
    if reason:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {reason}")


def _check_assignments(
    topics: Topics, assignments: Mapping[int, Sequence[int]], partition_count: int, replication_factor: int
) -> int:
    for value, what in ((partition_count, "numPartitions"), (replication_factor, "replication factor")):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    size = len(assignments[0])
    for partition, replicas in assignments.items():
        check_replicas(topics, replicas)
        if topics.brokers is not None and not any(map(topics.brokers.is_up, replicas)):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
                "controlled shutdown.",
            )
        if len(replicas) != size:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
                f"consistent with previous partitions, which have {size} replica(s).",
            )
    return len(assignments)


def _check_replication_factor(topics: Topics, replication_factor: int) -> None:
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    brokers = topics.brokers
    count = 1 if brokers is None else len(brokers.broker_ids)
    if replication_factor > (topics.config.diamant_replication_factor_max if brokers is None else count):
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached because only {count} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
        )
        reason += _advice(replication_factor) if brokers is None else ""
    elif brokers is not None and not brokers.live:
        reason = "All brokers are currently fenced or have all their log directories cordoned."
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


def _advice(replication_factor: int) -> str:
    return f" Diamant is one broker: with {FACTOR_MAX}={replication_factor} it accepts this, and keeps one replica."
