"""AlterConfigs and IncrementalAlterConfigs: replace all configurations of a resource, or change some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.topic_values import append_to_list, subtract_from_list
from diamant.broker.config.virtual_topic_table import COMPACT, NOW, READ_ONLY, ROWS, refuse_command
from diamant.broker.handlers.configs import clock_by_config
from diamant.broker.handlers.configs.changes import change_configs, check_resource, stored_configs
from diamant.broker.handlers.configs.config_access import TO_CHANGE, check_resource_access
from diamant.broker.handlers.configs.stores_by_config import read_stores
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE
from diamant.storage.config_key import ConfigType, format_value

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest
    from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.broker_state.broker_clock import BrokerClock
    from diamant.broker.operations.compactions.compact_by_config import CompactByConfig
    from diamant.broker.security.tls.listener_tls import NewStores

SET, DELETE, APPEND, SUBTRACT = range(4)


async def alter(node: Node, context: RequestContext, request: AlterConfigsRequest) -> ResponseFields:
    """AlterConfigs (key 33), versions 0 to 2: replace all configurations of a resource.

    Behaviour: configurations that the request omits return to their defaults. Changes take effect before the response is sent.
    Loggers can be changed only with IncrementalAlterConfigs.
    Deviations: the read-only entries that Diamant adds to topics in DescribeConfigs are ignored, as are the clock's entries if
    they are unchanged. Diamant's commands (see IncrementalAlterConfigs) are refused, since this request would also reset all
    other configurations. Clients should use IncrementalAlterConfigs; AKHQ, kafkajs and aiokafka still send this request.

    Source: ConfigurationControlManager.legacyAlterConfigs.
    """
    counts = await _settled(node, request.resources)
    responses = []
    for resource in request.resources:
        result: dict[str, object] = {"error_code": 0, "error_message": None}
        try:
            _check_one(context, counts, resource)
            new_stores = await _read_all_stores(node, resource)
            _replace(node, resource, request.validate_only, node.broker_id(context.connection))
            for stores in () if request.validate_only else new_stores:
                stores.use()
        except REQUEST_ERRORS as error:
            result = error_fields(error)
        responses.append(result | {"resource_type": resource.resource_type, "resource_name": resource.resource_name})
    await node.topics.sync()
    return {"responses": responses}


async def _settled(node: Node, resources: Iterable[Any]) -> Counter[tuple[int, str]]:
    """Wait until none of the topics named is being created; return how often the request names each resource."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    await node.topics.settled(name for _, name in counts)
    return counts


