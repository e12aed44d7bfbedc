"""Makes error responses from requests, by schema, for every served API and version.

An error response has the request's arrays under the response's names, with an error code where clients look for it, which the
API's `ErrorShape` defines. All functions work on plain fields, as returned by `message_fields`. The identity of an element is
given under all of Kafka's names for it (index, partition_index, partition, ...); the encoder omits names that a version lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.error_shape import TOPIC_WORDS, ErrorShape, Fields, Mirror
from diamant.protocol.wire.message_fields import message_fields
from diamant.protocol.wire.schema_fields import schema_fields
from diamant.protocol.wire.schemas import decode_request, encode_response_fields, response_class

Wants: TypeAlias = Callable[[str | None, int | None], bool]
"""Takes a topic and a partition, or None for the topic as a whole; returns True if this part of a message is wanted."""
NameOf: TypeAlias = Callable[[Fields], str | None]
"""Takes an element of an array; returns its topic, or None if it has no topic or the topic does not exist."""


# Values of fields in an error response that differ from the schema's defaults.
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
_PARTITION_WORDS = ("index", "partition", "partition_index", "partition_id")
_ID_WORDS = ("name", "group_id", "key", "transactional_id", "user", "feature")


class ErrorAnswer:
    """Builds the responses that report one error, for one version of an API.

    `message` is included if the response has a field for it. Set `is_for_parts` if the error concerns single topics or
    partitions, so that it is never put at the outermost level.
    """

    def __init__(
        self, shape: ErrorShape, api_key: int, version: int, code: ErrorCode, message: str, *, is_for_parts: bool
    ) -> None:
        self._shape = shape
        self._response = response_class(api_key, version)
        self._error: Fields = {
            "error_code": int(code),
            "partition_error_code": int(code),
            "error_message": message,
        }
        self._is_outermost = shape.is_outermost(code) and not is_for_parts
        self.is_for_whole_answer = self._is_outermost and _has_code(self._response)
        """True if the error concerns the whole response instead of single elements."""

    def whole(self, request: Fields) -> Fields | None:
        """Return the response that refuses a whole request; None if this version has no field for the code."""
        if not self._is_outermost:
            answered = self._innermost(request, self._shape.mirrors)
            if answered:
                return self._with_identity(request, answered)
        if self._shape.sole_array and not _has_code(self._response):
            return {self._shape.sole_array: [self._error]}
        outer = self._outermost(self._response, request, self._shape.mirrors)
        return None if outer is None else self._with_identity(request, outer)

    def element(self, value: Any) -> Fields:
        """Return the response's element with the error for `value`, an element of the request or of another response."""
        return {**_UNKNOWN, **identity(value), **self._error}

    def _with_identity(self, request: Fields, answered: Fields) -> Fields:
        return {**_UNKNOWN, **{name: request[name] for name in self._shape.repeated}, **answered}

    def _innermost(self, request: Fields, mirrors: tuple[Mirror, ...]) -> Fields:
        answered: Fields = {}
        for mirror in mirrors:
            for value in request.get(mirror.request) or ():
                if not mirror.inner:
                    answered.setdefault(mirror.response, []).append(self.element(value))
                    continue
                inner = self._innermost(value, mirror.inner)
                if not inner:
                    continue
                if mirror.response:
                    answered.setdefault(mirror.response, []).append({**_UNKNOWN, **identity(value), **inner})
                else:
                    merge(answered, inner, mirror.inner)
        return answered

    def _outermost(self, struct: type, request: Fields, mirrors: tuple[Mirror, ...]) -> Fields | None:
        if _has_code(struct):
            return dict(self._error)
        answered: Fields = {}
        structs = {field.name: field.struct for field in schema_fields(struct)}
        for mirror in mirrors:
            inner_struct = structs.get(mirror.response)
            if inner_struct is None:
                continue
            for value in request.get(mirror.request) or ():
                fields = value if isinstance(value, dict) else {}
                inner = self._outermost(inner_struct, fields, mirror.inner)
                if inner is not None:
                    answered.setdefault(mirror.response, []).append({**_UNKNOWN, **identity(value), **inner})
        return answered or None


