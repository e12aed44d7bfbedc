"""The audit lines of a request in Kafka's protocol: one for each outcome in its answer.

A request that deletes two topics, one of which is denied, produces two lines; a request denied as a whole produces one. Names
are taken from the request and the answer; keys, values, passwords and values of configurations are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from diamant.broker.client.acl import WILDCARD, Operation, PatternType, Permission, ResourceType
from diamant.broker.faults.error_response import MIRRORS, Fields, topic_of
from diamant.broker.security.audit.audit_log import DENIED, DONE, VALIDATED, AuditedAction
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

_DENIALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
_RESOURCES = {
    BROKER_RESOURCE: "broker",
    BROKER_LOGGER_RESOURCE: "broker-logger",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}


class Subjects(NamedTuple):
    """The subjects of one element of a request or an answer."""

    topics: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()


class ApiSubjects(NamedTuple):
    """The description of an API's elements. `is_of_request`: the answer has the request's order but lacks the
    described fields.
    """

    describe: Callable[[Any], Subjects]
    is_of_request: bool = False


def audited_actions(
    key: int, who: tuple[str, str, str], request: Fields, response: Fields
) -> Iterator[tuple[AuditedAction, str]]:
    """Yield the audited actions of one request with their outcomes. `who`: principal, host, and API name."""
    found: dict[int, list[Subjects]] = {}
    for code, subjects in _outcomes(key, request, response):
        found.setdefault(code, []).append(subjects)
    is_tried = bool(request.get("validate_only", False))
    for code, several in found.items():
        topics, names, configs = (
            tuple(dict.fromkeys(chain.from_iterable(kind))) for kind in zip(*several, strict=True)
        )
        yield (
            AuditedAction(*who, topics, names=(*_of_whole(request), *names), configs=configs),
            _word(code, is_tried=is_tried),
        )


def _outcomes(key: int, request: Fields, response: Fields) -> Iterator[tuple[int, Subjects]]:
    """Yield error codes, each with its subjects."""
    mirrors = MIRRORS.get(key, ())
    asked = [element for mirror in mirrors for element in request.get(mirror.request) or ()]
    names = dict.fromkeys(mirror.response or mirror.inner[0].response for mirror in mirrors)
    answered = [element for name in names for element in response.get(name) or ()]
    whole = response.get("error_code", 0)
    describe, is_of_request = ABOUT[key]
    if whole or not answered:
        yield whole, Subjects()
        for element in asked:
            yield whole, describe(element)
        return
    described = asked if is_of_request and len(asked) == len(answered) else answered
    for element, result in zip(described, answered, strict=True):
        for code in dict.fromkeys(_codes(result)):
            yield code, describe(element)


def _codes(element: Any) -> list[int]:
    """Return the codes of an element: those of its parts, and its own if it is an error or has no parts."""
    if not isinstance(element, dict):
        return []
    inner = [code for value in element.values() if isinstance(value, list) for one in value for code in _codes(one)]
    own = [element["error_code"]] if "error_code" in element else []
    return [code for code in own if code or not inner] + inner


def _word(code: int, *, is_tried: bool) -> str:
    if not code:
        return VALIDATED if is_tried else DONE
    if code in _DENIALS:
        return DENIED
    return ErrorCode(code).name


def _of_whole(request: Fields) -> tuple[str, ...]:
    """Return the subject that a request names outside its arrays."""
    if "group_id" in request:
        return (f"group {request['group_id']}",)
    return (f"broker {request['broker_id']}",) if "broker_id" in request else ()


# -- elements ------------------------------------------------------------------------------------------------------------


def _topics(element: Any) -> Subjects:
    if isinstance(element, str):
        return Subjects((element,))
    if "topics" in element:
        return Subjects(tuple(one["name"] for one in element["topics"]))
    return Subjects((topic_of(element) or f"id {element.get('topic_id')}",))


def _resource(element: Fields) -> Subjects:
    kind, name = element["resource_type"], element["resource_name"]
    configs = tuple(config["name"] for config in element["configs"])
    if kind == TOPIC_RESOURCE:
        return Subjects((name,), configs=configs)
    return Subjects(names=(f"{_RESOURCES.get(kind, kind)} {name}".rstrip(),), configs=configs)


def _group(element: Any) -> Subjects:
    return Subjects(names=(f"group {element if isinstance(element, str) else element['group_id']}",))


def _user(element: Fields) -> Subjects:
    return Subjects(names=(f"user {element.get('user') or element.get('name')}",))


def _entity(element: Fields) -> Subjects:
    parts = (f"{part['entity_type']} {part['entity_name'] or '<default>'}" for part in element["entity"])
    return Subjects(names=(", ".join(parts),))


def _feature(element: Fields) -> Subjects:
    return Subjects(names=(f"feature {element['feature']}",))


def _acl(element: Fields) -> Subjects:
    """Describe an ACL in the short form of `client/acl_text.py`. `any` stands for an open field of a filter."""
    given = {name.removesuffix("_filter").removeprefix("resource_"): value for name, value in element.items()}
    words = (
        given["principal"],
        _member(Permission, given["permission_type"]),
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


ABOUT: dict[int, ApiSubjects] = {
    19: ApiSubjects(_topics),
    20: ApiSubjects(_topics),
    21: ApiSubjects(_topics),
    27: ApiSubjects(_topics),
    30: ApiSubjects(_acl, is_of_request=True),
    31: ApiSubjects(_acl, is_of_request=True),
    33: ApiSubjects(_resource, is_of_request=True),
    34: ApiSubjects(_topics),
    37: ApiSubjects(_topics),
    42: ApiSubjects(_group),
    43: ApiSubjects(_topics),
    44: ApiSubjects(_resource, is_of_request=True),
    45: ApiSubjects(_topics),
    47: ApiSubjects(_topics),
    49: ApiSubjects(_entity),
    51: ApiSubjects(_user),
    57: ApiSubjects(_feature),
    64: ApiSubjects(_topics),
}
"""By API key: the rows of the table of APIs that are audited."""
