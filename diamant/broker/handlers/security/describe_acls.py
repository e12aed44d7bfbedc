"""DescribeAcls (key 29), versions 1 to 3: the ACLs that match a filter, by pattern.

Behaviour: SECURITY_DISABLED without an authorizer. Version 3 knows the resource type USER (KIP-373).
Deviations: none known.

Source: AclApis.handleDescribeAcls.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from diamant.broker.handlers.security.acl_fields import entry_fields, pattern_fields, requested_filter
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from diamant.broker.acl import Acl
    from diamant.broker.security.authorization.acl_index import Pattern
    from diamant.broker.security.authorization.acl_store import AclStore

KEY = 29


def handle(acls: AclStore | None, context: RequestContext, request: DescribeAclsRequest) -> Answer:
    """Return the matching ACLs."""
    wanted = requested_filter(request)
    if acls is None:
        fields: dict[str, object] = {
            "error_code": int(ErrorCode.SECURITY_DISABLED),
            "error_message": "No Authorizer is configured on the broker",
            "resources": [],
        }
        return encode_response_fields(KEY, context.api_version, fields)
    patterns: dict[Pattern, list[Acl]] = defaultdict(list)
    for acl in acls.find(wanted):
        patterns[acl.resource_type, acl.pattern_type, acl.resource_name].append(acl)
    resources = [
        pattern_fields(pattern[0]) | {"acls": list(map(entry_fields, pattern))} for pattern in patterns.values()
    ]
    fields = {"error_code": 0, "error_message": "", "resources": resources}
    return encode_response_fields(KEY, context.api_version, fields)
