"""The fields of requests that several tests send, in few words."""

from __future__ import annotations

from typing import Any

SET, DELETE, APPEND, SUBTRACT = range(4)


def acl(resource_type: int, name: str, principal: str, operation: int, *, permission_type: int = 3) -> dict[str, Any]:
    """An ACL of CreateAcls: one literal name, every host, allowed unless told otherwise (2)."""
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": permission_type,
    }


def acl_filter(
    resource_type: int = 1, name: str | None = None, *, pattern: int = 1, operation: int = 1, permission_type: int = 1
) -> dict[str, Any]:
    """A filter of DescribeAcls and DeleteAcls, which lets everything through unless told otherwise."""
    return {
        "resource_type_filter": resource_type,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": None,
        "host_filter": None,
        "operation": operation,
        "permission_type": permission_type,
    }


def alteration(
    resource_type: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> dict[str, Any]:
    """An IncrementalAlterConfigs request of one resource; changes as key, operation and value."""
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": validate_only}


def join_group(group_id: str, metadata: bytes = b"", **fields: Any) -> dict[str, Any]:
    """A JoinGroup request of a member without an id, with one protocol."""
    return {
        "group_id": group_id,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
        **fields,
    }
