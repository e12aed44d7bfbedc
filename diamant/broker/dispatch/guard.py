"""The guard in front of an API's handler when there is an authorizer.

It checks the needs of the request as a whole, by the API's row in `security/authorization/api_needs.py`, answers denials, and
passes the handler the `Access` for checks of single resources. Without an authorizer there are no guards.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.broker.client.acl import CLUSTER_NAME
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.network.api import Answer, ConnectionInfo, Decode, RequestContext
from diamant.broker.security.authorization.access import ClientAccess
from diamant.broker.security.authorization.api_needs import API_NEEDS, ApiRow
from diamant.broker.security.authorization.authorizer import Authorizer
from diamant.broker.security.authorization.needs import Need
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.connection import Request

MAX_CONNECTIONS = 1000
"""The most connections whose access to one API is cached; beyond that the cache is cleared."""

MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Kafka's own (Errors)."""

PRODUCE = 0
ADD_PARTITIONS_TO_TXN, FIRST_FOR_BROKERS, DESCRIBE_LOG_DIRS = 24, 4, 35
JOIN_GROUP, FIRST_WITHOUT_PROTOCOL_NAME = 11, 7
_ALSO_ON_TOP = frozenset({1, 43, 45})
"""Fetch, ElectLeaders and AlterPartitionReassignments repeat the code at the top and in every part."""
_AS_KAFKA: dict[int, dict[str, object]] = {
    11: {"protocol_name": None},
    48: {"entries": None},
    50: {"results": [{"user": "", "error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}]},
}
"""Fields in which Kafka's error answers deviate from those of other APIs."""

_new = tuple.__new__  # as in the dispatcher


class WithBody(NamedTuple):
    """A decoded request, and its bytes, from which a denial is made. The connection owns the bytes."""

    request: object
    body: memoryview


def guarded(key: int, authorizer: Authorizer, decode: Decode, handle: Handler) -> tuple[Decode, Handler]:
    """Return an API's decoder and handler with its row's checks. KeyError without a row: such an API must not be served."""
    row = API_NEEDS[key]
    guard = Guard(key, row, authorizer, handle)
    if not row.whole:
        return decode, guard.hand_on
    return lambda version, body: WithBody(decode(version, body), body), guard.ask


class Guard:
    """One API's guard. Caches the access of at most MAX_CONNECTIONS connections."""

    def __init__(self, key: int, row: ApiRow, authorizer: Authorizer, handle: Handler) -> None:
        self._key = key
        self._row = row
        self._needs = row.needs
        self._authorizer = authorizer
        self._handle = handle
        self._known: dict[int, tuple[ConnectionInfo, ClientAccess]] = {}
        self._generation = authorizer.generation

    def ask(self, context: RequestContext, decoded: WithBody) -> Answer:
        """Deny the request, or pass it to the handler."""
        request, body = decoded
        version, client_id, connection, _ = context
        access = self._access(connection)
        for need, field, or_need, first, last in self._row.whole:
            if not first <= version <= last:
                continue
            name = getattr(request, field) if field else CLUSTER_NAME
            if name is None or (or_need is not None and access.allows(or_need, name, is_asked=False)):
                continue
            if not access.allows(need, name):
                return denial(self._key, version, body, need)
        return self._handle(_new(RequestContext, (version, client_id, connection, access)), request)

    def hand_on(self, context: RequestContext, request: object) -> Answer:
        """Pass on a request for which only single resources may be denied."""
        version, client_id, connection, _ = context
        access = self._access(connection)
        return self._handle(_new(RequestContext, (version, client_id, connection, access)), request)

    def _access(self, connection: ConnectionInfo) -> ClientAccess:
        # By identity, for speed: this runs with every request. A cached connection stays alive, so its id is unique.
        known = self._known.get(id(connection))
        if known is not None and known[0] is connection and self._generation == self._authorizer.generation:
            return known[1]
        if self._generation != self._authorizer.generation or len(self._known) >= MAX_CONNECTIONS:
            self._known.clear()
            self._generation = self._authorizer.generation
        client = (connection.principal, connection.host)
        access = ClientAccess(self._authorizer, client, self._needs, apis.API_NAMES[self._key])
        self._known[id(connection)] = connection, access
        return access


def denial(key: int, version: int, body: memoryview, need: Need) -> bytes:
    """Return the answer to a request denied as a whole."""
    return error_answer(key, version, body, need.denial, MESSAGES[need.denial])


def illegal_sasl_state(request: Request) -> bytes | None:
    """Return the answer to a request in place of a SASL token; None for one that Kafka does not answer either."""
    from diamant.protocol.wire.schemas import decode_request

    key, version = request.api_key, request.api_version
    if not apis.is_served(key, version):
        return None
    if key == PRODUCE and getattr(decode_request(key, version, request.body), "acks", None) == 0:
        return None
    message = "Request is not valid given the current SASL state."
    if key == PRODUCE:
        message = "Unexpected Kafka request of type PRODUCE during SASL authentication."
    return error_answer(key, version, request.body, ErrorCode.ILLEGAL_SASL_STATE, message)


def error_answer(key: int, version: int, body: memoryview, code: ErrorCode, message: str) -> bytes:
    """Return the answer to a request that fails as a whole, as Kafka's `getErrorResponse` makes it."""
    from diamant.broker.faults.error_response import ErrorAnswer
    from diamant.protocol.wire.message_fields import message_fields
    from diamant.protocol.wire.schemas import decode_request, encode_response_fields

    answer = ErrorAnswer(key, version, code, message, is_for_parts=False)
    fields = answer.whole(message_fields(decode_request(key, version, body))) or {}
    on_top: dict[str, object] = {"error_code": int(code), "error_message": message}
    if key in _ALSO_ON_TOP:
        fields |= on_top
    elif key == ADD_PARTITIONS_TO_TXN and version >= FIRST_FOR_BROKERS:
        fields = on_top
    elif key == DESCRIBE_LOG_DIRS:
        fields = {**on_top, "results": []}
    fields |= _AS_KAFKA.get(key, {})
    if key == JOIN_GROUP and version < FIRST_WITHOUT_PROTOCOL_NAME:
        fields["protocol_name"] = ""
    return encode_response_fields(key, version, fields)
