"""Error responses, made from the request by schema, for every served API and version.

Theory of operation. A response mirrors the things that the request names (topics, partitions, groups, resources): it has an
array for each array of the request, sometimes under another name. `MIRRORS` lists them. An error response is the request's
arrays under the response's names, with an error code where clients read it: in the innermost elements (Produce: the
partition), or, for codes that concern the whole request, at the outermost level of the version (OffsetFetch: the group from
version 8, the top from 2, each partition in 1). `OUTERMOST` lists the level for each API, from the `getErrorResponse` of
Kafka's request classes. Where that and the clients disagree, as in Fetch, it is the level that clients read.

All functions work on plain fields, as made by `message_fields`. An element has all of Kafka's names for its identity at once
(index, partition_index, partition, ...); the encoder leaves out those that a version lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schema_fields import schema_fields
from diamant.protocol.wire.schemas import response_class

Fields: TypeAlias = dict[str, Any]
Wants: TypeAlias = Callable[[str | None, int | None], bool]
"""A predicate for (topic, partition). Partition None: the topic as a whole."""
NameOf: TypeAlias = Callable[[Fields], str | None]
"""Returns the topic of an array's element; None if it has none, or one that does not exist."""


class Mirror(NamedTuple):
    """An array of the request, and the array of the response with one element for each of its elements.

    `response` is "" if the response lacks this level of grouping (AlterReplicaLogDirs).
    """

    request: str
    response: str
    inner: tuple[Mirror, ...] = ()


_PARTITIONS = (Mirror("partitions", "partitions"),)
_INDEXES = (Mirror("partition_indexes", "partitions"),)
_TOPICS = (Mirror("topics", "topics", _PARTITIONS),)

MIRRORS: dict[int, tuple[Mirror, ...]] = {
    0: (Mirror("topic_data", "responses", (Mirror("partition_data", "partition_responses"),)),),
    1: (Mirror("topics", "responses", _PARTITIONS),),
    2: _TOPICS,
    3: (Mirror("topics", "topics"),),
    8: _TOPICS,
    9: (
        Mirror("groups", "groups", (Mirror("topics", "topics", _INDEXES),)),
        Mirror("topics", "topics", _INDEXES),
    ),
    10: (Mirror("coordinator_keys", "coordinators"),),
    13: (Mirror("members", "members"),),
    15: (Mirror("groups", "groups"),),
    19: (Mirror("topics", "topics"),),
    20: (Mirror("topics", "responses"), Mirror("topic_names", "responses")),
    21: _TOPICS,
    23: _TOPICS,
    24: (
        Mirror(
            "transactions",
            "results_by_transaction",
            (Mirror("topics", "topic_results", (Mirror("partitions", "results_by_partition"),)),),
        ),
        Mirror(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            (Mirror("partitions", "results_by_partition"),),
        ),
    ),
    27: (Mirror("markers", "markers", (Mirror("topics", "topics", _INDEXES),)),),
    28: _TOPICS,
    30: (Mirror("creations", "results"),),
    31: (Mirror("filters", "filter_results"),),
    32: (Mirror("resources", "results"),),
    33: (Mirror("resources", "responses"),),
    34: (Mirror("dirs", "", (Mirror("topics", "results", _PARTITIONS),)),),
    37: (Mirror("topics", "results"),),
    42: (Mirror("groups_names", "results"),),
    43: (Mirror("topic_partitions", "replica_election_results", (Mirror("partitions", "partition_result"),)),),
    44: (Mirror("resources", "responses"),),
    45: (Mirror("topics", "responses", _PARTITIONS),),
    47: _TOPICS,
    49: (Mirror("entries", "entries"),),
    50: (Mirror("users", "results"),),
    51: (Mirror("deletions", "results"), Mirror("upsertions", "results")),
    55: _TOPICS,
    57: (Mirror("feature_updates", "results"),),
    61: (Mirror("topics", "topics", _INDEXES),),
    65: (Mirror("transactional_ids", "transaction_states"),),
    69: (Mirror("group_ids", "groups"),),
    75: (Mirror("topics", "topics"),),
}

_SESSION_CODES = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_OFFSET_CODES = frozenset(
    {
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
_MEMBER_CODES = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})

OUTERMOST: dict[int, frozenset[ErrorCode]] = {
    9: _OFFSET_CODES,
    13: _MEMBER_CODES,
    35: frozenset(),
    47: _OFFSET_CODES,
    50: frozenset(),
    55: _OFFSET_CODES,
    57: frozenset(),
}
"""APIs whose error codes concern the whole request, with their exceptions. In all other APIs, the elements have the code."""

_OUTERMOST_CODES: dict[int, frozenset[ErrorCode]] = {
    1: _SESSION_CODES,
    3: frozenset({ErrorCode.REBOOTSTRAP_REQUIRED}),
}
"""Codes that concern the whole request, in APIs whose other codes are in the elements."""

