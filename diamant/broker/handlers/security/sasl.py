"""The two requests with which a client authenticates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.broker.security.sasl.session import ALREADY_AUTHENTICATED
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest


def handshake(context: RequestContext, request: SaslHandshakeRequest) -> ResponseFields:
    """SaslHandshake (key 17), versions 0 and 1: select a mechanism.

    Behaviour: the response lists the listener's mechanisms, even if it refuses the requested one (UNSUPPORTED_SASL_MECHANISM;
    the connection is then closed). After version 0, tokens are sent without a header; after version 1, with SaslAuthenticate. A
    client that has already authenticated begins re-authentication if its session can expire. If it cannot, or if the listener
    has no SASL, the answer is ILLEGAL_SASL_STATE with an empty list.

    Source: SaslServerAuthenticator.handleHandshakeRequest, KafkaApis.handleSaslHandshakeRequest.
    """
    session = context.connection.sasl
    code, mechanisms = ErrorCode.ILLEGAL_SASL_STATE, list[str]()
    if session is not None:
        code, mechanisms = session.handshake(context.api_version, str(request.mechanism))
    return {"error_code": int(code), "mechanisms": mechanisms}


def authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> ResponseFields:
    """SaslAuthenticate (key 36), versions 0 to 2: exchange tokens of the mechanism selected by SaslHandshake.

    Behaviour: a failure is answered, after a delay, with SASL_AUTHENTICATION_FAILED and a message that reveals nothing about
    users; then the connection is closed. Versions: 1 adds the time after which the client must re-authenticate (KIP-368).

    Source: SaslServerAuthenticator.handleSaslToken, KafkaApis.handleSaslAuthenticateRequest.
    """
    session = context.connection.sasl
    reply = ALREADY_AUTHENTICATED if session is None else session.authenticate(bytes(request.auth_bytes))
    return {
        "error_code": int(reply.code),
        "error_message": reply.message,
        "auth_bytes": reply.token,
        "session_lifetime_ms": reply.session_lifetime_ms,
    }
