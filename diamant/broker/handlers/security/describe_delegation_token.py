"""DescribeDelegationToken (key 41), versions 1 to 3: refused, as delegation tokens are not supported.

Deviations: none known; Kafka answers the same on a listener without security.

Source: KafkaApis.handleDescribeDelegationTokenRequest, allowTokenRequests (KIP-48).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, Api, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest

KEY = 41


def handle(context: RequestContext, request: DescribeDelegationTokenRequest) -> Answer:
    """Refuse the request."""
    fields = {"error_code": int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), "tokens": []}
    return encode_response_fields(KEY, context.api_version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
