"""ACLs and their short form. The enumerations use the numbers of Kafka's ResourceType, PatternType, AclOperation and
AclPermissionType.

    User:alice READ topic users                     alice may read the topic users
    User:alice READ,WRITE topic orders*             alice may read and write all topics whose names start with orders
    User:* DENY ALL group g from 10.0.0.7           no user at that address may do anything with the group g
    User:ops ALTER cluster                          ops may alter the cluster, which needs no name

The short form consists of a principal, ALLOW (the default) or DENY, Kafka's operations, a resource type, a name (`*` matches
every name) and optionally `from` and a host. Words that contain whitespace are quoted as in a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypeVar

WILDCARD = "*"
"""Matches every resource as the name of a literal pattern, every host as a host, and every user as a principal's name."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


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
    """The kinds of name patterns. MATCH, for filters only, selects every pattern that covers the named resource (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on a resource. ALL includes every other operation."""

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


class PermissionType(IntEnum):
    """The effect of an ACL. A matching DENY overrides every ALLOW."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL: allows or denies a principal one operation, from a host, on the resources that match a pattern."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: PermissionType

    def __str__(self) -> str:
        """Return the short form, such as `User:alice ALLOW READ topic users`, which `parse_acls` reads."""
        words = [self.principal, self.permission.name, self.operation.name, type_word(self.resource_type)]
        if self.resource_type != ResourceType.CLUSTER:
            words.append(f"{self.resource_name}*" if self.pattern_type == PatternType.PREFIXED else self.resource_name)
        if self.host != WILDCARD:
            words += ["from", self.host]
        return " ".join(_quoted(word) for word in words)


def type_word(resource_type: ResourceType) -> str:
    """Return the word for a resource type, such as `topic` or `transactional-id`."""
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


# -- text ---------------------------------------------------------------------------------------------------------------

_PERMISSIONS = {"ALLOW": PermissionType.ALLOW, "DENY": PermissionType.DENY}
_OPERATIONS = {operation.name: operation for operation in Operation if operation >= Operation.ALL}
_TYPES = {type_word(kind): kind for kind in ResourceType if kind >= ResourceType.TOPIC}
_Value = TypeVar("_Value", Operation, ResourceType)
_FORM = "expected PRINCIPAL [ALLOW|DENY] OPERATION[,OPERATION] TYPE NAME [from HOST]: User:alice READ topic users"


def parse_acls(text: str) -> list[Acl]:
    """Parse one line into one ACL per operation. Raises ValueError, which says what is wrong and what was expected."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; {_FORM}") from None
    host = WILDCARD
    if len(words) > 2 and words[-2].lower() == "from":
        host = words[-1]
        words = words[:-2]
    permission = PermissionType.ALLOW
    if len(words) > 1 and words[1].upper() in _PERMISSIONS:
        permission = _PERMISSIONS[words.pop(1).upper()]
    if len(words) == 3:
        words.append("")
    if len(words) != 4:
        raise ValueError(f"{text!r} is not an ACL: {_FORM}")
    principal, operations, kind, name = words
    check_principal(principal)
    resource_type, resource_name, pattern_type = parse_resource(kind, name)
    return [
        Acl(resource_type, resource_name, pattern_type, principal, host, operation, permission)
        for operation in parse_operations(operations)
    ]


def check_principal(principal: str) -> None:
    """Raise ValueError unless `principal` is TYPE:NAME."""
    kind, _, name = principal.partition(":")
    if not (kind and name):
        raise ValueError(f"{principal!r} is not a principal: expected TYPE:NAME, such as User:alice")


def parse_operations(text: str) -> list[Operation]:
    """Parse comma-separated operations. Raises ValueError."""
    return [_one_of(_OPERATIONS, "operation", word.strip().upper().replace("-", "_")) for word in text.split(",")]


def parse_resource(kind: str, name: str) -> tuple[ResourceType, str, PatternType]:
    """Parse a resource type and a name, which may end with an asterisk. Raises ValueError."""
    resource_type = _one_of(_TYPES, "type of resource", kind.lower().replace("_", "-"))
    if resource_type == ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise ValueError(f"{name!r}: the cluster's only name is {CLUSTER_NAME}, which may be left out")
        return resource_type, CLUSTER_NAME, PatternType.LITERAL
    if not name:
        raise ValueError(f"the name of the {kind} is missing; * matches every {kind}")
    if name != WILDCARD and name.endswith(WILDCARD):
        return resource_type, name[:-1], PatternType.PREFIXED
    return resource_type, name, PatternType.LITERAL


def _one_of(known: dict[str, _Value], what: str, word: str) -> _Value:
    value = known.get(word)
    if value is None:
        raise ValueError(f"{word!r} is not a known {what}: expected one of {', '.join(known)}")
    return value


def parse_all(texts: Iterable[str | Acl]) -> list[Acl]:
    """Return all ACLs as `Acl` objects, parsing those given as strings. Raises ValueError."""
    return [acl for text in texts for acl in ([text] if isinstance(text, Acl) else parse_acls(text))]
