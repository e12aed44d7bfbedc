"""AlterConfigs (key 33), versions 0 to 2: replace the whole set of a resource's configurations.

Behaviour: configurations that the request omits return to their defaults. Changes are in effect before the answer. Only
IncrementalAlterConfigs can change loggers.
Deviations: Diamant's own entries in DescribeConfigs, about topics and the clock, are ignored if they are as described. Commands
are refused, since this request would also reset all other configurations. Clients should use IncrementalAlterConfigs; AKHQ,
kafkajs and aiokafka still send this request.

Source: ConfigurationControlManager.legacyAlterConfigs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from diamant.broker.config.virtual_topic_table import COMPACT, ROWS, refuse_command
from diamant.broker.handlers.configs import clock_by_config
from diamant.broker.handlers.configs.changes import change_configs, check_resource, stored_configs
from diamant.broker.handlers.configs.config_access import TO_CHANGE, check_resource_access
from diamant.broker.handlers.configs.stores_by_config import read_stores
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest

    from diamant.broker.node.node import Node
    from diamant.broker.security.tls.listener_tls import NewStores


async def answer(node: Node, context: RequestContext, request: AlterConfigsRequest) -> ResponseFields:
    """Change configurations."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    await node.topics.settled(resource.resource_name for resource in request.resources)
    responses = []
    for resource in request.resources:
        result: dict[str, object] = {"error_code": 0, "error_message": None}
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            check_resource_access(context.access, TO_CHANGE, resource.resource_type, resource.resource_name)
            new_stores = await _read_stores(node, resource)
            _replace(node, resource, request.validate_only, node.broker_id(context.connection))
            if not request.validate_only:
                for stores in new_stores:
                    stores.use()
        except REQUEST_ERRORS as error:
            result = error_fields(error)
        of_resource = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        responses.append(result | of_resource)
    await node.topics.sync()
    return {"responses": responses}


async def _read_stores(node: Node, resource: Any) -> list[NewStores]:
    texts = {config.name: config.value for config in resource.configs if config.value is not None}
    stored = stored_configs(node, resource.resource_type, resource.resource_name)
    return await read_stores(node, resource.resource_type, resource.resource_name, {*stored, *texts}, texts)


def _replace(node: Node, resource: Any, validate_only: bool, broker_id: int) -> None:
    nulls = [config.name for config in resource.configs if config.value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    check_resource(node, resource.resource_type, resource.resource_name, broker_id)
    changes: dict[str, str | None] = dict.fromkeys(stored_configs(node, resource.resource_type, resource.resource_name))
    changes.update((config.name, config.value) for config in resource.configs)
    # Clients that replace one value send back all described entries, so those are ignored.
    if resource.resource_type == TOPIC_RESOURCE:
        refuse_command(changes.get(COMPACT))
        changes = {name: value for name, value in changes.items() if name not in ROWS}
    elif resource.resource_type == BROKER_RESOURCE:
        clock_by_config.refuse_command(node.env.clock, changes)
        changes = {name: value for name, value in changes.items() if name not in clock_by_config.NAMES}
    change_configs(node, resource.resource_type, resource.resource_name, changes, validate_only=validate_only)
