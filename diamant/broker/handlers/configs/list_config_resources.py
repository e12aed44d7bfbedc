"""ListConfigResources (key 74), versions 0 to 1: the resources with configurations, by type.

Versions: 0 (ListClientMetricsResources) has only client metrics subscriptions; 1 has all types, and an empty list means all of
them (KIP-1142).

Source: KafkaApis.handleListConfigResources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

    from diamant.broker.node.node import Node

ALL_TYPES = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)


def answer(node: Node, context: RequestContext, request: ListConfigResourcesRequest) -> ResponseFields:
    """List the resources of the requested types."""
    if context.api_version == 0:
        wanted: tuple[int, ...] = (CLIENT_METRICS_RESOURCE,)
    else:
        wanted = tuple(dict.fromkeys(request.resource_types)) or ALL_TYPES
    if not set(wanted) <= set(ALL_TYPES):
        return {"error_code": int(ErrorCode.UNSUPPORTED_VERSION)}
    resources = [
        {"resource_name": name, "resource_type": resource_type}
        for resource_type in wanted
        for name in _names(node, resource_type)
    ]
    return {"error_code": 0, "config_resources": resources}


def _names(node: Node, resource_type: int) -> list[str]:
    if resource_type == TOPIC_RESOURCE:
        return list(node.topics.by_name)
    if resource_type in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(node.config.node_id)]
    return [name for kind, name in node.metadata.image.configs if kind == resource_type]
