"""AlterClientQuotas (key 49), versions 0 to 1: set and remove limits for users, client ids and addresses (KIP-546).

Behaviour: each entity is changed separately; removing a missing limit is not an error.
Deviations: an entity that is named twice is not changed; Kafka answers the same error but applies its first change.
NaN is not a valid limit.

Source: ClientQuotaControlManager.alterClientQuotas.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from diamant.broker.coordinators.java_order import grown_capacity, in_java_order, string_hash
from diamant.broker.handlers.configs.quota_rules import (
    Entity,
    check_entity,
    check_limit,
    in_entities_order,
    in_parts_order,
    is_host_name,
    same_entity,
    shown_entity,
)
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import ClientQuotaRecord, QuotaEntity
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest

    from diamant.broker.node.node import Node

KEY = 49


def handle(
    apply_quotas: Callable[[], Awaitable[None]], node: Node, context: RequestContext, request: AlterClientQuotasRequest
) -> Answer:
    """Change limits. Always a coroutine, as the metadata log has to be synced. `apply_quotas` puts the new limits into effect."""
    return _alter(apply_quotas, node, context.api_version, request)


async def _alter(
    apply_quotas: Callable[[], Awaitable[None]], node: Node, version: int, request: AlterClientQuotasRequest
) -> bytes:
    entries = [
        (in_parts_order([QuotaEntity(part.entity_type, part.entity_name) for part in entry.entity]), entry.ops)
        for entry in request.entries
    ]
    counts = Counter(same_entity(entity) for entity, _ in entries)
    unknown_hosts = await _unknown_hosts([entity for entity, _ in entries])
    results: dict[Any, tuple[Entity, int, str | None]] = {}
    records: list[ClientQuotaRecord] = []
    changed: list[Entity] = []
    stored = {same_entity(entity): entity for entity in node.metadata.image.quotas}
    for entity, ops in entries:
        key = same_entity(entity)
        try:
            if counts[key] > 1 or len({op.key for op in ops}) < len(ops):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {shown_entity(entity)}")
            check_entity(entity)
            if entity in unknown_hosts:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{entity[0].entity_name} is not a valid IP or resolvable host."
                )
            records += _records(node, stored.get(key, entity), ops)
            changed.append(entity)
            results[key] = (entity, 0, None)
        except KafkaError as error:
            results[key] = (entity, *error_of(error))
    if records and not request.validate_only:
        try:
            node.metadata.append(records)
            await apply_quotas()
            await node.topics.sync()
        except REQUEST_ERRORS as error:
            results.update((same_entity(entity), (entity, *error_of(error))) for entity in changed)
    entities = in_entities_order([entity for entity, _, _ in results.values()], grown_capacity(len(results)))
    ordered = [results[same_entity(entity)] for entity in entities]
    fields = {
        "entries": [
            {
                "error_code": code,
                "error_message": message,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
            for entity, code, message in ordered
        ]
    }
    return encode_response_fields(KEY, version, fields)


def _records(node: Node, entity: Entity, ops: Any) -> list[ClientQuotaRecord]:
    present = node.metadata.image.quotas.get(entity, {})
    records = []
    for op in in_java_order(ops, lambda op: string_hash(op.key), grown_capacity(len(ops))):
        key = str(op.key)
        if op.remove:
            if key in present:
                records.append(ClientQuotaRecord(entity=entity, key=key, value=0.0, remove=True))
            continue
        check_limit(entity, key, op.value)
        if present.get(key) != op.value:
            records.append(ClientQuotaRecord(entity=entity, key=key, value=op.value, remove=False))
    return records


async def _unknown_hosts(entities: list[Entity]) -> set[Entity]:
    """Return the addresses given by an unknown host name. A thread resolves the names."""
    unknown = set()
    for entity in entities:
        if is_host_name(entity):
            try:
                await asyncio.get_running_loop().getaddrinfo(entity[0].entity_name, None)
            except (OSError, UnicodeError):
                unknown.add(entity)
    return unknown
