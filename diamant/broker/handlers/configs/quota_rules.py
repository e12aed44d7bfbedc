"""Client quotas (KIP-546): the valid entities and limits.

Responses list entities, their parts and their limits in the order of Kafka's hash maps.

An entity is a user, a client id, both, or an address. A name of None means the default entity.

Source: ClientQuotaControlManager, ClientQuotasImage, ClientQuotasConstants.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from diamant.broker.coordinators.java_order import fitting_capacity, in_java_order, string_hash
from diamant.broker.security.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import QuotaEntity
from diamant.storage.kraft.metadata_text import check_text

Entity: TypeAlias = tuple[QuotaEntity, ...]
"""An entity, as in its record. The order of its parts is irrelevant; see `same_entity`."""

_USER_LIMITS: Mapping[str, str] = {
    PRODUCER_BYTE_RATE: "LONG",
    CONSUMER_BYTE_RATE: "LONG",
    REQUEST_PERCENTAGE: "DOUBLE",
    CONTROLLER_MUTATION_RATE: "DOUBLE",
}
_IP_LIMITS: Mapping[str, str] = {CONNECTION_CREATION_RATE: "INT"}
_BITS = {"LONG": 63, "INT": 31}
_FRACTION = 1e-6
"""How far a limit may be from a whole number and still count as one."""


def same_entity(entity: Iterable[QuotaEntity]) -> frozenset[QuotaEntity]:
    """Return a key that is equal for equal entities, whatever the order of their parts."""
    return frozenset(entity)


def in_parts_order(parts: Collection[QuotaEntity]) -> Entity:
    """Return an entity with its parts in Kafka's order: the client id before the user."""
    return tuple(in_java_order(parts, lambda part: string_hash(part.entity_type), fitting_capacity(len(parts))))


def in_entities_order(entities: Iterable[Entity], capacity: int) -> list[Entity]:
    """Return entities in the order of a Java hash map with `capacity` buckets."""
    return in_java_order(entities, _entity_hash, capacity)


def in_limits_order(limits: Collection[str]) -> list[str]:
    """Return the names of an entity's limits in Kafka's order."""
    return in_java_order(limits, string_hash, fitting_capacity(len(limits)))


def _entity_hash(entity: Entity) -> int:
    """Return the hash code of an entity (`ClientQuotaEntity.hashCode`)."""
    return 31 + sum(_hash_bits(part.entity_type) ^ _hash_bits(part.entity_name) for part in entity)


def _hash_bits(text: str | None) -> int:
    return 0 if text is None else string_hash(text) & 0xFFFFFFFF


def shown_entity(entity: Entity) -> str:
    """Return an entity as shown in Kafka's messages."""
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in sorted(entity))
    return f"ClientQuotaEntity(entries={{{parts}}})"


def check_entity(entity: Entity) -> None:
    """Check that an entity is valid. Raises KafkaError(INVALID_REQUEST).

    Host names of addresses are not resolved here; see `is_host_name`.
    """
    if not entity:
        raise _refusal("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _refusal(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            raise _refusal(f"Empty {kind} not supported")
        check_text(f"the {kind}", name)
    if len(entity) > 1 and any(kind == IP for kind, _ in entity):
        # The missing space is Kafka's.
        raise _refusal("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")


def is_host_name(entity: Entity) -> bool:
    """Return whether an entity is an address given as a host name, which must be resolved."""
    if len(entity) != 1 or entity[0].entity_type != IP or entity[0].entity_name is None:
        return False
    try:
        ipaddress.ip_address(entity[0].entity_name)
    except ValueError:
        return True
    return False


def check_limit(entity: Entity, key: str, value: float) -> None:
    """Check that an entity may have this limit. Raises KafkaError(INVALID_REQUEST)."""
    kinds = {kind for kind, _ in entity}
    type_ = (_IP_LIMITS if IP in kinds else _USER_LIMITS).get(key)
    if type_ is None:
        raise _refusal(f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise _refusal(f"Quota {key} must be a finite number")
    if value <= 0:
        raise _refusal(f"Quota {key} must be greater than 0")
    if type_ == "DOUBLE":
        return
    limit = 1 << _BITS[type_]
    if value >= limit:
        raise _refusal(f"Proposed value for {key} is too large for {'a LONG' if type_ == 'LONG' else 'an INT'}.")
    if not abs(value - int(value)) <= _FRACTION:
        raise _refusal(f"{key} cannot be a fractional value.")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
