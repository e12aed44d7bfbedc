"""The fields of requests that several tests send, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

SET, DELETE, APPEND, SUBTRACT = range(4)


def acl(resource_type: int, name: str, principal: str, operation: int, *, permission_type: int = 3) -> dict[str, Any]:
    """Return an ACL of CreateAcls: one literal name, every host, allowed unless told otherwise (2)."""
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
    """Return a filter of DescribeAcls and DeleteAcls, which lets everything through unless told otherwise."""
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
    """Return an IncrementalAlterConfigs request of one resource; changes as key, operation and value."""
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": validate_only}


def join_group(group_id: str, metadata: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Return a JoinGroup request of a member without an id, with one protocol."""
    return {
        "group_id": group_id,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
        **fields,
    }


def offset_commit(
    group_id: str,
    *topics: tuple[str | UUID, Sequence[tuple[int, int, str | None]]],
    member_id: str = "",
    epoch: int = -1,
    leader_epoch: int = -1,
) -> dict[str, Any]:
    """Return an OffsetCommit request by names or ids; rows of a topic as partition, offset and metadata."""
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": [
            {
                "topic_id" if isinstance(name, UUID) else "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": leader_epoch,
                        "committed_metadata": metadata,
                    }
                    for index, offset, metadata in rows
                ],
            }
            for name, rows in topics
        ],
    }


def list_offsets(
    topic: str, partition: int = 0, timestamp: int = -1, *, isolation_level: int = 0, leader_epoch: int = -1
) -> dict[str, Any]:
    """Return a ListOffsets request for one partition, by default for its end."""
    entry = {"partition_index": partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [entry]}]
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics}
