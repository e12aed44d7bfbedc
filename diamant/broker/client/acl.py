"""ACLs as values, with the numbers of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType."""

from __future__ import annotations

import shlex
from enum import IntEnum
from typing import NamedTuple

WILDCARD = "*"
"""As the name of a literal pattern: any resource. As a host: any. As a principal's name: any user."""
CLUSTER_NAME = "kafka-cluster"
"""The only resource of type CLUSTER."""


class ResourceType(IntEnum):
    """Types of resources. UNKNOWN and ANY occur only in requests."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The kinds of name patterns. MATCH, in filters: every pattern that covers the resource with this name (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on a resource. ALL covers every other."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """The effect of an ACL. A matching DENY overrides every ALLOW."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL: it allows or denies a principal, from a host, an operation on the resources of a pattern."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        """Return the short form: `User:alice ALLOW READ topic users`. `acl_text.parse_acls` reads it."""
        words = [self.principal, self.permission.name, self.operation.name, type_word(self.resource_type)]
        if self.resource_type != ResourceType.CLUSTER:
            words.append(f"{self.resource_name}*" if self.pattern_type == PatternType.PREFIXED else self.resource_name)
        if self.host != WILDCARD:
            words += ["from", self.host]
        return " ".join(_quoted(word) for word in words)


def type_word(resource_type: ResourceType) -> str:
    """Return the word for a resource type: `topic`, `transactional-id`."""
    return resource_type.name.lower().replace("_", "-")


def _quoted(word: str) -> str:
    return word if word and not any(letter.isspace() or letter in "\"'\\" for letter in word) else shlex.quote(word)


SUPPORTED_OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations reported in a response's `authorized_operations` (AclEntry.supportedOperations)."""
