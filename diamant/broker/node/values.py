"""Decoding of values that have a schema. A broker takes schemas from its own topic `_schemas`, a directory, or a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.values.schemas import Values
from diamant.cleaner.values.schemas_topic import SchemasTopic

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


def topic_values(node: Node, topic: str, registry: str | None = None) -> Values:
    """Return a decoder of a topic's keys and values, to be used for one operation. It reads schemas when first needed.

    `registry`: the URL of a registry to use in place of the configured one, without the configured login. Raises BadArgument.
    """
    from diamant.cleaner.values.registry import RegistryAddress
    from diamant.cleaner.values.schema_places import SchemaPlaces

    config = node.config
    ca_file = config.diamant_schema_registry_ssl_ca_location
    address = None
    if registry is not None and registry != config.diamant_schema_registry_url:
        try:
            address = RegistryAddress(registry, ca_file=ca_file)
        except ValueError as error:
            raise BadArgument(f"registry: {error}") from None
    elif config.diamant_schema_registry_url:
        address = RegistryAddress(
            config.diamant_schema_registry_url,
            config.diamant_schema_registry_basic_auth_user_info,
            config.diamant_schema_registry_bearer_auth_token,
            ca_file,
        )
    places = SchemaPlaces(config.diamant_schema_directory or None, address)
    return Values(places.schemas(node.env, SchemasTopic(node.env, config.data_dir)), topic)
