"""ExpireDelegationToken (key 40), versions 1 to 2: refused, as delegation tokens are not supported.

Deviations: none known; Kafka answers the same on a listener without security.

Source: KafkaApis.handleExpireDelegationTokenRequest, allowTokenRequests (KIP-48).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, Api, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest

KEY = 40


def handle(context: RequestContext, request: ExpireDelegationTokenRequest) -> Answer:
    """Refuse the request."""
    fields = {
        "error_code": int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        "expiry_timestamp_ms": -1,
    }
    return encode_response_fields(KEY, context.api_version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
