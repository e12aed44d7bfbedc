"""Requests that describe and change client quotas (KIP-546): the limits of users, client ids and addresses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.coordinators.java_order import fitting_capacity, grown_capacity, in_java_order, string_hash
from diamant.broker.handlers.configs.quota_rules import (
    Entity,
    check_entity,
    check_limit,
    in_entities_order,
    in_limits_order,
    in_parts_order,
    is_host_name,
    same_entity,
    shown_entity,
)
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.quotas.limits import CLIENT_ID, IP, USER
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import ClientQuotaRecord, QuotaEntity

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest

    from diamant.broker.node.node import Node
    from diamant.storage.kraft.metadata_log import MetadataLog

MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)


class _Part(NamedTuple):
    """The filter for one part of an entity. `is_any`: any name matches."""

    name: str | None
    is_any: bool


def describe(metadata: MetadataLog, context: RequestContext, request: DescribeClientQuotasRequest) -> ResponseFields:
    """DescribeClientQuotas (key 48), versions 0 to 1: the limits of the entities that match a filter (KIP-546).

    Behaviour: an entity matches if it has every part that the filter names and, with `strict`, no other part.

    Source: ClientQuotasImage.describe.
    """
    try:
        wanted = _wanted(request.components)
    except KafkaError as error:
        return {"error_code": int(error.code), "error_message": error.detail, "entries": None}
    quotas = metadata.image.quotas
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in in_parts_order(entity)],
            "values": [{"key": key, "value": quotas[entity][key]} for key in in_limits_order(quotas[entity])],
        }
        for entity in in_entities_order(
            [entity for entity in quotas if _matches(entity, wanted, request.strict)], fitting_capacity(len(quotas))
        )
    ]
    return {"error_code": 0, "error_message": "", "entries": entries}


def _wanted(components: Any) -> dict[str, _Part]:
    wanted: dict[str, _Part] = {}
    for component in components:
        kind, how, name = str(component.entity_type), component.match_type, component.match
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {how}")
        if how == MATCH_EXACT and name is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if how != MATCH_EXACT and name is not None:
            word = "DEFAULT" if how == MATCH_DEFAULT else "SPECIFIED"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Request specified MATCH_TYPE_{word}, but also specified a match string."
            )
        wanted[kind] = _Part(name, how == MATCH_SPECIFIED)
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return wanted


def _matches(entity: Entity, wanted: dict[str, _Part], is_strict: bool) -> bool:
    parts = dict(entity)
    if is_strict and parts.keys() != wanted.keys():
        return False
    return all(kind in parts and (part.is_any or parts[kind] == part.name) for kind, part in wanted.items())


async def alter(
    apply_quotas: Callable[[], Awaitable[None]], node: Node, context: RequestContext, request: AlterClientQuotasRequest
) -> ResponseFields:
    """AlterClientQuotas (key 49), versions 0 to 1: set and remove limits for users, client ids and addresses (KIP-546).

    Behaviour: each entity is changed separately; removing a missing limit is not an error.
    Deviations: an entity that the request names twice is not changed; Kafka returns the same error but applies the first change.
    NaN is refused as a limit.

    Source: ClientQuotaControlManager.alterClientQuotas.
    """
    entries = [(_entity(entry.entity), entry.ops) for entry in request.entries]
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
    return {
        "entries": [
            {
                "error_code": code,
                "error_message": message,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
            for entity, code, message in ordered
        ]
    }


def _entity(parts: Any) -> Entity:
    """Return the entity of an entry. If a type is repeated, its last name counts, as in AlterClientQuotasRequest.entries."""
    names = {part.entity_type: part.entity_name for part in parts}
    return in_parts_order([QuotaEntity(*part) for part in names.items()])


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
    """Return the entities whose host name cannot be resolved. A thread resolves the names."""
    unknown = set()
    for entity in entities:
        if is_host_name(entity):
            try:
                await asyncio.get_running_loop().getaddrinfo(entity[0].entity_name, None)
            except (OSError, UnicodeError):
                unknown.add(entity)
    return unknown
