"""DeleteAcls (key 31), versions 1 to 3: remove the ACLs that match filters, all at once.

Behaviour: SECURITY_DISABLED without an authorizer. An ACL that matches two filters is in the results of both.
Deviations: none known.

Source: AclApis.handleDeleteAcls, AclControlManager.deleteAcls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.handlers.security.acl_fields import entry_fields, pattern_fields, requested_filter
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest

    from diamant.broker.security.authorization.acl_filter import AclFilter
    from diamant.broker.security.authorization.acl_store import AclStore
    from diamant.broker.topics.topics import Topics

KEY = 31


def handle(acls: AclStore | None, topics: Topics, context: RequestContext, request: DeleteAclsRequest) -> Answer:
    """Remove ACLs. A coroutine, as the metadata log has to be synced."""
    filters = [requested_filter(acl_filter) for acl_filter in request.filters]
    if acls is None:
        refusal = _failed(int(ErrorCode.SECURITY_DISABLED), "No Authorizer is configured.")
        return encode_response_fields(KEY, context.api_version, {"filter_results": [refusal] * len(filters)})
    return _delete(acls, topics, context.api_version, filters)


async def _delete(acls: AclStore, topics: Topics, version: int, filters: list[AclFilter]) -> bytes:
    no_error: dict[str, object] = {"error_code": 0, "error_message": None}
    try:
        deleted = acls.delete(filters)
        await topics.sync()
        results = [
            no_error | {"matching_acls": [no_error | pattern_fields(acl) | entry_fields(acl) for acl in matching]}
            for matching in deleted
        ]
    except REQUEST_ERRORS as error:
        results = [_failed(*error_of(error))] * len(filters)
    return encode_response_fields(KEY, version, {"filter_results": results})


def _failed(code: int, message: str | None) -> dict[str, object]:
    return {"error_code": code, "error_message": message, "matching_acls": []}
