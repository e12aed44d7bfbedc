"""SaslHandshake (key 17), versions 0 and 1: select a mechanism.

Behaviour: the answer lists the mechanisms of the listener, also when it refuses one (UNSUPPORTED_SASL_MECHANISM; the
connection is then closed). After version 0 tokens have no header, after version 1 they are in SaslAuthenticate.
ILLEGAL_SASL_STATE without a list on listeners without SASL, and after authentication unless the session expires (then it
begins re-authentication).
Deviations: none known.

Source: SaslServerAuthenticator.handleHandshakeRequest, KafkaApis.handleSaslHandshakeRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

KEY = 17


def handle(context: RequestContext, request: SaslHandshakeRequest) -> Answer:
    """Answer at once."""
    session = context.connection.sasl
    code, mechanisms = ErrorCode.ILLEGAL_SASL_STATE, list[str]()
    if session is not None:
        code, mechanisms = session.handshake(context.api_version, str(request.mechanism))
    fields = {"error_code": int(code), "mechanisms": mechanisms}
    return encode_response_fields(KEY, context.api_version, fields)
