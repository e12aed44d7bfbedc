"""CreateAcls (key 30), versions 1 to 3: create ACLs, each separately; an existing one is not an error.

Behaviour: SECURITY_DISABLED without an authorizer. The resource of an ACL need not exist. Version 3 knows the resource
type USER (KIP-373).
Deviations: a principal without a colon is INVALID_REQUEST; in Kafka it makes the metadata log unreadable.

Source: AclApis.handleCreateAcls, AclControlManager.createAcls.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from diamant.broker.handlers.security.acl_fields import requested_acl
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest

    from diamant.broker.acl import Acl
    from diamant.broker.security.authorization.acl_store import AclStore
    from diamant.broker.topics.topics import Topics

KEY = 30
AT_ONCE = 200
"""ACLs to create in one turn of the loop, about 8 ms. As in Kafka, the ACLs of a request are not created atomically."""


def handle(acls: AclStore | None, topics: Topics, context: RequestContext, request: CreateAclsRequest) -> Answer:
    """Create ACLs. A coroutine, as the metadata log has to be synced."""
    wanted = [requested_acl(creation) for creation in request.creations]
    if acls is None:
        refusal = {"error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": "No Authorizer is configured."}
        return encode_response_fields(KEY, context.api_version, {"results": [refusal] * len(wanted)})
    return _create(acls, topics, context.api_version, wanted)


async def _create(acls: AclStore, topics: Topics, version: int, wanted: list[Acl]) -> bytes:
    results: list[dict[str, object]] = []
    try:
        for start in range(0, len(wanted), AT_ONCE):
            results += map(_result, acls.create(wanted[start : start + AT_ONCE]))
            await asyncio.sleep(0)  # let other tasks run
        await topics.sync()
    except REQUEST_ERRORS as error:
        results = [_result(error)] * len(wanted)
    return encode_response_fields(KEY, version, {"results": results})


def _result(error: BaseException | None) -> dict[str, object]:
    code, message = (0, "") if error is None else error_of(error)
    return {"error_code": code, "error_message": message}
