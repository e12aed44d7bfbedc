"""Changes of single fields in the bytes of a value, whatever its format: the new value of a field, and its position.

    null       null; in Protobuf the field is left out
    default    the schema's default
    empty      an empty text, list or object, 0 or false, by the type of the field. A null stays
    text       a fixed text; in a list it replaces each item
    given      a value as JSON

A missing field is not added. A field that already has its new value gets an edit that changes nothing. All other bytes stay as
they are, except the sizes that some formats write before their parts.
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
    """A field cannot get its new value: its schema does not allow it, or its place is unknown. The message has no values."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """The new value of a field."""

    kind: str
    text: str = ""
    """The fixed text, or the given value as JSON."""

    @property
    def given(self) -> Any:
        """The value of `TEXT` and `GIVEN`, in which numbers with a point are Decimal."""
        return self.text if self.kind == TEXT else json.loads(self.text, parse_float=Decimal)


class Edit(NamedTuple):
    """A replacement of the bytes, or characters, from `start` to `end`."""

    start: int
    end: int
    new: bytes
    old: Any = None
    """The old value (`nodes`); None if the edit changes nothing."""


def whole(number: float | Decimal, scale: int = 0) -> int:
    """Return a number times 10 to the power of `scale`. Raises Unchangeable if the result is no integer or too large."""
    exact = number if isinstance(number, Decimal) else Decimal(number)
    sign, digits, exponent = exact.as_tuple()
    # An integer of 1e999999999 would fill the memory.
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
    """Return by how many bytes edits make the data grow."""
    return sum(len(one.new) - (one.end - one.start) for one in edits)


def spliced(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the data with all edits applied, which must not overlap and may be in any order."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        parts += [data[at : edit.start], edit.new]
        at = edit.end
    return b"".join([*parts, data[at:]])


def texts_in(node: Any) -> Iterator[bytes]:
    """Yield the texts and bytes in a value."""
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
