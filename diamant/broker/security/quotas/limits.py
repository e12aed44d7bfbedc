"""The quota that applies to a client: the first limit that is set for one of these entities, in this order.

    user and client id; user and any client id; user
    any user and client id; any user and any client id; any user
    client id; any client id

A limit on a user applies to all clients of the user together, a limit on a client id to all users of the id together, and a limit
on both to each pair. A default limit ("any") is not shared: each user or client id has its own count. A client without an id
matches only the limits on users.

Source: ClientQuotaManager.DefaultQuotaCallback (quotaMetricTags, quotaLimit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from diamant.protocol.kraft.records import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The entity types of quotas."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"


StoredQuotas: TypeAlias = Mapping[tuple[QuotaEntity, ...], Mapping[str, float]]
"""All limits by entity, then by name, as the metadata log stores them."""

_Entity: TypeAlias = tuple[tuple[str | None, ...], tuple[str | None, ...]]
"""User and client id, each in a tuple, which is empty if the entity does not have this part. None is the default entity."""


class Shared(NamedTuple):
    """The clients that share a count: those of a user, a client id, or both. An unused part is empty (Kafka's metric tags)."""

    user: str
    client_id: str


class ClientLimits:
    """All limits for users and client ids that have one name, such as `producer_byte_rate`."""

    def __init__(self, name: str, quotas: StoredQuotas) -> None:
        self._by_entity: dict[_Entity, float] = {}
        for entity, limits in quotas.items():
            parts = dict(entity)
            if name in limits and IP not in parts:
                user = (parts[USER],) if USER in parts else ()
                client = (parts[CLIENT_ID],) if CLIENT_ID in parts else ()
                self._by_entity[user, client] = limits[name]

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def find(self, user: str, client_id: str) -> tuple[Shared, float] | None:
        """Return the clients that share a client's limit, and the limit; None if the client has no limit."""
        for entity, shared in _candidates(user, client_id):
            limit = self._by_entity.get(entity)
            if limit is not None:
                return shared, limit
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[_Entity, Shared]]:
    for named_user in (user, None) if user else ():
        if client_id:
            yield ((named_user,), (client_id,)), Shared(user, client_id)
            yield ((named_user,), (None,)), Shared(user, client_id)
        yield ((named_user,), ()), Shared(user, "")
    if client_id:
        yield ((), (client_id,)), Shared("", client_id)
        yield ((), (None,)), Shared("", client_id)
