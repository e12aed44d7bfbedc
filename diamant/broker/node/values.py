"""Values with a schema, as a broker decodes them: with the schemas in its own topic `_schemas`, a directory, a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.values.schemas import Schemas, SchemaSource, Values
from diamant.cleaner.values.schemas_topic import SchemasTopic

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


def topic_values(node: Node, topic: str) -> Values:
    """Return the decoder of a topic's keys and values for one operation. It reads schemas when the first one is needed."""
    config = node.config
    sources: list[SchemaSource] = [SchemasTopic(node.env, config.data_dir)]
    if config.diamant_schema_directory:
        from diamant.cleaner.values.schema_directory import SchemaDirectory

        sources.append(SchemaDirectory(node.env, config.diamant_schema_directory))
    if config.diamant_schema_registry_url:
        from diamant.broker.client.schema_registry import RegistryAddress, SchemaRegistry

        address = RegistryAddress(
            config.diamant_schema_registry_url,
            config.diamant_schema_registry_basic_auth_user_info,
            config.diamant_schema_registry_bearer_auth_token,
            config.diamant_schema_registry_ssl_ca_location,
        )
        sources.append(SchemaRegistry(address))
    return Values(Schemas(sources), topic)
