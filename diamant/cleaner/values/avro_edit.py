"""Changes fields in Avro: follows a path through a value's bytes, and encodes new values of fields by their schema.

All other bytes are copied as their writer encoded them, except the sizes of blocks around a change. A given value is JSON in the
form of Avro's defaults, but strings given for bytes are encoded as UTF-8, and logical types also accept strings. In a union, a
new value keeps the present branch if it fits, and otherwise takes the first branch that fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from diamant.cleaner.values.avro import MAX_SCHEMA_DEPTH, NO_DEFAULT, PER_SECOND, AvroField, AvroType
from diamant.cleaner.values.cursor import Cursor
from diamant.cleaner.values.edits import DEFAULT, EMPTY, NULL, TEXT, Edit, NewValue, Unchangeable, growth, real, whole

MAX_PARTS = 100_000
"""Maximum number of parts of a new value."""

_INT_BITS = {"int": 32, "long": 64}
_EMPTY = {"string": b"\0", "bytes": b"\0", "array": b"\0", "map": b"\0", "int": b"\0", "long": b"\0", "boolean": b"\0"}
_EPOCH = datetime(1970, 1, 1)
_LATIN = "latin-1"
_UUID = re.compile(r"[\da-fA-F]{8}(-[\da-fA-F]{4}){3}-[\da-fA-F]{12}", re.ASCII)
_NO_SUCH_VALUE = "the schema does not allow this value for the field"


class AvroEdits:
    """Collects the edits to one value for one path."""

    def __init__(self, cursor: Cursor, path: Sequence[str], new: NewValue) -> None:
        self._cursor = cursor
        self._path = path
        self._new = new
        self.found: list[Edit] = []

    def visit(self, kind: AvroType, level: int, step: int, field: AvroField | None = None) -> None:
        """Read a value (of `field`, if any) and edit what the path leads to from `step` on. Raises Undecodable, Unchangeable."""
        cursor, is_there = self._cursor, step == len(self._path)
        if is_there and not (self._new.kind == TEXT and self._is_list(kind)):
            self._replace(kind, level, field)
        elif kind.kind == "union":
            cursor.enter(level)
            self.visit(kind.branch(cursor.zigzag()), level + 1, step, field)
        elif kind.kind == "array":
            self._blocks(level, lambda: self.visit(kind.parts[0], level + 1, step))
        elif kind.kind == "record":
            cursor.enter(level)
            start = cursor.position
            for one in kind.fields:
                if one.name == self._path[step]:
                    self.visit(one.type, level + 1, step + 1, one)
                else:
                    one.type.read(cursor, level + 1)
            cursor.count_empty(len(kind.fields), start)
        elif kind.kind == "map":
            self._blocks(level, lambda: self._entry(kind.parts[0], level, step))
        else:
            kind.read(cursor, level)

    def _is_list(self, kind: AvroType) -> bool:
        """Tell whether the value at the cursor is a list, in which a fixed string replaces each item."""
        if kind.kind == "union":
            at = self._cursor.position
            branch = kind.branch(self._cursor.zigzag())
            self._cursor.position = at
            return branch.kind == "array"
        return kind.kind == "array"

    def _entry(self, value: AvroType, level: int, step: int) -> None:
        if self._cursor.text(self._cursor.zigzag()) == self._path[step]:
            self.visit(value, level + 1, step + 1)
        else:
            value.read(self._cursor, level + 1)

    def _blocks(self, level: int, visit_item: Callable[[], None]) -> None:
        cursor = self._cursor
        cursor.enter(level)
        while count := cursor.zigzag():
            start, before, size = cursor.position, len(self.found), None
            if count < 0:
                count, size = -count, cursor.zigzag()
            end = cursor.position
            cursor.enter(level, count)
            for _ in range(count):
                visit_item()
            more = growth(self.found[before:])
            if size is not None and more:
                self.found.append(Edit(start, end, zigzag(size + more)))

    def _replace(self, kind: AvroType, level: int, field: AvroField | None) -> None:
        cursor = self._cursor
        start = cursor.position
        index = None
        if kind.kind == "union":
            index = cursor.zigzag()
            cursor.position = start
        old = kind.read(cursor, level)
        new = self._encoded(kind, index, field)
        is_same = new == cursor.data[start : cursor.position]
        self.found.append(Edit(start, cursor.position, new, None if is_same else old))

    def _encoded(self, kind: AvroType, index: int | None, field: AvroField | None) -> bytes:
        """Return the bytes of the new value. `index`: the present branch if the type is a union, else None."""
        what, coder = self._new.kind, _Coder()
        if what == NULL:
            return coder.encoded(kind, None)
        if what == DEFAULT:
            if field is None or field.default is NO_DEFAULT:
                raise Unchangeable("the schema has no default for the field")
            return _Coder(_LATIN).encoded(kind, field.default)
        if what == EMPTY:
            return coder.empty(kind) if index is None else zigzag(index) + coder.empty(kind.branch(index))
        given = self._new.given
        if index is not None:
            try:
                return zigzag(index) + coder.encoded(kind.branch(index), given)
            except Unchangeable:
                pass
        return coder.encoded(kind, given)


def zigzag(number: int) -> bytes:
    """Encode a number as Avro does."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


