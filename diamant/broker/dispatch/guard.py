"""The guard: stands before the handler of an API when there is an authorizer.

It asks for what the API's row in `security/authorization/api_needs.py` wants of the request as a whole, answers a denial, and
hands the handler the `Access` with which it asks about single things. Without an authorizer there are no guards.
"""

from __future__ import annotations

from typing import Any

from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.network.api import Answer, Decode, RequestContext
from diamant.broker.security.authorization.access import ClientAccess
from diamant.broker.security.authorization.acl import CLUSTER_NAME
from diamant.broker.security.authorization.api_needs import API_NEEDS, ApiRow
from diamant.broker.security.authorization.authorizer import Authorizer, Client
from diamant.broker.security.authorization.needs import Need
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis

MAX_CLIENTS = 1000
"""Clients whose access to one API is kept; above that all are looked up afresh."""

MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Kafka's own (Errors)."""

_new = tuple.__new__  # as in the dispatcher


def guarded(key: int, authorizer: Authorizer, decode: Decode, handle: Handler) -> tuple[Decode, Handler]:
    """An API's decoder and handler behind its row of the table. KeyError if it has none: it must not be served then."""
    row = API_NEEDS[key]
    guard = Guard(key, row, authorizer, handle)
    if not row.whole:
        return decode, guard.hand_on
    return lambda version, body: (decode(version, body), body), guard.ask


class Guard:
    """One API's guard. Keeps the access of at most MAX_CLIENTS clients."""

    def __init__(self, key: int, row: ApiRow, authorizer: Authorizer, handle: Handler) -> None:
        self._key = key
        self._row = row
        self._needs = row.needs
        self._authorizer = authorizer
        self._handle = handle
        self._accesses: dict[Client, ClientAccess] = {}
        self._generation = authorizer.generation

    def ask(self, context: RequestContext, decoded: tuple[Any, memoryview]) -> Answer:
        """Deny the request, or have it handled."""
        request, body = decoded
        access = self._access(context)
        version = context.api_version
        for need, field, or_need, first, last in self._row.whole:
            if not first <= version <= last:
                continue
            name = getattr(request, field) if field else CLUSTER_NAME
            if name is None or (or_need is not None and access.allows(or_need, name, is_asked=False)):
                continue
            if not access.allows(need, name):
                return denial(self._key, version, body, need)
        return self._handle(_new(RequestContext, (*context[:3], access)), request)

    def hand_on(self, context: RequestContext, request: object) -> Answer:
        """Have a request handled of which only single things may be denied."""
        return self._handle(_new(RequestContext, (*context[:3], self._access(context))), request)

    def _access(self, context: RequestContext) -> ClientAccess:
        if self._generation != self._authorizer.generation or len(self._accesses) > MAX_CLIENTS:
            self._accesses.clear()
            self._generation = self._authorizer.generation
        connection = context.connection
        client = (connection.principal, connection.host)
        access = self._accesses.get(client)
        if access is None:
            name = apis.API_NAMES[self._key]
            access = self._accesses[client] = ClientAccess(self._authorizer, client, self._needs, name)
        return access


def denial(key: int, version: int, body: memoryview, need: Need) -> bytes:
    """The answer to a request of which nothing is carried out, as Kafka's `getErrorResponse` makes it."""
    from diamant.broker.faults.error_response import ErrorAnswer
    from diamant.protocol.wire.message_fields import message_fields
    from diamant.protocol.wire.schemas import decode_request, encode_response_fields

    code = need.denial
    answer = ErrorAnswer(key, version, code, MESSAGES[code], is_for_parts=False)
    fields = answer.whole(message_fields(decode_request(key, version, body)))
    return encode_response_fields(key, version, fields or {})
