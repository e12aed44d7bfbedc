"""The shape of an API's error responses: the request's arrays that the response mirrors, and the positions of error codes.

A response mirrors the things that the request names (topics, partitions, groups, resources): it has an array for each array of
the request, sometimes under another name. Clients look for an error code in the innermost elements (in Produce, the partitions).
If it concerns the whole request, they look at the outermost level that has a code in their version (in OffsetFetch, the groups
from version 8 on, the top from version 2 on, and the partitions in version 1). The table in `broker/dispatch/api_table.py` has
the shape of each API; `error_response.py` makes responses from it.

Source: `getErrorResponse` of Kafka's request classes. If clients look at another level, as in Fetch, the code is at that level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from diamant.protocol.errors import ErrorCode

Fields: TypeAlias = dict[str, Any]

TOPIC_RESOURCE = 2
TOPIC_WORDS = ("name", "topic", "topic_name")
"""Kafka's names for the field with a topic's name."""


class Mirror(NamedTuple):
    """An array of the request, and the array of the response that has an element for each of its elements.

    `response` is "" if the response lacks this level of grouping (AlterReplicaLogDirs).
    """

    request: str
    response: str
    inner: tuple[Mirror, ...] = ()


class Refusal(NamedTuple):
    """How Kafka's response to a request refused as a whole differs from the API's shape, from `first_version` on."""

    first_version: int = 0
    is_on_top_too: bool = False
    """True if the code is at the top as well as in the elements."""
    is_only_on_top: bool = False
    """True if the code is at the top, and there are no elements."""
    fields: Mapping[str, object] = {}
    """Fields whose values differ from those in other error responses."""


class ErrorShape(NamedTuple):
    """The positions of the codes in the error responses of one API."""

    mirrors: tuple[Mirror, ...] = ()
    names_topics: bool = True
    """True if the request's arrays name topics, or configurations of topics."""
    adds_partitions: bool = False
    """True if the response has error codes for partitions that the request does not name, as in descriptions of topics."""
    is_of_coordinator: bool = False
    """True if the API responds with COORDINATOR_LOAD_IN_PROGRESS while a coordinator loads its topic."""
    outermost: frozenset[ErrorCode] = frozenset()
    """The codes that concern the whole request; all others are in the elements."""
    innermost: frozenset[ErrorCode] | None = None
    """If not None, only these codes are in the elements; all others concern the whole request."""
    sole_array: str = ""
    """In versions without a code at the top, the code is in a single element of this array."""
    repeated: tuple[str, ...] = ()
    """Fields of the request that the response repeats."""
    refusal: Refusal = Refusal()

    def is_outermost(self, code: ErrorCode) -> bool:
        """Return True if the code concerns the whole request."""
        return code in self.outermost or (self.innermost is not None and code not in self.innermost)


def topic_of(value: Fields) -> str | None:
    """Return the topic that an element names, directly or as a resource. Topic ids are not looked up."""
    if value.get("resource_type") == TOPIC_RESOURCE:
        return str(value["resource_name"])
    return next((value[word] for word in TOPIC_WORDS if value.get(word)), None)