class _Coder:
    """Encodes values. Raises Unchangeable if a value does not fit its type, or has more than `MAX_PARTS` parts."""

    def __init__(self, text_of_bytes: str = "utf-8") -> None:
        self._text_of_bytes = text_of_bytes
        self._parts_left = MAX_PARTS

    def _enter(self, depth: int) -> None:
        self._parts_left -= 1
        if depth > MAX_SCHEMA_DEPTH or self._parts_left < 0:
            raise Unchangeable(f"the value has more than {MAX_SCHEMA_DEPTH} levels, or more than {MAX_PARTS:,} parts")

    def empty(self, kind: AvroType, depth: int = 0) -> bytes:
        """Return the bytes of the empty value of a type."""
        self._enter(depth)
        if (
            kind.logical in ("decimal", "uuid") and kind.kind != "fixed"
        ):  # readers in other languages fail if there are no bytes
            return _sized(b"\0" if kind.logical == "decimal" else str(UUID(int=0)).encode())
        if kind.kind in _EMPTY:
            return _EMPTY[kind.kind]
        if kind.kind in ("null", "float", "double", "fixed"):
            return bytes({"null": 0, "float": 4, "double": 8}.get(kind.kind, kind.size))
        if kind.kind == "enum":
            raise Unchangeable("an enum has no empty value")
        if kind.kind == "record":
            return b"".join(self.empty(one.type, depth + 1) for one in kind.fields)
        nothing = next((index for index, one in enumerate(kind.parts) if one.kind == "null"), 0)
        return zigzag(nothing) + self.empty(kind.branch(nothing), depth + 1)

    def encoded(self, kind: AvroType, value: Any, depth: int = 0) -> bytes:
        """Encode a JSON value as a value of this type."""
        self._enter(depth)
        name, inner = kind.kind, depth + 1
        if name == "union":
            return self._first_branch(kind, value, inner)
        if name == "record" and isinstance(value, dict) and value.keys() <= {one.name for one in kind.fields}:
            if not all(one.name in value or one.default is not NO_DEFAULT for one in kind.fields):
                raise Unchangeable(_NO_SUCH_VALUE)
            return b"".join(
                self.encoded(one.type, value[one.name], inner) if one.name in value else self._default(one, inner)
                for one in kind.fields
            )
        if name == "array" and isinstance(value, list):
            items = b"".join(self.encoded(kind.parts[0], one, inner) for one in value)
            return zigzag(len(value)) + items + b"\0" if value else b"\0"
        if name == "map" and isinstance(value, dict):
            entries = [_sized(_text(key)) + self.encoded(kind.parts[0], one, inner) for key, one in value.items()]
            return zigzag(len(value)) + b"".join(entries) + b"\0" if value else b"\0"
        if name == "enum" and isinstance(value, str) and value in kind.symbols:
            return zigzag(kind.symbols.index(value))
        if name in ("record", "array", "map", "enum"):
            raise Unchangeable(_NO_SUCH_VALUE)
        return _scalar(kind, value, self._text_of_bytes)

    def _default(self, field: AvroField, depth: int) -> bytes:
        given, self._text_of_bytes = self._text_of_bytes, _LATIN
        try:
            return self.encoded(field.type, field.default, depth)
        finally:
            self._text_of_bytes = given

    def _first_branch(self, kind: AvroType, value: Any, depth: int) -> bytes:
        for index, branch in enumerate(kind.parts):
            try:
                return zigzag(index) + self.encoded(branch, value, depth)
            except Unchangeable:
                self._enter(depth)
        raise Unchangeable(_NO_SUCH_VALUE)


