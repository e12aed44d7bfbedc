"""Changes a topic's configurations outside Kafka's protocol. The rules are the same, but unknown names are always an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.handlers.configs.changes import change_configs, check_resource, stored_configs
from diamant.broker.node.node import Node
from diamant.broker.operation_errors import BadArgument, refused_by_kafka
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.record_requests import AlterConfigsRequest
from diamant.progress import Progress
from diamant.protocol.errors import KafkaError
from diamant.protocol.kraft.records import TOPIC_RESOURCE


async def alter_configs(
    node: Node, explaining: ExplainOperation, request: AlterConfigsRequest, _: Progress
) -> Mapping[str, Any]:
    """Change a topic's configurations, all or none of them. Raises BadArgument, NotFound."""
    topic = request.topic
    await node.topics.settled([topic])
    explaining.logs(topic, None)
    is_changed = change_topic_configs(node, topic, request.set, validate_only=request.validate_only)
    if is_changed:
        await node.topics.sync()
    return {"topic": topic, "set": request.set, "is_changed": is_changed}


def change_topic_configs(node: Node, topic: str, changes: Mapping[str, Any], *, validate_only: bool) -> bool:
    """Set configurations of a topic (null resets one), or only validate the changes. Return whether anything was changed.

    Raises OperationError. Resetting an unknown name is an error here; over Kafka's protocol it is accepted, as in Kafka.
    """
    before = {**stored_configs(node, TOPIC_RESOURCE, topic)}
    for name, value in changes.items():
        if value is not None and not isinstance(value, str):
            raise BadArgument(f"set: {name[:100]}: expected a string or null, got {type(value).__name__}")
        if name in ROWS:
            raise BadArgument(f"{name} is not a stored configuration")
        if value is None and name not in before and name not in TOPIC_CONFIGS:
            raise BadArgument(f"set: topics have no configuration {name[:100]!r}")
    try:
        check_resource(node, TOPIC_RESOURCE, topic, node.config.node_id)
        change_configs(node, TOPIC_RESOURCE, topic, changes, validate_only=validate_only)
    except KafkaError as error:
        raise refused_by_kafka(error) from None
    return not validate_only and any(before.get(name) != value for name, value in changes.items())
