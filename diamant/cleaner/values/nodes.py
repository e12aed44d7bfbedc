"""Decoded values: the tree through which paths of fields lead, whatever the format of the bytes was.

    Object          a record, a message, a map: pairs of name and value, in the order of the bytes
    list            a list
    str             a text, the symbol of an enum, a UUID
    bytes           bytes; they equal a text if they are its UTF-8
    int, float      a number of Avro or Protobuf
    Decimal         a number of JSON, or a logical decimal
    DateOrTime      a date or a time: it equals its number as well as its text
    Unknown         bytes of Protobuf that its schema does not explain
    bool, None

Types do not mix: true is not 1, and the text "42" is not 42.
"""

from __future__ import annotations

import base64
import math
import re
from decimal import Decimal
from typing import Any, Final, NamedTuple

SYMBOL: Final = re.compile(r"[^\W\d]\w*")
"""Symbols of enums, as Avro for Java has them. Searches rely on this: only such texts may be in a schema and not in the bytes."""


class Undecodable(Exception):
    """The bytes cannot be decoded: the schema is missing or bad, or the bytes do not fit it. The message has no values."""


class Object(tuple[tuple[str, Any], ...]):
    """The pairs of an object, including repeated names."""

    __slots__ = ()


class Unknown(bytes):
    """Bytes that the schema does not explain, so they may hold anything."""

    __slots__ = ()


class DateOrTime(NamedTuple):
    """A date or a time."""

    number: int
    """The number as stored, in the unit of the schema."""
    text: str
    """ISO 8601, in UTC."""


def is_equal(node: Any, literal: object) -> bool:
    """Tell whether a value equals the literal of a condition: str, Decimal, bool or None."""
    if type(node) is type(literal):  # for nearly all nodes
        return bool(node == literal)
    return any(type(one) is type(literal) and bool(one == literal) for one in equals_of(node))


def equals_of(node: Any) -> tuple[Any, ...]:
    """Return the literals that a value equals; none for objects and lists."""
    if isinstance(node, DateOrTime):
        return node.text, Decimal(node.number)
    if isinstance(node, bytes):
        try:
            return (node.decode(),)
        except UnicodeDecodeError:
            return ()
    # Types are compared, because otherwise true would equal 1. By its text, the float 0.1 equals the 0.1 that people write.
    if type(node) is int or (type(node) is float and math.isfinite(node)):
        return (Decimal(repr(node)),)
    return (node,) if node is None or isinstance(node, str | bool | Decimal) else ()


def plain(node: Any) -> Any:
    """Return a value for `json.dumps`, with bytes in base64, and with decimals and numbers that JSON lacks as texts."""
    if isinstance(node, Object):
        return {name: plain(value) for name, value in node}
    if isinstance(node, list):
        return [plain(one) for one in node]
    if isinstance(node, bytes):
        return base64.b64encode(node).decode()
    if isinstance(node, DateOrTime):
        return node.text
    if isinstance(node, Decimal) or (isinstance(node, float) and not math.isfinite(node)):
        return str(node)
    return node
