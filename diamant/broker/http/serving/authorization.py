"""Authorization of HTTP requests by the authorizer that Kafka requests use. Without it, every token allows everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diamant.broker.acl import CLUSTER_NAME, ResourceType
from diamant.broker.http.serving.token import Caller
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.authorizer import Authorizer
from diamant.broker.security.authorization.permissions import Permission


class RoutePermission(NamedTuple):
    """The permission that a route requires."""

    name: str
    """The name of the request in denials; "" if the request is open to all."""
    permissions: tuple[Permission, ...]
    """The required permissions. Permissions on topics are checked for each topic of the request."""
    is_reading: bool = False
    """True if the request returns records or reveals the state of a key. Then it is audited although it changes nothing."""


OPEN = RoutePermission("", ())
ANYTHING = RoutePermission("this", (permissions.ALTER_CLUSTER,))
"""The permission of a route that declares none."""
STATUS = RoutePermission("status", (permissions.DESCRIBE_CLUSTER,))
METRICS = RoutePermission("metrics", (permissions.DESCRIBE_CLUSTER,))
JOB = RoutePermission("job", (permissions.ALTER_CLUSTER,))
"""The permission for other callers' jobs. The caller that started a job may always see and end it."""
RECORDS = RoutePermission("records", (permissions.READ_TOPIC,), is_reading=True)
EXPLAIN = RoutePermission("explain", (permissions.DESCRIBE_TOPIC,))
CONFIGS = RoutePermission("configs", (permissions.DESCRIBE_CONFIGS_TOPIC,))
SET_CONFIGS = RoutePermission("set configs", (permissions.ALTER_CONFIGS_TOPIC,))
GROUP = RoutePermission("group", (permissions.DESCRIBE_GROUP,))
CERTIFICATES = RoutePermission("certificates", (permissions.DESCRIBE_CLUSTER,))
FAULTS = RoutePermission("faults", (permissions.ALTER_CLUSTER,))
HISTORY = RoutePermission("history", (permissions.DESCRIBE_CLUSTER,))
OF_PAGES = (STATUS, METRICS, JOB, RECORDS, EXPLAIN, CONFIGS, SET_CONFIGS, GROUP, CERTIFICATES, FAULTS, HISTORY)
"""The permissions of routes that belong to no operation."""


def denial(
    authorizer: Authorizer | None,
    caller: Caller,
    host: str,
    route: RoutePermission,
    named: Mapping[str, Any],
) -> str | None:
    """Return a sentence that denies a request, or None if it is allowed. `named`: the fields of path, query and body."""
    if authorizer is None or caller.may_everything:
        return None
    verb = route.name
    sentences = (
        _denied(authorizer, caller, host, verb, permission, name)
        for permission, name in _asked(route.permissions, named)
    )
    return next((one for one in sentences if one is not None), None)


def denial_in_any_case(
    authorizer: Authorizer | None,
    caller: Caller,
    host: str,
    route: RoutePermission,
    names: Mapping[str, str],
) -> str | None:
    """Like `denial`, but for a request of which only the path is known: deny it only if no query and body would be allowed.

    `names`: the named steps of the path.
    """
    if authorizer is None or caller.may_everything:
        return None
    client, verb = (caller.principal, host), route.name
    for permission in route.permissions:
        kind = permission.resource.name.lower()
        name = CLUSTER_NAME if permission.resource is ResourceType.CLUSTER else names.get(kind)
        if name is not None:
            sentence = _denied(authorizer, caller, host, verb, permission, name)
        elif authorizer.decide_any(client, permission, authorizer.decisions(client, permission)):
            continue
        else:
            authorizer.denied(client, permission, "*")
            sentence = f"{caller.principal} may not: {verb} needs {permission.operation.name} on a {kind}"
        if sentence is not None:
            return sentence
    return None


def may_know(authorizer: Authorizer | None, caller: Caller, host: str, topic: str) -> bool:
    """Return whether the caller may DESCRIBE a topic, so that a response may name it. A refusal is not logged as a denial."""
    if authorizer is None or caller.may_everything:
        return True
    return authorizer.would_allow((caller.principal, host), permissions.DESCRIBE_TOPIC, topic)


def topics_of(named: Mapping[str, Any]) -> list[str]:
    """Return the topics that a request names, including the entries of a data map.

    An entry may be a regular expression between slashes. That is not a topic name, so only a permission on all topics covers it.
    """
    topics, people = named.get("topics"), named.get("map")
    one = named.get("topic")
    mapped = people.get("topics") if isinstance(people, Mapping) else None
    return [
        *(topics if isinstance(topics, list | tuple) else ()),
        *([one] if isinstance(one, str) else ()),
        *(map(str, mapped) if isinstance(mapped, Mapping) else ()),
    ]


def _denied(
    authorizer: Authorizer, caller: Caller, host: str, verb: str, permission: Permission, name: str
) -> str | None:
    if authorizer.allows((caller.principal, host), permission, name):
        return None
    where = (
        "the cluster" if permission.resource is ResourceType.CLUSTER else f"{permission.resource.name.lower()} {name!r}"
    )
    return f"{caller.principal} may not: {verb} needs {permission.operation.name} on {where}"


def _asked(required: Sequence[Permission], named: Mapping[str, Any]) -> Iterator[tuple[Permission, str]]:
    for permission in required:
        if permission.resource is ResourceType.CLUSTER:
            yield permission, CLUSTER_NAME
            continue
        is_group = permission.resource is ResourceType.GROUP
        names = [named["group"]] if is_group and "group" in named else topics_of(named)
        for name in names:
            yield permission, name
        if not names:  # a request that names no topic or group applies to all
            yield permissions.ALTER_CLUSTER, CLUSTER_NAME