TOPICS_WITH_PARTITIONS = frozenset({3, 75})
"""APIs that describe topics: their responses have partitions, with error codes, that the request does not name."""

TOPIC_APIS = frozenset({0, 1, 2, 3, 8, 9, 19, 20, 21, 23, 24, 27, 28, 32, 33, 34, 37, 43, 44, 45, 47, 55, 61, 75})
"""APIs whose requests name topics (or configurations of topics)."""

DESCRIBE_LOG_DIRS = 35
JOIN_GROUP = 11
TOPIC_RESOURCE = 2

# Values of a response for an unknown thing, where they differ from the schema's defaults.
_UNKNOWN: Fields = {
    "base_offset": -1,
    "high_watermark": -1,
    "committed_offset": -1,
    "low_watermark": -1,
    "producer_epoch": -1,
    "node_id": -1,
    "port": -1,
    "metadata": "",
    "records": b"",
}
_IDENTITY = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "key",
    "user",
    "feature",
    "resource_type",
    "resource_name",
    "transactional_id",
    "member_id",
    "group_instance_id",
    "entity",
    "producer_id",
    "index",
    "partition",
    "partition_index",
    "partition_id",
)
_TOPIC_WORDS = ("name", "topic", "topic_name")
_PARTITION_WORDS = ("index", "partition", "partition_index", "partition_id")
_ID_WORDS = ("name", "group_id", "key", "transactional_id", "user", "feature")


class ErrorAnswer:
    """Makes the responses with one error for one API version.

    `message` is used in responses that have a field for it. `is_for_parts`: the error concerns single topics or partitions, so
    it is never at the outermost level.
    """

    def __init__(self, api_key: int, version: int, code: ErrorCode, message: str, *, is_for_parts: bool) -> None:
        self._api_key = api_key
        self._version = version
        self._code = code
        self._response = response_class(api_key, version)
        self._mirrors = MIRRORS.get(api_key, ())
        self._error: Fields = {
            "error_code": int(code),
            "partition_error_code": int(code),
            "error_message": message,
        }
        exceptions = OUTERMOST.get(api_key)
        is_outermost = code in _OUTERMOST_CODES.get(api_key, ()) or (exceptions is not None and code not in exceptions)
        self._is_outermost = is_outermost and not is_for_parts
        self.is_for_whole_answer = self._is_outermost and _has_code(self._response)
        """True if the error concerns the whole response instead of single elements."""

    def whole(self, request: Fields) -> Fields | None:
        """Return the response that refuses a whole request; None if this version has no field for the code."""
        if not self._is_outermost:
            found = self._innermost(request, self._mirrors)
            if found:
                return self._with_identity(request, found)
        if self._api_key == DESCRIBE_LOG_DIRS and not _has_code(self._response):
            return {"results": [{**self._error, "log_dir": ""}]}
        outer = self._outermost(self._response, request, self._mirrors)
        return None if outer is None else self._with_identity(request, outer)

    def element(self, value: Any) -> Fields:
        """Return an element of the response with the error, for an element of the request (or of another response)."""
        return {**_UNKNOWN, **identity(value), **self._error}

    def _with_identity(self, request: Fields, found: Fields) -> Fields:
        kept = {"member_id": request["member_id"]} if self._api_key == JOIN_GROUP else {}
        return {**_UNKNOWN, **kept, **found}

    def _innermost(self, request: Fields, mirrors: tuple[Mirror, ...]) -> Fields:
        found: Fields = {}
        for mirror in mirrors:
            for value in request.get(mirror.request) or ():
                if not mirror.inner:
                    found.setdefault(mirror.response, []).append(self.element(value))
                    continue
                inner = self._innermost(value, mirror.inner)
                if not inner:
                    continue
                if mirror.response:
                    found.setdefault(mirror.response, []).append({**_UNKNOWN, **identity(value), **inner})
                else:
                    merge(found, inner, mirror.inner)
        return found

    def _outermost(self, struct: type, request: Fields, mirrors: tuple[Mirror, ...]) -> Fields | None:
        if _has_code(struct):
            return dict(self._error)
        found: Fields = {}
        structs = {field.name: field.struct for field in schema_fields(struct)}
        for mirror in mirrors:
            inner_struct = structs.get(mirror.response)
            if inner_struct is None:
                continue
            for value in request.get(mirror.request) or ():
                fields = value if isinstance(value, dict) else {}
                inner = self._outermost(inner_struct, fields, mirror.inner)
                if inner is not None:
                    found.setdefault(mirror.response, []).append({**_UNKNOWN, **identity(value), **inner})
        return found or None


def _has_code(struct: type) -> bool:
    return any(field.wire_type == "error_code" and not field.is_array for field in schema_fields(struct))


