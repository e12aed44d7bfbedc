"""The guard of an API, which runs before the API's handler if there is an authorizer.

It checks the permissions that the API's row in `api_table.py` requires for the request as a whole, and answers a denied request.
It gives the handler an `Access`, to check permissions on single resources. Without an authorizer, there are no guards.
"""

from __future__ import annotations

from diamant.broker.acl import CLUSTER_NAME
from diamant.broker.dispatch.api_row import Row, WithBody
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.network.api import Answer, ConnectionInfo, Decode, RequestContext
from diamant.broker.security.authorization.access import ClientAccess
from diamant.broker.security.authorization.authorizer import Authorizer, Client
from diamant.broker.security.authorization.permissions import Permission
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.error_shape import ErrorShape

MAX_CLIENTS = 1000
"""The maximum number of clients (principals at hosts) whose access to one API is cached. A full cache is cleared."""

MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Kafka's messages (Errors)."""

_new = tuple.__new__  # as in the dispatcher


def guarded(key: int, row: Row, authorizer: Authorizer, decode: Decode, handle: Handler) -> tuple[Decode, Handler]:
    """Return an API's decoder and handler, with the checks of its row in front of the handler."""
    guard = Guard(key, row, authorizer, handle)
    if not row.whole:
        return decode, guard.hand_on
    return lambda version, body: WithBody(decode(version, body), body), guard.ask


class Guard:
    """One API's guard. Caches the access of at most MAX_CLIENTS clients, regardless of how many connections they have."""

    def __init__(self, key: int, row: Row, authorizer: Authorizer, handle: Handler) -> None:
        self._key = key
        self._row = row
        self._permissions = row.permissions
        self._authorizer = authorizer
        self._handle = handle
        self._known: dict[Client, ClientAccess] = {}
        self._generation = authorizer.generation

    def ask(self, context: RequestContext, decoded: WithBody) -> Answer:
        """Return a denial if the request as a whole is denied, otherwise the handler's answer."""
        request, body = decoded
        version, client_id, connection, _ = context
        access = self._access(connection)
        for permission, field, or_permission, first, last in self._row.whole:
            if not first <= version <= last:
                continue
            name = getattr(request, field) if field else CLUSTER_NAME
            if name is None or (or_permission is not None and access.allows(or_permission, name, is_asked=False)):
                continue
            if not access.allows(permission, name):
                return denial(self._row.errors, self._key, version, body, permission)
        return self._handle(_new(RequestContext, (version, client_id, connection, access)), request)

    def hand_on(self, context: RequestContext, request: object) -> Answer:
        """Pass a request on to the handler, which checks permissions on single resources itself."""
        version, client_id, connection, _ = context
        access = self._access(connection)
        return self._handle(_new(RequestContext, (version, client_id, connection, access)), request)

    def _access(self, connection: ConnectionInfo) -> ClientAccess:
        client = (connection.principal, connection.host)
        access = self._known.get(client)
        if access is not None and self._generation == self._authorizer.generation:
            return access
        if self._generation != self._authorizer.generation or len(self._known) >= MAX_CLIENTS:
            self._known.clear()
            self._generation = self._authorizer.generation
        access = self._known[client] = ClientAccess(
            self._authorizer, client, self._permissions, apis.API_NAMES[self._key]
        )
        return access


def denial(shape: ErrorShape, key: int, version: int, body: memoryview, permission: Permission) -> bytes:
    """Return the answer to a request denied as a whole."""
    from diamant.protocol.wire.error_response import refusal

    return refusal(shape, key, version, body, permission.denial, MESSAGES[permission.denial])
