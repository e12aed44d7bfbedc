"""ACLs and ACL filters in the fields of requests and answers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from diamant.broker.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from diamant.broker.network.api import CloseConnection
from diamant.broker.security.authorization.acl_filter import AclFilter

_Number = TypeVar("_Number", bound=IntEnum)


def requested_acl(creation: Any) -> Acl:
    """Return an ACL to create. Raises CloseConnection for numbers unknown to Kafka, which cannot read such a request either."""
    return Acl(
        _known(ResourceType, creation.resource_type),
        str(creation.resource_name),
        _known(PatternType, creation.resource_pattern_type),
        str(creation.principal),
        str(creation.host),
        _known(Operation, creation.operation),
        _known(PermissionType, creation.permission_type),
    )


def requested_filter(fields: Any) -> AclFilter:
    """Return a filter of DeleteAcls (an element) or DescribeAcls (the request). Raises CloseConnection as `requested_acl`."""
    return AclFilter(
        _known(ResourceType, fields.resource_type_filter),
        _text(fields.resource_name_filter),
        _known(PatternType, fields.pattern_type_filter),
        _text(fields.principal_filter),
        _text(fields.host_filter),
        _known(Operation, fields.operation),
        _known(PermissionType, fields.permission_type),
    )


def entry_fields(acl: Acl) -> dict[str, object]:
    """Return an ACL's fields in answers, without its pattern."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def pattern_fields(acl: Acl) -> dict[str, object]:
    """Return the fields of an ACL's pattern in answers."""
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