def _check_one(context: RequestContext, counts: Counter[tuple[int, str]], resource: Any) -> None:
    if counts[resource.resource_type, resource.resource_name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    check_resource_access(context.access, TO_CHANGE, resource.resource_type, resource.resource_name)


async def _read_all_stores(node: Node, resource: Any) -> list[NewStores]:
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
    # To change one value, clients send back every entry of DescribeConfigs, so Diamant's own entries are ignored.
    if resource.resource_type == TOPIC_RESOURCE:
        refuse_command(changes.get(COMPACT))
        changes = {name: value for name, value in changes.items() if name not in ROWS}
    elif resource.resource_type == BROKER_RESOURCE:
        clock_by_config.refuse_command(node.env.clock, changes)
        changes = {name: value for name, value in changes.items() if name not in clock_by_config.NAMES}
    change_configs(node, resource.resource_type, resource.resource_name, changes, validate_only=validate_only)


async def alter_incrementally(
    compactions: Lazy[CompactByConfig],
    clock: Lazy[BrokerClock],
    node: Node,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> ResponseFields:
    """IncrementalAlterConfigs (key 44), versions 0 to 1: change individual configurations (KIP-339).

    Behaviour: a resource's changes take effect all together or not at all, before the response is sent. A request may name each
    configuration of a resource only once.
    Deviations: two entries are commands, not configurations. `diamant.compact=now` on a topic (`compact_by_config.py`) compacts
    the topic after the request's other changes, before the response. `diamant.clock.advance.ms` on the broker
    (`handlers/configs/clock_by_config.py`) moves a manual clock.

    Source: ConfigurationControlManager.incrementalAlterConfigs.
    """
    counts = await _settled(node, request.resources)
    responses: list[dict[str, object]] = []
    to_compact: dict[str, dict[str, object]] = {}
    moves: list[tuple[int, dict[str, object]]] = []
    for resource in request.resources:
        result: dict[str, object] = {"error_code": 0, "error_message": None}
        is_compacted, advance_ms = False, None
        try:
            _check_one(context, counts, resource)
            _check_operations(resource)
            check_resource(node, resource.resource_type, resource.resource_name, node.broker_id(context.connection))
            new_stores = await _read_stores(node, resource)
            present = stored_configs(node, resource.resource_type, resource.resource_name)
            changes = _changes(resource, present)
            is_compacted = resource.resource_type == TOPIC_RESOURCE and _takes_command(resource, changes)
            if is_compacted:
                check(context.access, permissions.ALTER_CLUSTER, message="Cluster authorization failed.")
                compactions().check(resource.resource_name, changes.get("cleanup.policy"))
            if resource.resource_type == BROKER_RESOURCE:
                advance_ms = _taken_advance(node, resource, changes)
                if advance_ms is not None:
                    check(context.access, permissions.ALTER_CLUSTER, message="Cluster authorization failed.")
            kind, name = resource.resource_type, resource.resource_name
            change_configs(node, kind, name, changes, validate_only=request.validate_only)
            for stores in () if request.validate_only else new_stores:
                stores.use()
        except REQUEST_ERRORS as error:
            result = error_fields(error)
        responses.append(result | {"resource_type": resource.resource_type, "resource_name": resource.resource_name})
        if is_compacted and not result["error_code"] and not request.validate_only:
            to_compact[resource.resource_name] = responses[-1]
        if advance_ms is not None and not result["error_code"] and not request.validate_only:
            moves.append((advance_ms, responses[-1]))
    await node.topics.sync()
    for advance_ms, response in moves:
        if (
            failed := await clock_by_config.advance(
                clock(), advance_ms, timeout_ms=node.config.diamant_compact_wait_max_ms
            )
        ) is not None:
            response |= error_fields(failed)
    if to_compact:
        failures = await compactions().compact(list(to_compact), context.connection.peer)
        for topic, failure in failures.items():
            if failure is not None:
                to_compact[topic] |= error_fields(failure)
    return {"responses": responses}


async def _read_stores(node: Node, resource: Any) -> list[NewStores]:
    if resource.resource_type != BROKER_RESOURCE:
        return []
    stored = stored_configs(node, resource.resource_type, resource.resource_name)
    changes = _changes(resource, stored)
    outcome = {name: text for name, text in {**stored, **changes}.items() if text is not None}
    return await read_stores(node, resource.resource_type, resource.resource_name, changes, outcome)


def _takes_command(resource: Any, changes: dict[str, str | None]) -> bool:
    """Remove `diamant.compact` from the changes; return whether to compact the topic. Raises KafkaError."""
    given = next((config for config in resource.configs if config.name == COMPACT), None)
    for config in resource.configs:
        if config.name in READ_ONLY:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} can only be read")
    if given is None:
        return False
    del changes[COMPACT]
    if given.config_operation == DELETE:
        return False  # the command is never stored, so there is nothing to delete
    if given.config_operation != SET or given.value != NOW:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Invalid value {given.value} for {COMPACT}: only SET to {NOW} is possible"
        )
    return True


def _taken_advance(node: Node, resource: Any, changes: dict[str, str | None]) -> int | None:
    """Remove `diamant.clock.advance.ms` from the changes; return how far to move the clock, or None. Raises KafkaError."""
    advance_ms = None
    for config in resource.configs:
        if config.name == clock_by_config.NOW:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} can only be read")
        if config.name == clock_by_config.ADVANCE:
            del changes[config.name]
            if config.config_operation == SET:
                advance_ms = clock_by_config.checked_ms(node.env.clock, config.value)
            elif config.config_operation != DELETE:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name}: only SET is possible")
    return advance_ms


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
        elif operation == SET or name in (COMPACT, clock_by_config.ADVANCE):
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
        # Kafka's controller knows list types only for configurations of topics and brokers.
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
