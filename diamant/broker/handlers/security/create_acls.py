"""CreateAcls (key 30), versions 1 to 3: there is no authorizer, so the answer is SECURITY_DISABLED.

Deviations: none known; a Kafka without `authorizer.class.name` answers the same.

Source: AclApis.handleCreateAcls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, Api, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest

    pass

KEY = 30


def handle(context: RequestContext, request: CreateAclsRequest) -> Answer:
    """Refuse."""
    refusal = {"error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": "No Authorizer is configured."}
    fields = {"results": [refusal] * len(request.creations)}
    return encode_response_fields(KEY, context.api_version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
