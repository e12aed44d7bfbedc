"""Places of identifiers and fields in records: `key`, `key.id`, `value.customer.email`, `header.user`.

A place is written as in a condition (`redaction/where.py`). A path that leads through lists may have several values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from diamant.cleaner.redaction.json_path import EXISTS, decoded_value
from diamant.cleaner.redaction.where import HEADER, Comparison, WhereError, field_text, parse_where, steps_of
from diamant.cleaner.values.nodes import DateOrTime, Object, Undecodable
from diamant.cleaner.values.schemas import KEY, VALUE, Values
from diamant.protocol.batches.header import Record

MAX_IDENTIFIER_BYTES = 1024
"""Longer values do not count as identifiers."""

_WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,38})")
_MAX_DIGITS = 39


@dataclass(frozen=True, slots=True, order=True)
class FieldPath:
    """A key, a part of a key or a value, or a header."""

    field: str
    """`key`, `value` or `header`."""
    path: tuple[str, ...]
    """The names that lead to a field of the key or value; for a header, its name and then the names in its value."""

    @property
    def text(self) -> str:
        """The place as written in the map."""
        return field_text(self.field, self.path)

    @property
    def is_key(self) -> bool:
        """True for the whole key."""
        return self == WHOLE_KEY

    def comparisons(self, value: str) -> Iterator[str]:
        """Yield comparisons that find an identifier here, for a condition; whole numbers are compared as string and as number."""
        yield f"{self.text} == {json.dumps(value, ensure_ascii=False)}"
        if steps_of(self.field, self.path) and _WHOLE_NUMBER.fullmatch(value):
            yield f"{self.text} == {value}"


WHOLE_KEY = FieldPath(KEY, ())


def parse_place(text: str) -> FieldPath:
    """Parse a place. Raises ValueError, whose message says what was expected."""
    try:
        node = parse_where(f"{text} exists").node
    except WhereError:
        node = None
    if not isinstance(node, Comparison) or node.literal is not EXISTS:
        raise ValueError("expected key, key.NAME, value.NAME or header.NAME")
    if node.field == VALUE and not node.path:
        raise ValueError("expected a path into the value, such as value.email")
    return FieldPath(node.field, node.path)


class Parts:
    """The parts of one record, each decoded once."""

    def __init__(self, record: Record, values: Values) -> None:
        self.record = record
        self._values = values
        self._roots: dict[str, object] = {}

    def root(self, field: str) -> Any:
        """Return the decoded `key` or `value` (`values/nodes.py`); None if it is missing or cannot be decoded."""
        if field not in self._roots:
            self._roots[field] = self._decode(field)
        return self._roots[field]

    def at(self, place: FieldPath) -> list[str]:
        """Return the strings and whole numbers at a place, as strings; empty if nothing there can be an identifier."""
        if place.field == HEADER:
            headers = [value for name, value in self.record.headers if name == place.path[0]]
            nodes = [node for one in headers for node in nodes_at(self._in_header(one, place), place.path[1:])]
            return [found for node in nodes if (found := identifier_text(node))]
        if not place.path:
            found = identifier_text(self.record.key if place.field == KEY else self.record.value)
            return [] if found is None else [found]
        nodes = nodes_at(self.root(place.field), place.path)
        return [found for node in nodes if (found := identifier_text(node)) is not None]

    def has(self, place: FieldPath) -> bool:
        """Tell whether the record has a non-null value at a place."""
        if place.field == HEADER or not place.path:
            return bool(self.at(place))
        return any(node is not None for node in nodes_at(self.root(place.field), place.path))

    def _in_header(self, data: bytes | None, place: FieldPath) -> Any:
        return data if len(place.path) == 1 else self._decoded(HEADER, data)

    def _decode(self, field: str) -> Any:
        return self._decoded(field, self.record.key if field == KEY else self.record.value)

    def _decoded(self, field: str, data: bytes | None) -> Any:
        if data is None:
            return None
        values = self._values
        try:
            frame = values.frame_of(self.record, field, data)
            return decoded_value(data, frame, lambda one: values.decode(one, field))
        except (Undecodable, ValueError, RecursionError):
            return None


def nodes_at(root: Any, path: tuple[str, ...]) -> list[Any]:
    """Return the values at the end of a path; a list there is replaced by its items."""
    found = [root]
    for name in path:
        found = [value for node in _flat(found) if isinstance(node, Object) for key, value in node if key == name]
    return list(_flat(found))


def _flat(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, list):
            yield from _flat(node)
        else:
            yield node


def identifier_text(node: Any) -> str | None:
    """Return a value as an identifier's string; None if it is blank, too long, or of a type that cannot be an identifier."""
    if isinstance(node, DateOrTime) or node is None or isinstance(node, bool):
        return None
    if isinstance(node, bytes):
        try:
            node = node.decode()
        except UnicodeDecodeError:
            return None
    elif isinstance(node, float):
        node = Decimal(repr(node))
    if isinstance(node, Decimal):
        if not node.is_finite() or node != node.to_integral_value() or node.adjusted() >= _MAX_DIGITS:
            return None
        node = int(node)
    text = str(node) if isinstance(node, int) else node
    if not isinstance(text, str) or not text.strip() or len(text.encode(errors="replace")) > MAX_IDENTIFIER_BYTES:
        return None
    return text
