"""Avro: compiles a schema into types that read values as their writer encoded them (no schema resolution, no defaults).

Diamant has its own decoder because values come from any client: two million nested records, as in a linked list, crashed a C
library and with it the process, and ten bytes that encode an array of 2^62 nulls would fill any memory. A value is Undecodable if
bytes are left after it, or if it has an invalid string or a boolean of 2, because it must have been written with another schema.

Bounds: schemas of `MAX_SCHEMA_BYTES` (`schemas.py`) and `MAX_SCHEMA_DEPTH`. The number of parts of a value is bounded
(`cursor.py`): unions, records, arrays, maps and their items are parts, and so are fields that take no bytes.

Logical types: decimal, uuid, date, time-*, timestamp-*, local-timestamp-*. A logical type that is unknown or does not fit is
ignored, as the specification requires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from diamant.cleaner.values.cursor import Cursor
from diamant.cleaner.values.nodes import SYMBOL, DateOrTime, Object, Undecodable

MAX_SCHEMA_DEPTH = 64
MAX_DECIMAL_BYTES = 1_000
MAX_SCALE = 10_000

_EPOCH = datetime(1970, 1, 1)
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


Read: TypeAlias = Callable[[Cursor, int], Any]
"""Reads the next value, which has this nesting depth."""


class _NoDefault:
    """The type of `NO_DEFAULT`, which marks a field without a default."""


NO_DEFAULT: Final = _NoDefault()


class AvroField(NamedTuple):
    """A field of a record."""

    name: str
    type: AvroType
    default: Any
    """The default as JSON in the schema, or NO_DEFAULT."""


@dataclass(slots=True, eq=False)
class AvroType:
    """A compiled type of a schema."""

    kind: str
    """`record`, `union`, `array`, `map`, `enum`, `fixed`, or a primitive type."""
    read: Read
    parts: Sequence[AvroType] = ()
    """The branches of a union, or the single type of an array's items or a map's values."""
    fields: list[AvroField] = field(default_factory=list)
    symbols: Sequence[str] = ()
    size: int = 0
    """Size of a fixed, in bytes."""
    logical: str = ""
    """The logical type; empty if there is none, or if it does not fit the type."""
    scale: int = 0

    def branch(self, index: int) -> AvroType:
        """Return a branch of a union. Raises Undecodable."""
        if not 0 <= index < len(self.parts):
            raise Undecodable("a union has no such branch, so the value has another schema")
        return self.parts[index]


class AvroReader:
    """Reads values of one schema. Usable from any thread."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        """`references`: schemas by name, each preceded by those that it refers to. Raises Undecodable for an invalid schema."""
        names: dict[str, AvroType] = {}
        for other in (references or {}).values():
            _compiled(other, names)
        self.type = _compiled(text, names)

    def read(self, payload: bytes) -> Any:
        """Return the value. Raises Undecodable."""
        cursor = Cursor(payload)
        found = self.type.read(cursor, 0)
        if not cursor.is_at_end:
            raise Undecodable("bytes are left after the value, so it has another schema")
        return found


def _compiled(text: str, names: MutableMapping[str, AvroType]) -> AvroType:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        # A schema may also be a bare word such as string.
        schema = text.strip()
    try:
        return _Compiler(names).compile(schema, "", 0)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        raise Undecodable("the Avro schema is not valid") from None


class _Compiler:
    def __init__(self, names: MutableMapping[str, AvroType]) -> None:
        self._names = names

    def compile(self, schema: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_SCHEMA_DEPTH:
            raise Undecodable(f"the Avro schema has more than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(schema, list):
            return _union([self.compile(one, namespace, depth + 1) for one in schema])
        if isinstance(schema, str):
            return AvroType(schema, _SIMPLE[schema]) if schema in _SIMPLE else self._named(schema, namespace)
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
            symbols = [str(one) for one in schema["symbols"]]
            if not all(map(SYMBOL.fullmatch, symbols)):
                raise Undecodable("the Avro schema has a symbol that is not a valid name")
            return self._define(schema, namespace, AvroType("enum", _enum(symbols), symbols=symbols))
        if kind == "fixed":
            size = int(schema["size"])
            fixed = _logical(schema, AvroType("fixed", lambda cursor, _depth: cursor.take(size), size=size))
            return self._define(schema, namespace, fixed)
        if kind in _PRIMITIVES:
            return _logical(schema, AvroType(kind, _SIMPLE[kind]))
        return self._named(kind, namespace)

    def _record(self, schema: Any, namespace: str, depth: int) -> AvroType:
        fields: list[tuple[str, Read]] = []

        def read(cursor: Cursor, at: int) -> Object:
            cursor.enter(at)
            start = cursor.position
            found = Object([(name, read_field(cursor, at + 1)) for name, read_field in fields])
            cursor.count_empty(len(fields), start)
            return found

        # The type is defined before its fields, because a field may have this type.
        found = self._define(schema, namespace, AvroType("record", read))
        inner = _full_name(schema, namespace).rpartition(".")[0]
        for one in schema["fields"]:
            kind = self.compile(one["type"], inner, depth + 1)
            found.fields.append(AvroField(str(one["name"]), kind, one.get("default", NO_DEFAULT)))
        fields += [(one.name, one.type.read) for one in found.fields]
        return found

    def _define(self, schema: Any, namespace: str, found: AvroType) -> AvroType:
        self._names[_full_name(schema, namespace)] = found
        return found

    def _named(self, name: str, namespace: str) -> AvroType:
        found = self._names.get(f"{namespace}.{name}" if namespace and "." not in name else name)
        found = found or self._names.get(name)
        if found is None:
            raise Undecodable("the Avro schema uses a type that it does not define")
        return found


def _full_name(schema: Any, namespace: str) -> str:
    name, space = str(schema["name"]), schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _union(branches: list[AvroType]) -> AvroType:
    def read(cursor: Cursor, depth: int) -> Any:
        cursor.enter(depth)
        return found.branch(cursor.zigzag()).read(cursor, depth + 1)

    found = AvroType("union", read, branches)
    return found


def _blocks(cursor: Cursor, depth: int) -> Any:
    """Yield the index of each item of an array or a map within its block."""
    cursor.enter(depth)
    while count := cursor.zigzag():
        if count < 0:
            count = -count
            cursor.zigzag()  # the size of the block in bytes
        cursor.enter(depth, count)
        yield from range(count)


def _array(item: AvroType) -> AvroType:
    read = item.read
    return AvroType("array", lambda cursor, depth: [read(cursor, depth + 1) for _ in _blocks(cursor, depth)], [item])


def _map(value: AvroType) -> AvroType:
    read = value.read
    return AvroType(
        "map",
        lambda cursor, depth: Object(
            [(_string(cursor, depth), read(cursor, depth + 1)) for _ in _blocks(cursor, depth)]
        ),
        [value],
    )


def _enum(symbols: list[str]) -> Read:
    def read(cursor: Cursor, _depth: int) -> str:
        index = cursor.zigzag()
        if not 0 <= index < len(symbols):
            raise Undecodable("an enum has no such symbol, so the value has another schema")
        return symbols[index]

    return read


def _boolean(cursor: Cursor, _depth: int) -> bool:
    byte = cursor.take(1)[0]
    if byte > 1:
        raise Undecodable("a boolean is neither 0 nor 1, so the value has another schema")
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

PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def _logical(schema: Any, found: AvroType) -> AvroType:
    """Return a type with the logical type of its schema, or unchanged if the schema has none or it does not fit."""
    logical, kind, read = str(schema.get("logicalType")), found.kind, found.read
    if logical == "decimal" and kind in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if isinstance(scale, int) and 0 <= scale <= MAX_SCALE:
            return replace(
                found, read=lambda cursor, depth: _decimal(read(cursor, depth), scale), logical=logical, scale=scale
            )
    if logical == "uuid" and kind == "string":
        return replace(found, logical=logical)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return replace(found, read=lambda cursor, depth: str(UUID(bytes=read(cursor, depth))), logical=logical)
    if logical == "date" and kind == "int":
        day = slice(0, 10)
        return replace(
            found, read=lambda cursor, depth: _moment(read(cursor, depth), 86_400, 1, day, ""), logical=logical
        )
    word, _, unit = logical.rpartition("-")
    if kind in ("int", "long") and unit in PER_SECOND and word in ("time", "timestamp", "local-timestamp"):
        part, zone = slice(11 if word == "time" else 0, None), "Z" if word == "timestamp" else ""
        per_second = PER_SECOND[unit]
        return replace(
            found, read=lambda cursor, depth: _moment(read(cursor, depth), 1, per_second, part, zone), logical=logical
        )
    return found


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
