"""Values with a schema, as a broker decodes them: with the schemas in its own topic `_schemas`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.values.schemas import Schemas, Values
from diamant.cleaner.values.schemas_topic import SchemasTopic

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


def topic_values(node: Node, topic: str) -> Values:
    """Return the decoder of a topic's keys and values for one operation. It reads schemas when the first one is needed."""
    return Values(Schemas([SchemasTopic(node.env, node.config.data_dir)]), topic)
