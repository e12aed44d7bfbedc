"""Changes of a topic's configurations for people: as the wire's, but with an error where a name can only be a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.errors import BadArgument, refused_by_kafka
from diamant.broker.handlers.configs.changes import change_configs, check_resource, stored_configs
from diamant.broker.node.node import Node
from diamant.protocol.errors import KafkaError
from diamant.protocol.kraft.records import TOPIC_RESOURCE


def change_topic_configs(node: Node, topic: str, changes: Mapping[str, Any], *, is_tried: bool) -> bool:
    """Set configurations of a topic (null resets one), or only validate that. Return whether something was changed.

    The wire resets names that do not exist without an error, as Kafka does. VerbError.
    """
    before = {**stored_configs(node, TOPIC_RESOURCE, topic)}
    for name, value in changes.items():
        if value is not None and not isinstance(value, str):
            raise BadArgument(f"set: {name[:100]}: expected a text or null, got {type(value).__name__}")
        if name in ROWS:
            raise BadArgument(f"{name} is not a stored configuration")
        if value is None and name not in before and name not in TOPIC_CONFIGS:
            raise BadArgument(f"set: there is no configuration {name[:100]!r} of topics")
    try:
        check_resource(node, TOPIC_RESOURCE, topic)
        change_configs(node, TOPIC_RESOURCE, topic, changes, validate_only=is_tried)
    except KafkaError as error:
        raise refused_by_kafka(error) from None
    return not is_tried and any(before.get(name) != value for name, value in changes.items())
