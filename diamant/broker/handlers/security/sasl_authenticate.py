"""SaslAuthenticate (key 36), versions 0 to 2: a token of the mechanism selected by SaslHandshake, and the broker's token.

Behaviour: a failure is answered SASL_AUTHENTICATION_FAILED after a delay, with a text that reveals nothing about users; then
the connection is closed. Versions: 1 adds the time after which the client must re-authenticate (KIP-368).
Deviations: none known.

Source: SaslServerAuthenticator.handleSaslToken, KafkaApis.handleSaslAuthenticateRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.security.sasl.session import ALREADY_AUTHENTICATED
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

KEY = 36


def handle(context: RequestContext, request: SaslAuthenticateRequest) -> Answer:
    """Answer at once."""
    session = context.connection.sasl
    reply = ALREADY_AUTHENTICATED if session is None else session.authenticate(bytes(request.auth_bytes))
    return encode_response_fields(
        KEY,
        context.api_version,
        {
            "error_code": int(reply.code),
            "error_message": reply.message,
            "auth_bytes": reply.token,
            "session_lifetime_ms": reply.session_lifetime_ms,
        },
    )
