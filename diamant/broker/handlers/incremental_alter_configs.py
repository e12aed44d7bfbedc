"""IncrementalAlterConfigs (key 44), versions 0 to 1: change single configurations (KIP-339).

Behaviour: all or nothing per resource; one operation per configuration. Changes are in effect when the answer comes.
Deviations: none known.

Source: ConfigurationControlManager.incrementalAlterConfigs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.config import BROKER_CONFIGS
from diamant.broker.config_changes import change_configs, check_resource, stored_configs
from diamant.broker.config_key import ConfigType, format_value
from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.server import Answer
from diamant.broker.topic_config import append_to_list, subtract_from_list
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.metadata_records import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 44
SET, DELETE, APPEND, SUBTRACT = range(4)


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Change; always a coroutine, as the metadata log has to be synced."""
    return _alter(broker, context.api_version, request)


async def _alter(broker: Broker, version: int, request: Any) -> bytes:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    await broker.topics.settled(resource.resource_name for resource in request.resources)
    responses = []
    for resource in request.resources:
        code, message = 0, None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_operations(resource)
            check_resource(broker, resource.resource_type, resource.resource_name)
            present = stored_configs(broker, resource.resource_type, resource.resource_name)
            change_configs(
                broker,
                resource.resource_type,
                resource.resource_name,
                _changes(resource, present),
                validate_only=request.validate_only,
            )
        except REQUEST_ERRORS as error:
            code, message = error_of(error)
        responses.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    await broker.topics.sync()
    return encode_response_fields(KEY, version, {"responses": responses})


def _check_operations(resource: Any) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.config_operation != DELETE and config.value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")


def _changes(resource: Any, present: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        name, operation, value = config.name, config.config_operation, config.value
        if operation == DELETE:
            changes[name] = None
        elif operation == SET:
            changes[name] = value
        elif operation in (APPEND, SUBTRACT):
            changes[name] = _changed_list(resource.resource_type, operation, name, present.get(name), value)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}, expected 0 to 3")
    return changes


def _changed_list(resource_type: int, operation: int, name: str, current: str | None, value: str) -> str:
    if resource_type == TOPIC_RESOURCE:
        change = append_to_list if operation == APPEND else subtract_from_list
        return change(name, current, value)
    word = "APPEND" if operation == APPEND else "SUBTRACT"
    if resource_type == BROKER_LOGGER_RESOURCE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{word} operation is not allowed for the BROKER_LOGGER resource")
    key = BROKER_CONFIGS.get(name) if resource_type == BROKER_RESOURCE else None
    if key is None or key.type is not ConfigType.LIST:
        # Kafka's controller knows of lists among the configurations of topics and brokers only.
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Config value {word.lower()} is not allowed for config key: {name}"
            if resource_type == BROKER_RESOURCE
            else f"Can't {word} to key {name} because its type is not LIST.",
        )
    entries = _split(current if current is not None else format_value(key.default) or "")
    given = _split(value)
    if operation == APPEND:
        return ",".join(entries + [entry for entry in given if entry not in entries])
    return ",".join(entry for entry in entries if entry not in given)


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