def refusal(shape: ErrorShape, key: int, version: int, body: memoryview, code: ErrorCode, message: str) -> bytes:
    """Encode the response to a request that is refused as a whole, like Kafka's `getErrorResponse`."""
    answer = ErrorAnswer(shape, key, version, code, message, is_for_parts=False)
    fields = answer.whole(message_fields(decode_request(key, version, body))) or {}
    first_version, is_on_top_too, is_only_on_top, deviating = shape.refusal
    if version >= first_version:
        on_top: dict[str, object] = {"error_code": int(code), "error_message": message}
        if is_on_top_too:
            fields |= on_top
        elif is_only_on_top:
            fields = on_top
        fields |= deviating
    return encode_response_fields(key, version, fields)


def _has_code(struct: type) -> bool:
    return any(field.wire_type == "error_code" and not field.is_array for field in schema_fields(struct))


def identity(value: Any) -> Fields:
    """Return the fields that identify an element, under every name that responses use."""
    if isinstance(value, int):
        return dict.fromkeys(_PARTITION_WORDS, value)
    if isinstance(value, str):
        return dict.fromkeys(_ID_WORDS, value)
    fields = {name: value[name] for name in _IDENTITY if name in value}
    for words in (_PARTITION_WORDS, TOPIC_WORDS):
        word = next((word for word in words if word in fields), None)
        if word is not None and not (word == "name" and "user" in fields):
            fields.update({other: fields[word] for other in words if other not in fields})
    if "name" in fields:
        fields.setdefault("user", fields["name"])
    return fields


# ---- parts of a request --------------------------------------------------------------------------------------------


def topic_partitions(shape: ErrorShape, request: Fields, name_of: NameOf) -> Iterator[tuple[str | None, int | None]]:
    """Yield (topic, partition) for each partition of a request, or (topic, None) for topics without partitions."""
    if shape.names_topics:
        yield from _parts(request, shape.mirrors, None, name_of)


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


def split(mirrors: tuple[Mirror, ...], request: Fields, wants: Wants, name_of: NameOf) -> tuple[Fields, Fields | None]:
    """Split a request into the wanted parts and the rest, which is None if nothing is left."""
    wanted = _pruned(request, mirrors, None, wants, name_of)
    rest = _pruned(request, mirrors, None, lambda topic, partition: not wants(topic, partition), name_of)
    return {**request, **wanted}, {**request, **rest} if any(rest.values()) else None


def _pruned(fields: Fields, mirrors: tuple[Mirror, ...], topic: str | None, wants: Wants, name_of: NameOf) -> Fields:
    """Return the arrays of `fields` with only the wanted parts."""
    kept_fields: Fields = {}
    for mirror in mirrors:
        values = fields.get(mirror.request)
        if values is None:
            continue
        kept = kept_fields[mirror.request] = []
        for value in values:
            inner_topic = topic or name_of(_as_fields(value))
            if mirror.inner:
                inner = _pruned(value, mirror.inner, inner_topic, wants, name_of)
                if any(inner.values()):
                    kept.append({**value, **inner})
            elif wants(inner_topic, partition_of(value)):
                kept.append(value)
    return kept_fields


def merge(into: Fields, extra: Fields, mirrors: Iterable[Mirror]) -> None:
    """Merge the elements of `extra` into the response `into`: into the elements with the same identity, or else as new ones."""
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


def replace_parts(
    answer: ErrorAnswer,
    fields: Fields,
    mirrors: tuple[Mirror, ...],
    wants: Wants,
    name_of: NameOf,
    topic: str | None = None,
) -> None:
    """Replace the wanted parts of `fields`, a response or one of its elements, with parts that have the error.

    `topic` is the topic of `fields` if it is an element.
    """
    for mirror in mirrors:
        if not mirror.response:
            replace_parts(answer, fields, mirror.inner, wants, name_of, topic)
            continue
        values: list[Any] = fields.get(mirror.response) or []
        for position, value in enumerate(values):
            inner_topic = topic or name_of(value)
            if mirror.inner:
                replace_parts(answer, value, mirror.inner, wants, name_of, inner_topic)
            elif wants(inner_topic, partition_of(value)):
                values[position] = answer.element(value)


def partition_of(value: Any) -> int | None:
    """Return the number of the partition that an element is for, or None if it is not for a partition."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict):
        return next((value[word] for word in _PARTITION_WORDS if word in value), None)
    return None


def _as_fields(value: Any) -> Fields:
    if isinstance(value, dict):
        return value
    return {"name": value} if isinstance(value, str) else {}


def _is_same(element: Fields, other: Fields) -> bool:
    ours, theirs = identity(element), identity(other)
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
