"""Changes to individual fields in the bytes of a value, whatever its format: the new value of a field, and its position.

    null       null; in Protobuf the field is omitted
    default    the schema's default
    empty      an empty string, list or object, 0 or false, depending on the field's type; null remains null
    text       a fixed string; in a list it replaces each item
    given      a value as JSON

A missing field is not added. If a field already has its new value, the edit changes nothing. All other bytes stay as they are,
except the sizes that some formats write before a part of a value.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from diamant.cleaner.values.nodes import Object

MAX_DIGITS = 1_000

NULL, DEFAULT, EMPTY, TEXT, GIVEN = "null", "default", "empty", "text", "given"


class Unchangeable(Exception):
    """A field cannot be set: its schema does not allow the new value, or its position is unknown. The message has no values."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """The new value of a field."""

    kind: str
    text: str = ""
    """The fixed string, or the given value as JSON."""

    @property
    def given(self) -> Any:
        """The value for `TEXT` or `GIVEN`. Numbers with a decimal point are Decimal."""
        return self.text if self.kind == TEXT else json.loads(self.text, parse_float=Decimal)


class Edit(NamedTuple):
    """A replacement of the bytes, or characters, from `start` to `end`."""

    start: int
    end: int
    new: bytes
    old: Any = None
    """The old value (`nodes`); None if the edit changes nothing."""


def whole(number: float | Decimal, scale: int = 0) -> int:
    """Return a number times 10 to the power of `scale`. Raises Unchangeable if the result is not an integer or too large."""
    exact = number if isinstance(number, Decimal) else Decimal(number)
    sign, digits, exponent = exact.as_tuple()
    # The integer 1e999999999 would fill the memory.
    if not isinstance(exponent, int) or abs(exact.adjusted()) > MAX_DIGITS:
        raise Unchangeable("the number does not fit the schema")
    shift: int = exponent + scale
    found, rest = divmod(int("".join(map(str, digits))), int(10 ** max(0, -shift)))
    if rest:
        raise Unchangeable("the number has more decimal places than the schema")
    return (-1 if sign else 1) * found * int(10 ** max(0, shift))


def real(number: float | Decimal, form: str) -> bytes:
    """Return a number as the bytes of a float in this `struct` format. Raises Unchangeable if it is too large."""
    try:
        found = float(number)
        data = struct.pack(form, found)
    except OverflowError:
        found = math.inf
    if isinstance(number, int | Decimal) and math.isinf(found):
        raise Unchangeable("the number does not fit the schema")
    return data


def growth(edits: Sequence[Edit]) -> int:
    """Return the number of bytes by which edits make the data grow."""
    return sum(len(one.new) - (one.end - one.start) for one in edits)


def spliced(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the data with all edits applied. The edits may be in any order, but must not overlap."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        parts += [data[at : edit.start], edit.new]
        at = edit.end
    return b"".join([*parts, data[at:]])


def texts_in(node: Any) -> Iterator[bytes]:
    """Yield all strings in a value, as UTF-8, and all bytes."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one.encode(errors="surrogatepass")
        elif isinstance(one, bytes):
            yield one
        elif isinstance(one, Object):
            left += [value for _, value in one]
        elif isinstance(one, list):
            left += one
