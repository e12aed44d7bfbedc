"""Decoded values: the trees in which paths of field names are followed, whatever format the bytes had.

    Object          a record, a message, a map: pairs of name and value, in the order of the bytes
    list            a list
    str             a string, an enum symbol, a UUID
    bytes           bytes, which equal a string if they are its UTF-8
    int, float      a number of Avro or Protobuf
    Decimal         a number of JSON, or a logical decimal
    DateOrTime      a date or a time, which equals both its number and its text
    Unknown         bytes of Protobuf that its schema does not explain
    bool, None

Values of different types are not equal: true is not 1, and the string "42" is not 42.
"""

from __future__ import annotations

import base64
import math
import re
from decimal import Decimal
from typing import Any, Final, NamedTuple

SYMBOL: Final = re.compile(r"[^\W\d]\w*")
"""Matches enum symbols that Avro for Java allows. Searches rely on this: only symbols are in the schema instead of the bytes."""


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
    """The stored number, in the unit that the schema specifies."""
    text: str
    """The date or time in ISO 8601; a timestamp in UTC."""


def is_equal(node: Any, literal: object) -> bool:
    """Tell whether a value equals the literal of a condition: str, Decimal, bool or None."""
    if type(node) is type(literal):  # true of nearly all nodes
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
    # Types are compared, because otherwise true would equal 1. Converted from its text, the float 0.1 equals the literal 0.1.
    if type(node) is int or (type(node) is float and math.isfinite(node)):
        return (Decimal(repr(node)),)
    return (node,) if node is None or isinstance(node, str | bool | Decimal) else ()


def plain(node: Any) -> Any:
    """Convert a value for `json.dumps`: bytes to base64; dates, times, decimals and numbers that JSON lacks to strings."""
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
