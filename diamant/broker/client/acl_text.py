"""The short text form of ACLs.

    User:alice READ topic users                     alice may read the topic users
    User:alice READ,WRITE topic orders*             and read and write all topics whose names start with orders
    User:* DENY ALL group g from 10.0.0.7           no user at that address may do anything with the group g
    User:ops ALTER cluster                          the cluster has no name

The form: a principal, ALLOW (the default) or DENY, Kafka's operations, a resource type, a name; `*` matches all names. Words
with blanks are quoted as in a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TypeVar

from diamant.broker.client.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    type_word,
)

_PERMISSIONS = {"ALLOW": Permission.ALLOW, "DENY": Permission.DENY}
_OPERATIONS = {operation.name: operation for operation in Operation if operation >= Operation.ALL}
_TYPES = {type_word(kind): kind for kind in ResourceType if kind >= ResourceType.TOPIC}
_Value = TypeVar("_Value", Operation, ResourceType)
_FORM = "expected PRINCIPAL [ALLOW|DENY] OPERATION[,OPERATION] TYPE NAME [from HOST]: User:alice READ topic users"


def parse_acls(text: str) -> list[Acl]:
    """Parse one line into one ACL per operation. The ValueError says what is wrong and what was expected."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; {_FORM}") from None
    host = WILDCARD
    if len(words) > 2 and words[-2].lower() == "from":
        host = words[-1]
        words = words[:-2]
    permission = Permission.ALLOW
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
    """Raise ValueError unless it is TYPE:NAME."""
    kind, _, name = principal.partition(":")
    if not (kind and name):
        raise ValueError(f"{principal!r} is not a principal: expected TYPE:NAME, such as User:alice")


def parse_operations(text: str) -> list[Operation]:
    """Parse comma-separated operations. ValueError."""
    return [_one_of(_OPERATIONS, "operation", word.strip().upper().replace("-", "_")) for word in text.split(",")]


def parse_resource(kind: str, name: str) -> tuple[ResourceType, str, PatternType]:
    """Parse a type and a name, which may end with an asterisk. ValueError."""
    resource_type = _one_of(_TYPES, "type of resource", kind.lower().replace("_", "-"))
    if resource_type == ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise ValueError(f"{name!r}: the cluster's only name is {CLUSTER_NAME}, which may be left out")
        return resource_type, CLUSTER_NAME, PatternType.LITERAL
    if not name:
        raise ValueError(f"the name of the {kind} is missing; * is every {kind}")
    if name != WILDCARD and name.endswith(WILDCARD):
        return resource_type, name[:-1], PatternType.PREFIXED
    return resource_type, name, PatternType.LITERAL


def _one_of(known: dict[str, _Value], what: str, word: str) -> _Value:
    value = known.get(word)
    if value is None:
        raise ValueError(f"{word!r} is not a known {what}: expected one of {', '.join(known)}")
    return value


def parse_all(texts: Iterable[str | Acl]) -> list[Acl]:
    """Parse ACLs, each a text or already a value. ValueError."""
    return [acl for one in texts for acl in ([one] if isinstance(one, Acl) else parse_acls(one))]
