"""Avro: compiles a schema into a reader of values, as its writer encoded them (no resolution, no defaults).

Own code, since values come from anybody: a library in C has crashed the process on a list of two million nested records, and an
array of 2^62 nulls in ten bytes would fill any memory. A value that a schema does not consume to its end, an invalid text, a
boolean of 2 are Undecodable: the schema is another one.

Bounds: schemas of `MAX_SCHEMA_BYTES` (`schemas.py`), `MAX_SCHEMA_DEPTH`; of a value, unions, records, arrays, maps and their
items count as parts (`cursor.py`).

Logical types: decimal, uuid, date, time-*, timestamp-*, local-timestamp-*. An unknown or ill-fitting one is ignored, as the
specification demands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from diamant.cleaner.values.cursor import Cursor
from diamant.cleaner.values.edits import Edit, NewValue, Unchangeable
from diamant.cleaner.values.nodes import DateOrTime, Object, Undecodable

MAX_SCHEMA_DEPTH = 64
MAX_DECIMAL_BYTES = 1_000
MAX_SCALE = 10_000

_EPOCH = datetime(1970, 1, 1)
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


Read: TypeAlias = Callable[[Cursor, int], Any]
"""Reads one value at a depth."""


class AvroReader:
    """Reads values of one schema. Any thread."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        """`references`: schemas by name, each after those that it refers to. Undecodable for a bad schema."""
        names: dict[str, Read] = {}
        for other in (references or {}).values():
            _compiled(other, names)
        self._read = _compiled(text, names)

    def edits(self, payload: bytes, path: Sequence[str], replacement: NewValue) -> list[Edit]:
        """Return the edits that change the fields at a path. Undecodable, Unchangeable."""
        raise Unchangeable("fields of this format cannot be changed")

    def read(self, payload: bytes) -> Any:
        """Return the value. Undecodable."""
        cursor = Cursor(payload)
        found = self._read(cursor, 0)
        if not cursor.is_at_end:
            raise Undecodable("bytes are left behind the value: it has another schema")
        return found


def _compiled(text: str, names: MutableMapping[str, Read]) -> Read:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        # A schema may also be a bare word: string.
        schema = text.strip()
    try:
        return _Compiler(names).compile(schema, "", 0)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Undecodable("the Avro schema is not valid") from None


class _Compiler:
    def __init__(self, names: MutableMapping[str, Read]) -> None:
        self._names = names

    def compile(self, schema: Any, namespace: str, depth: int) -> Read:
        if depth > MAX_SCHEMA_DEPTH:
            raise Undecodable(f"the Avro schema has more than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(schema, list):
            return _union([self.compile(one, namespace, depth + 1) for one in schema])
        if isinstance(schema, str):
            return _SIMPLE[schema] if schema in _SIMPLE else self._named(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.compile(kind, namespace, depth + 1)
        if kind in ("record", "error"):
            return self._record(schema, namespace, depth)
        if kind == "array":
            return _array(self.compile(schema["items"], namespace, depth + 1))
        if kind == "map":
            return _map(self.compile(schema["values"], namespace, depth + 1))
        if kind == "enum":
            return self._define(schema, namespace, _enum([str(one) for one in schema["symbols"]]))
        if kind == "fixed":
            size = int(schema["size"])
            read = _logical(schema, "fixed", lambda cursor, _depth: cursor.take(size))
            return self._define(schema, namespace, read)
        if kind in _PRIMITIVES:
            return _logical(schema, kind, _SIMPLE[kind])
        return self._named(kind, namespace)

    def _record(self, schema: Any, namespace: str, depth: int) -> Read:
        fields: list[tuple[str, Read]] = []

        def read(cursor: Cursor, at: int) -> Object:
            cursor.enter(at)
            return Object([(name, read_field(cursor, at + 1)) for name, read_field in fields])

        # Known before its fields: they may be of this type.
        self._define(schema, namespace, read)
        inner = _full_name(schema, namespace).rpartition(".")[0]
        fields += [(str(one["name"]), self.compile(one["type"], inner, depth + 1)) for one in schema["fields"]]
        return read

    def _define(self, schema: Any, namespace: str, read: Read) -> Read:
        self._names[_full_name(schema, namespace)] = read
        return read

    def _named(self, name: str, namespace: str) -> Read:
        found = self._names.get(f"{namespace}.{name}" if namespace and "." not in name else name)
        found = found or self._names.get(name)
        if found is None:
            raise Undecodable("the Avro schema uses a type that it does not define")
        return found


def _full_name(schema: Any, namespace: str) -> str:
    name, space = str(schema["name"]), schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _union(branches: list[Read]) -> Read:
    def read(cursor: Cursor, depth: int) -> Any:
        cursor.enter(depth)
        index = cursor.zigzag()
        if not 0 <= index < len(branches):
            raise Undecodable("a union has no such branch: the value has another schema")
        return branches[index](cursor, depth + 1)

    return read


def _blocks(cursor: Cursor, depth: int) -> Any:
    """Yield the number of each item of an array or a map."""
    cursor.enter(depth)
    while count := cursor.zigzag():
        if count < 0:
            count = -count
            cursor.zigzag()  # the size of the block in bytes
        cursor.enter(depth, count)
        yield from range(count)


def _array(item: Read) -> Read:
    return lambda cursor, depth: [item(cursor, depth + 1) for _ in _blocks(cursor, depth)]


def _map(value: Read) -> Read:
    return lambda cursor, depth: Object(
        [(_string(cursor, depth), value(cursor, depth + 1)) for _ in _blocks(cursor, depth)]
    )


def _enum(symbols: list[str]) -> Read:
    def read(cursor: Cursor, _depth: int) -> str:
        index = cursor.zigzag()
        if not 0 <= index < len(symbols):
            raise Undecodable("an enum has no such symbol: the value has another schema")
        return symbols[index]

    return read


def _boolean(cursor: Cursor, _depth: int) -> bool:
    byte = cursor.take(1)[0]
    if byte > 1:
        raise Undecodable("a boolean is neither 0 nor 1: the value has another schema")
    return byte == 1


def _string(cursor: Cursor, _depth: int) -> str:
    return cursor.text(cursor.zigzag())


_SIMPLE: dict[str, Read] = {
    "null": lambda _cursor, _depth: None,
    "boolean": _boolean,
    "int": lambda cursor, _depth: cursor.zigzag(),
    "long": lambda cursor, _depth: cursor.zigzag(),
    "float": lambda cursor, _depth: cursor.single(),
    "double": lambda cursor, _depth: cursor.double(),
    "bytes": lambda cursor, _depth: cursor.take(cursor.zigzag()),
    "string": _string,
}


# -- logical types -----------------------------------------------------------------------------------------------------

_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def _logical(schema: Any, kind: str, read: Read) -> Read:
    """Return the reader of a logical type; `read` if there is none that fits."""
    logical = str(schema.get("logicalType"))
    if logical == "decimal" and kind in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if isinstance(scale, int) and 0 <= scale <= MAX_SCALE:
            return lambda cursor, depth: _decimal(read(cursor, depth), scale)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return lambda cursor, depth: str(UUID(bytes=read(cursor, depth)))
    if logical == "date" and kind == "int":
        return lambda cursor, depth: _moment(read(cursor, depth), 86_400, 1, slice(0, 10), "")
    word, _, unit = logical.rpartition("-")
    if kind in ("int", "long") and unit in _PER_SECOND and word in ("time", "timestamp", "local-timestamp"):
        part, zone = slice(11 if word == "time" else 0, None), "Z" if word == "timestamp" else ""
        return lambda cursor, depth: _moment(read(cursor, depth), 1, _PER_SECOND[unit], part, zone)
    return read


def _decimal(data: bytes, scale: int) -> Decimal:
    if len(data) > MAX_DECIMAL_BYTES:
        raise Undecodable(f"a decimal has more than {MAX_DECIMAL_BYTES} bytes")
    unscaled = int.from_bytes(data, "big", signed=True)
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _moment(number: int, seconds: int, per_second: int, part: slice, zone: str) -> DateOrTime | int:
    whole, rest = divmod(number * seconds, per_second)
    try:
        text = (_EPOCH + timedelta(seconds=whole)).isoformat()[part]
    except OverflowError:
        return number
    if rest:
        text += f".{rest:0{len(str(per_second)) - 1}d}".rstrip("0")
    return DateOrTime(number, text + zone)