def _scalar(kind: AvroType, value: Any, text_of_bytes: str) -> bytes:
    name = kind.kind
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if name == "null" and value is None:
        return b""
    if name == "boolean" and isinstance(value, bool):
        return b"\1" if value else b"\0"
    if name in _INT_BITS and (is_number or isinstance(value, str)):
        number = whole(value) if is_number else _number_of(kind, value)
        if -1 << (_INT_BITS[name] - 1) <= number < 1 << (_INT_BITS[name] - 1):
            return zigzag(number)
    if name in ("float", "double") and is_number:
        return real(value, "<f" if name == "float" else "<d")
    is_uuid = kind.logical == "uuid" and text_of_bytes != _LATIN  # a default need not be a UUID
    if name == "string" and isinstance(value, str) and (not is_uuid or _UUID.fullmatch(value)):
        return _sized(_text(value))
    if name in ("bytes", "fixed"):
        data = _octets(kind, value, text_of_bytes)
        if name == "bytes":
            return _sized(data)
        if len(data) == kind.size:
            return data
    raise Unchangeable(_NO_SUCH_VALUE)


def _text(text: str) -> bytes:
    """Encode a string as UTF-8. Raises Unchangeable for lone surrogates, which UTF-8 cannot encode."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unchangeable(_NO_SUCH_VALUE) from None


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _octets(kind: AvroType, value: Any, text_of_bytes: str) -> bytes:
    """Return the bytes that represent a string, a decimal or a UUID in a bytes or fixed type. Raises Unchangeable."""
    try:
        if kind.logical == "decimal" and text_of_bytes != _LATIN:
            number = whole(Decimal(value if isinstance(value, str) else str(value)), kind.scale)
            return number.to_bytes(kind.size or (number.bit_length() + 8) // 8, "big", signed=True)
        if kind.logical == "uuid" and text_of_bytes != _LATIN:
            return UUID(value).bytes
        if isinstance(value, str):
            return value.encode(text_of_bytes)
    except (ValueError, InvalidOperation, OverflowError, TypeError, AttributeError):
        pass
    raise Unchangeable(_NO_SUCH_VALUE)


def _number_of(kind: AvroType, text: str) -> int:
    """Return the integer that Avro stores for a date or a time. Raises Unchangeable."""
    word, _, unit = kind.logical.rpartition("-")
    try:
        if kind.logical == "date":
            return (date.fromisoformat(text) - _EPOCH.date()).days
        if word == "time":
            moment = datetime.combine(_EPOCH.date(), time.fromisoformat(text))
        elif word in ("timestamp", "local-timestamp"):
            moment = datetime.fromisoformat(text)
        else:
            raise ValueError(word)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        raise Unchangeable(_NO_SUCH_VALUE) from None
    since = moment - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return micros * PER_SECOND[unit] // 1_000_000


def edit_avro(kind: AvroType, payload: bytes, path: Sequence[str], new: NewValue) -> list[Edit]:
    """Return the edits that change the fields at a path. Raises Undecodable, Unchangeable."""
    edits = AvroEdits(Cursor(payload), path, new)
    edits.visit(kind, 0, 0)
    return edits.found
