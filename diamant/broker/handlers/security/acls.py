"""Requests about ACLs, answered with SECURITY_DISABLED if there is no authorizer. Version 3 adds resource type USER (KIP-373)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.broker.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from diamant.broker.network.api import (
    REQUEST_ERRORS,
    CloseConnection,
    RequestContext,
    Response,
    ResponseFields,
    error_fields,
)
from diamant.broker.security.authorization.acl_filter import AclFilter
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from diamant.broker.security.authorization.acl_index import Pattern
    from diamant.broker.security.authorization.acl_store import AclStore
    from diamant.broker.topics.topics import Topics

AT_ONCE = 200
"""The number of ACLs created in one turn of the loop (about 8 ms). As in Kafka, a request's ACLs are not created atomically."""

_DISABLED = {"error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": "No Authorizer is configured."}
_Number = TypeVar("_Number", bound=IntEnum)


def describe(acls: AclStore | None, context: RequestContext, request: DescribeAclsRequest) -> ResponseFields:
    """DescribeAcls (key 29), versions 1 to 3: the ACLs that match a filter, grouped by resource pattern.

    Source: AclApis.handleDescribeAcls.
    """
    wanted = _requested_filter(request)
    if acls is None:
        message = "No Authorizer is configured on the broker"
        return {"error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": message, "resources": []}
    patterns: dict[Pattern, list[Acl]] = defaultdict(list)
    for acl in acls.find(wanted):
        patterns[acl.resource_type, acl.pattern_type, acl.resource_name].append(acl)
    resources = [
        _pattern_fields(pattern[0]) | {"acls": list(map(_entry_fields, pattern))} for pattern in patterns.values()
    ]
    return {"error_code": 0, "error_message": "", "resources": resources}


def create(acls: AclStore | None, topics: Topics, context: RequestContext, request: CreateAclsRequest) -> Response:
    """CreateAcls (key 30), versions 1 to 3: create each ACL separately; one that already exists is not an error.

    Behaviour: the resource of an ACL need not exist.
    Deviations: a principal without a colon is refused (INVALID_REQUEST); in Kafka it makes the metadata log unreadable.

    Source: AclApis.handleCreateAcls, AclControlManager.createAcls.
    """
    wanted = [_requested_acl(creation) for creation in request.creations]
    if acls is None:
        return {"results": [_DISABLED] * len(wanted)}
    return _create(acls, topics, wanted)


async def _create(acls: AclStore, topics: Topics, wanted: list[Acl]) -> ResponseFields:
    results: list[dict[str, object]] = []
    try:
        for start in range(0, len(wanted), AT_ONCE):
            results += map(_created, acls.create(wanted[start : start + AT_ONCE]))
            await asyncio.sleep(0)  # let other tasks run
        await topics.sync()
    except REQUEST_ERRORS as error:
        results = [_created(error)] * len(wanted)
    return {"results": results}


def _created(error: BaseException | None) -> dict[str, object]:
    return {"error_code": 0, "error_message": ""} if error is None else error_fields(error)


def delete(acls: AclStore | None, topics: Topics, context: RequestContext, request: DeleteAclsRequest) -> Response:
    """DeleteAcls (key 31), versions 1 to 3: delete the ACLs that match any of the filters, all in one step.

    Behaviour: an ACL that matches two filters is in the results of both.

    Source: AclApis.handleDeleteAcls, AclControlManager.deleteAcls.
    """
    filters = [_requested_filter(acl_filter) for acl_filter in request.filters]
    if acls is None:
        return {"filter_results": [{**_DISABLED, "matching_acls": []}] * len(filters)}
    return _delete(acls, topics, filters)


async def _delete(acls: AclStore, topics: Topics, filters: list[AclFilter]) -> ResponseFields:
    no_error: dict[str, object] = {"error_code": 0, "error_message": None}
    try:
        deleted = acls.delete(filters)
        await topics.sync()
        results = [
            no_error | {"matching_acls": [no_error | _pattern_fields(acl) | _entry_fields(acl) for acl in matching]}
            for matching in deleted
        ]
    except REQUEST_ERRORS as error:
        results = [{**error_fields(error), "matching_acls": []}] * len(filters)
    return {"filter_results": results}


def _requested_acl(creation: Any) -> Acl:
    """Return the ACL to create. Raises CloseConnection for unknown enum values, as Kafka cannot read such a request either."""
    return Acl(
        _known(ResourceType, creation.resource_type),
        str(creation.resource_name),
        _known(PatternType, creation.resource_pattern_type),
        str(creation.principal),
        str(creation.host),
        _known(Operation, creation.operation),
        _known(PermissionType, creation.permission_type),
    )


def _requested_filter(fields: Any) -> AclFilter:
    """Return the filter in DescribeAcls or in an entry of DeleteAcls. Raises CloseConnection like `_requested_acl`."""
    return AclFilter(
        _known(ResourceType, fields.resource_type_filter),
        _text(fields.resource_name_filter),
        _known(PatternType, fields.pattern_type_filter),
        _text(fields.principal_filter),
        _text(fields.host_filter),
        _known(Operation, fields.operation),
        _known(PermissionType, fields.permission_type),
    )


def _entry_fields(acl: Acl) -> dict[str, object]:
    """Return the response fields of an ACL, except those of its pattern."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _pattern_fields(acl: Acl) -> dict[str, object]:
    """Return the response fields of an ACL's resource pattern."""
    return {
        "resource_type": int(acl.resource_type),
        "resource_name": acl.resource_name,
        "pattern_type": int(acl.pattern_type),
    }


def _known(kind: type[_Number], number: int) -> _Number:
    try:
        value = kind(number)
    except ValueError:
        value = kind(0)
    if not value:
        raise CloseConnection(f"unknown {kind.__name__} {number} in an ACL request")
    return value


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
