"""The subjects of audited requests: the resources that one element of a request or response names."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from diamant.broker.acl import WILDCARD, Operation, PatternType, PermissionType, ResourceType
from diamant.protocol.kraft import records
from diamant.protocol.wire.error_shape import Fields, topic_of

_RESOURCES = {
    records.BROKER_RESOURCE: "broker",
    records.BROKER_LOGGER_RESOURCE: "broker-logger",
    records.CLIENT_METRICS_RESOURCE: "client-metrics",
    records.GROUP_RESOURCE: "group",
}


class Subjects(NamedTuple):
    """The subjects of one element of a request or response."""

    topics: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()


def topics(element: Any) -> Subjects:
    """Return the topics of an element."""
    if isinstance(element, str):
        return Subjects((element,))
    if "topics" in element:
        return Subjects(tuple(topic["name"] for topic in element["topics"]))
    return Subjects((topic_of(element) or f"id {element.get('topic_id')}",))


def resource(element: Fields) -> Subjects:
    """Return the topic or other resource whose configurations are changed, and the names of these configurations."""
    kind, name = element["resource_type"], element["resource_name"]
    configs = tuple(config["name"] for config in element["configs"])
    if kind == records.TOPIC_RESOURCE:
        return Subjects((name,), configs=configs)
    return Subjects(names=(f"{_RESOURCES.get(kind, kind)} {name}".rstrip(),), configs=configs)


def group(element: Any) -> Subjects:
    """Return the group of an element."""
    return Subjects(names=(f"group {element if isinstance(element, str) else element['group_id']}",))


def user(element: Fields) -> Subjects:
    """Return the user of an element."""
    return Subjects(names=(f"user {element.get('user') or element.get('name')}",))


def entity(element: Fields) -> Subjects:
    """Return the quota entity of an element."""
    parts = (f"{part['entity_type']} {part['entity_name'] or '<default>'}" for part in element["entity"])
    return Subjects(names=(", ".join(parts),))


def feature(element: Fields) -> Subjects:
    """Return the feature of an element."""
    return Subjects(names=(f"feature {element['feature']}",))


def acl(element: Fields) -> Subjects:
    """Describe an ACL in the short form of `broker/acl.py`. A field that a filter leaves open is written as `any`."""
    given = {name.removesuffix("_filter").removeprefix("resource_"): value for name, value in element.items()}
    words = (
        given["principal"],
        _member(PermissionType, given["permission_type"]),
        _member(Operation, given["operation"]),
        _member(ResourceType, given["type"]).lower(),
        given["name"],
    )
    text = " ".join("any" if word is None else word for word in words)
    if given.get("pattern_type") == PatternType.PREFIXED:
        text += WILDCARD
    return Subjects(names=(text if given["host"] in (None, WILDCARD) else f"{text} from {given['host']}",))


def _member(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in kind.__members__.values() else str(number)
