"""DescribeClientQuotas (key 48), versions 0 to 1: the limits of the entities that match a filter (KIP-546).

Behaviour: an entity matches if it has every part that the filter names and, with `strict`, no other.
Deviations: none known.

Source: ClientQuotasImage.describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.coordinators.java_order import fitting_capacity
from diamant.broker.handlers.configs.quota_rules import (
    Entity,
    in_entities_order,
    in_limits_order,
    in_parts_order,
)
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.security.quotas.limits import CLIENT_ID, IP, USER
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest

    from diamant.storage.kraft.metadata_log import MetadataLog

KEY = 48
MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)


class _Part(NamedTuple):
    """The filter for one part of an entity. `is_any`: any name matches."""

    name: str | None
    is_any: bool


def handle(metadata: MetadataLog, context: RequestContext, request: DescribeClientQuotasRequest) -> Answer:
    """Describe the matching entities."""
    try:
        wanted = _wanted(request.components)
    except KafkaError as error:
        refusal = {"error_code": int(error.code), "error_message": error.detail, "entries": None}
        return encode_response_fields(KEY, context.api_version, refusal)
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
    fields = {"error_code": 0, "error_message": "", "entries": entries}
    return encode_response_fields(KEY, context.api_version, fields)


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
