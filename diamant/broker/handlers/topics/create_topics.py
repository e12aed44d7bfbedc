"""CreateTopics and CreatePartitions, subject to the controller mutation quota."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from diamant.broker.config.topic_values import describe_topic_configs
from diamant.broker.config.virtual_topic_table import COMPACT, ROWS, refuse_command
from diamant.broker.handlers.topics.mutation_charge import charge_of
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, check
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import NewTopic, check_new_topic
from diamant.broker.topics.growth import add_partitions, check_partition_count
from diamant.broker.topics.internal_names import METADATA_TOPIC
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
    from kio.schema.create_topics.v7.request import CreateTopicsRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.security.quotas.mutation_quota import MutationCharge
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.topics.topics import Topics

FIRST_STRICT, FIRST_STRICT_OF_PARTITIONS = 6, 3
"""The first versions of CreateTopics and CreatePartitions that refuse requests beyond a quota (KIP-599)."""


async def create(
    quotas: Lazy[Quotas], node: Node, context: RequestContext, request: CreateTopicsRequest
) -> ResponseFields:
    """CreateTopics (key 19), versions 2 to 7.

    Behaviour: all valid topics of a request are written to the metadata log in one batch; the response is sent once this
    is on disk and the partitions accept records. -1 partitions and -1 replicas mean the broker's defaults (KIP-464).
    Versions: 5 adds the counts and configurations to the response (KIP-525), 6 refuses requests beyond a quota (KIP-599), 7 adds
    the topic id to the response (KIP-516).
    Deviations: with one broker, a replication factor above 1 is refused, as in Kafka, unless `diamant.replication.factor.max`
    allows it; the topic then has one replica, which the response reports.

    Source: ReplicationControlManager.createTopics.
    """
    charge = charge_of(quotas, context, is_strict=context.api_version >= FIRST_STRICT)
    access = context.access
    counts = Counter(str(topic.name) for topic in request.topics)
    accepted: dict[str, NewTopic] = {}
    errors: dict[str, tuple[int, str | None]] = {}
    for topic in request.topics:
        name = str(topic.name)
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if name != METADATA_TOPIC and not access.allows(permissions.CREATE_CLUSTER, is_asked=False):
                check(access, permissions.CREATE_TOPIC, name, "Authorization failed.")
            accepted[name] = _check(node, topic)
        except REQUEST_ERRORS as error:
            errors[name] = error_of(error)
    _refuse_collisions(accepted, errors)
    _charge(charge, accepted, errors)
    if not request.validate_only:
        try:
            await create_topics(node.topics, list(accepted.values()))
        except REQUEST_ERRORS as error:
            errors.update(dict.fromkeys(accepted, error_of(error)))
    return {
        "throttle_time_ms": charge.throttle_time_ms(),
        "topics": [_entry(node, access, name, accepted.get(name), errors.get(name)) for name in counts],
    }


def _check(node: Node, topic: Any) -> NewTopic:
    refuse_command(next((config.value for config in topic.configs if config.name == COMPACT), None))
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        assignments[int(assignment.partition_index)] = [int(broker_id) for broker_id in assignment.broker_ids]
    return check_new_topic(
        node.topics,
        str(topic.name),
        int(topic.num_partitions),
        int(topic.replication_factor),
        assignments,
        # Tools that copy a topic send all entries of DescribeConfigs; ignore those that are not stored.
        {config.name: config.value for config in topic.configs if config.name not in ROWS},
    )


def _refuse_collisions(accepted: dict[str, NewTopic], errors: dict[str, tuple[int, str | None]]) -> None:
    """Refuse names that differ only in '.' and '_' from an earlier name in the request."""
    forms: dict[str, str] = {}
    for name in list(accepted):
        first = forms.setdefault(name.replace(".", "_"), name)
        if first != name:
            del accepted[name]
            errors[name] = (
                int(ErrorCode.INVALID_TOPIC_EXCEPTION),
                f"Topic '{name}' collides with existing topic: {first}",
            )


def _charge(charge: MutationCharge, accepted: dict[str, NewTopic], errors: dict[str, tuple[int, str | None]]) -> None:
    """Charge the topics to the quota, even if they are only validated. Refuse topics that exceed it."""
    for name, topic in list(accepted.items()):
        try:
            charge.take(topic.partition_count)
        except KafkaError as error:
            del accepted[name]
            errors[name] = error_of(error)


def _entry(
    node: Node, access: Access, name: str, topic: NewTopic | None, error: tuple[int, str | None] | None
) -> dict[str, object]:
    if error is not None or topic is None:
        code, message = error if error is not None else (int(ErrorCode.UNKNOWN_SERVER_ERROR), None)
        return {"name": name, "topic_id": None, "error_code": code, "error_message": message}
    if not access.allows(permissions.DESCRIBE_CONFIGS_TOPIC, name, is_asked=False):
        return {
            "name": name,
            "topic_id": topic.topic_id,
            "error_code": 0,
            "error_message": None,
            "topic_config_error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            "configs": [],
        }
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.partition_count,
        "replication_factor": len(topic.replicas[0]),
        "configs": [
            {
                "name": config.name,
                "value": config.value,
                "read_only": config.is_read_only,
                "config_source": int(config.source),
                "is_sensitive": config.is_sensitive,
            }
            for config in describe_topic_configs(topic.configs, node.config)
        ],
    }


async def grow(
    quotas: Lazy[Quotas], topics: Topics, context: RequestContext, request: CreatePartitionsRequest
) -> ResponseFields:
    """CreatePartitions (key 37), versions 0 to 3: add partitions to topics (KIP-195).

    Versions: 3 refuses requests beyond a quota (KIP-599).

    Source: ReplicationControlManager.createPartitions.
    """
    charge = charge_of(quotas, context, is_strict=context.api_version >= FIRST_STRICT_OF_PARTITIONS)
    counts = Counter(str(topic.name) for topic in request.topics)
    await topics.settled(counts)
    results: dict[str, tuple[int, str | None]] = {}
    for topic in request.topics:
        name = str(topic.name)
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            check(context.access, permissions.ALTER_TOPIC, name)
            assignments = (
                None
                if topic.assignments is None
                else [[int(broker_id) for broker_id in assignment.broker_ids] for assignment in topic.assignments]
            )
            check_partition_count(topics, name, int(topic.count), assignments)
            charge.take(int(topic.count) - len(topics.image.topics[name].partitions))
            if not request.validate_only:
                await add_partitions(topics, name, int(topic.count), assignments)
            results[name] = (0, None)
        except REQUEST_ERRORS as error:
            results[name] = error_of(error)
    return {
        "throttle_time_ms": charge.throttle_time_ms(),
        "results": [
            {"name": name, "error_code": code, "error_message": message} for name, (code, message) in results.items()
        ],
    }
