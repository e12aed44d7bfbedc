"""Permissions: an operation on a resource type, and the error code of its denial."""

from __future__ import annotations

from diamant.broker.acl import Operation, ResourceType
from diamant.protocol.errors import ErrorCode

_DENIALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class Permission:
    """An operation on a resource type. Each permission exists once and is compared and hashed by identity, for speed.

    It is not a dataclass, because importing `dataclasses` would delay the output of --help.
    """

    __slots__ = ("operation", "resource")

    def __init__(self, operation: Operation, resource: ResourceType) -> None:
        self.operation = operation
        self.resource = resource

    @property
    def denial(self) -> ErrorCode:
        """The error code of a denial for this resource type."""
        return _DENIALS[self.resource]

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource.name}"


READ_TOPIC = Permission(Operation.READ, ResourceType.TOPIC)
WRITE_TOPIC = Permission(Operation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC = Permission(Operation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC = Permission(Operation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = Permission(Operation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC = Permission(Operation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_CONFIGS_TOPIC = Permission(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_CONFIGS_TOPIC = Permission(Operation.ALTER_CONFIGS, ResourceType.TOPIC)

READ_GROUP = Permission(Operation.READ, ResourceType.GROUP)
DELETE_GROUP = Permission(Operation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP = Permission(Operation.DESCRIBE, ResourceType.GROUP)
DESCRIBE_CONFIGS_GROUP = Permission(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP)
ALTER_CONFIGS_GROUP = Permission(Operation.ALTER_CONFIGS, ResourceType.GROUP)

CREATE_CLUSTER = Permission(Operation.CREATE, ResourceType.CLUSTER)
DELETE_CLUSTER = Permission(Operation.DELETE, ResourceType.CLUSTER)
ALTER_CLUSTER = Permission(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = Permission(Operation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION = Permission(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CONFIGS_CLUSTER = Permission(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CONFIGS_CLUSTER = Permission(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
IDEMPOTENT_WRITE = Permission(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

WRITE_TRANSACTIONAL_ID = Permission(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTIONAL_ID = Permission(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