def identity(value: Any) -> Fields:
    """Return the fields that identify an element, under every name that responses use."""
    if isinstance(value, int):
        return dict.fromkeys(_PARTITION_WORDS, value)
    if isinstance(value, str):
        return dict.fromkeys(_ID_WORDS, value)
    found = {name: value[name] for name in _IDENTITY if name in value}
    for words in (_PARTITION_WORDS, _TOPIC_WORDS):
        word = next((word for word in words if word in found), None)
        if word is not None and not (word == "name" and "user" in found):
            found.update({other: found[word] for other in words if other not in found})
    if "name" in found:
        found.setdefault("user", found["name"])
    return found


# ---- parts of a request --------------------------------------------------------------------------------------------


def topic_partitions(api_key: int, request: Fields, name_of: NameOf) -> Iterator[tuple[str | None, int | None]]:
    """Yield the topics and partitions of a request: (topic, partition), or (topic, None) where it names no partitions."""
    if api_key in TOPIC_APIS:
        yield from _parts(request, MIRRORS[api_key], None, name_of)


def _parts(
    fields: Fields, mirrors: tuple[Mirror, ...], topic: str | None, name_of: NameOf
) -> Iterator[tuple[str | None, int | None]]:
    for mirror in mirrors:
        for value in fields.get(mirror.request) or ():
            inner_topic = topic or name_of(_as_fields(value))
            if mirror.inner:
                yield from _parts(value, mirror.inner, inner_topic, name_of)
            elif inner_topic is not None:
                yield inner_topic, partition_of(value)


def split(api_key: int, request: Fields, wants: Wants, name_of: NameOf) -> tuple[Fields, Fields | None]:
    """Split a request in two: the wanted parts, and the rest, None if nothing is left."""
    mirrors = MIRRORS.get(api_key, ())
    wanted = _pruned(request, mirrors, None, wants, name_of)
    rest = _pruned(request, mirrors, None, lambda topic, partition: not wants(topic, partition), name_of)
    return {**request, **wanted}, {**request, **rest} if any(rest.values()) else None


def _pruned(fields: Fields, mirrors: tuple[Mirror, ...], topic: str | None, wants: Wants, name_of: NameOf) -> Fields:
    """Return the arrays of `fields` with only the wanted parts."""
    found: Fields = {}
    for mirror in mirrors:
        values = fields.get(mirror.request)
        if values is None:
            continue
        kept = found[mirror.request] = []
        for value in values:
            inner_topic = topic or name_of(_as_fields(value))
            if mirror.inner:
                inner = _pruned(value, mirror.inner, inner_topic, wants, name_of)
                if any(inner.values()):
                    kept.append({**value, **inner})
            elif wants(inner_topic, partition_of(value)):
                kept.append(value)
    return found


def merge(into: Fields, extra: Fields, mirrors: Iterable[Mirror]) -> None:
    """Merge the elements of one response into another, into the element of the same topic if there is one."""
    for mirror in mirrors:
        if not mirror.response:
            merge(into, extra, mirror.inner)
            continue
        if not extra.get(mirror.response):
            continue
        if into.get(mirror.response) is None:
            into[mirror.response] = []
        values = into[mirror.response]
        for value in extra[mirror.response]:
            same = next((other for other in values if mirror.inner and _is_same(other, value)), None)
            if same is None:
                values.append(value)
            else:
                merge(same, value, mirror.inner)


def replace_parts(answer: ErrorAnswer, api_key: int, response: Fields, wants: Wants, name_of: NameOf) -> None:
    """Put the error into the wanted parts of a response."""
    _replace(answer, response, MIRRORS.get(api_key, ()), None, wants, name_of)


def _replace(
    answer: ErrorAnswer,
    fields: Fields,
    mirrors: tuple[Mirror, ...],
    topic: str | None,
    wants: Wants,
    name_of: NameOf,
) -> None:
    for mirror in mirrors:
        if not mirror.response:
            _replace(answer, fields, mirror.inner, topic, wants, name_of)
            continue
        values: list[Any] = fields.get(mirror.response) or []
        for position, value in enumerate(values):
            inner_topic = topic or name_of(value)
            if mirror.inner:
                _replace(answer, value, mirror.inner, inner_topic, wants, name_of)
            elif wants(inner_topic, partition_of(value)):
                values[position] = answer.element(value)


def partition_of(value: Any) -> int | None:
    """Return the partition number of an element, if it is a partition."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict):
        return next((value[word] for word in _PARTITION_WORDS if word in value), None)
    return None


def topic_of(value: Fields) -> str | None:
    """Return the topic that an element names, also as a resource. Topic ids are not looked up."""
    if value.get("resource_type") == TOPIC_RESOURCE:
        return str(value["resource_name"])
    return next((value[word] for word in _TOPIC_WORDS if value.get(word)), None)


def _as_fields(value: Any) -> Fields:
    if isinstance(value, dict):
        return value
    return {"name": value} if isinstance(value, str) else {}


def _is_same(one: Fields, other: Fields) -> bool:
    ours, theirs = identity(one), identity(other)
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
