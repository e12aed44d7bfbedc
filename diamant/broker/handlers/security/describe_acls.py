"""DescribeAcls (key 29), versions 1 to 3: there is no authorizer, so the answer is SECURITY_DISABLED.

Deviations: none known; a Kafka without `authorizer.class.name` answers the same.

Source: AclApis.handleDescribeAcls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, Api, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    pass

KEY = 29


def handle(context: RequestContext, request: DescribeAclsRequest) -> Answer:
    """Refuse."""
    fields = {
        "error_code": int(ErrorCode.SECURITY_DISABLED),
        "error_message": "No Authorizer is configured on the broker",
        "resources": [],
    }
    return encode_response_fields(KEY, context.api_version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
