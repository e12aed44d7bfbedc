"""Protobuf: decodes messages according to their schema.

Before each message, serializers write the message's type:

    Confluent      message indexes: their number, then each index, all as zigzag; a single 0 means the first message
    Apicurio       the size of a message `Ref`, then this message, whose field 1 is the type's name; only top-level types
    AWS Glue       the index of the type in a list of all types of the file, including entries of maps, sorted by full name

A field that proto3 omits because it has its default is returned with that default; empty lists and maps are returned, too. If a
field occurs more than once, all its values are returned; but if it is a message that is not repeated, the parts are joined. Names
are those in the schema, with underscores. Enum values without a symbol are numbers. An `Any` has the fields of the message in it
if the schema defines the type. Bytes that the schema does not explain are `Unknown`. Bytes that contradict the schema are
Undecodable, because they must have another schema.

Bounds: as for Avro (`cursor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from diamant.cleaner.values.cursor import Cursor
from diamant.cleaner.values.nodes import Object, Undecodable, Unknown
from diamant.cleaner.values.proto_text import ENTRY, MessageType, ProtoField, parse_proto

Type: TypeAlias = MessageType | Mapping[int, str]

_WELL_KNOWN = """
syntax = "proto3"; package google.protobuf;
message Any { string type_url = 1; bytes value = 2; }
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Empty {}
message FieldMask { repeated string paths = 1; }
message Struct { map<string, Value> fields = 1; }
enum NullValue { NULL_VALUE = 0; }
message ListValue { repeated Value values = 1; }
message Value { oneof kind { NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
  Struct struct_value = 5; ListValue list_value = 6; } }
message DoubleValue { double value = 1; }
message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; }
message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
"""
ANY = "google.protobuf.Any"
_REF_NAME = b"\x0a"
"""The tag of the name in Apicurio's `Ref`."""

_JOINED_PART_BYTES = 64
"""Number of bytes that count as one part of the value when the parts of a message are joined (`cursor.py`)."""

VARINT, EIGHT, SIZED, GROUP, GROUP_END, FOUR = 0, 1, 2, 3, 4, 5


def _signed(bits: int) -> Callable[[Cursor], int]:
    def read(cursor: Cursor) -> int:
        number = cursor.varint() & ((1 << bits) - 1)
        return number - (1 << bits) if number >> (bits - 1) else number

    return read


def _fixed(size: int, *, signed: bool) -> Callable[[Cursor], int]:
    return lambda cursor: int.from_bytes(cursor.take(size), "little", signed=signed)


SCALARS: dict[str, tuple[int, Callable[[Cursor], Any], Any]] = {
    "double": (EIGHT, Cursor.double, 0.0),
    "float": (FOUR, Cursor.single, 0.0),
    "int32": (VARINT, _signed(32), 0),
    "int64": (VARINT, _signed(64), 0),
    "uint32": (VARINT, lambda cursor: cursor.varint() & 0xFFFFFFFF, 0),
    "uint64": (VARINT, Cursor.varint, 0),
    "sint32": (VARINT, Cursor.zigzag, 0),
    "sint64": (VARINT, Cursor.zigzag, 0),
    "fixed32": (FOUR, _fixed(4, signed=False), 0),
    "fixed64": (EIGHT, _fixed(8, signed=False), 0),
    "sfixed32": (FOUR, _fixed(4, signed=True), 0),
    "sfixed64": (EIGHT, _fixed(8, signed=True), 0),
    "bool": (VARINT, lambda cursor: cursor.varint() != 0, False),
    "string": (SIZED, lambda cursor: cursor.text(cursor.varint()), ""),
    "bytes": (SIZED, lambda cursor: cursor.take(cursor.varint()), b""),
}
"""Wire type, reader and default of each scalar type."""


class ProtobufReader:
    """Reads messages of one schema. Usable from any thread."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None, *, is_of_glue: bool = False) -> None:
        """`references`: imported files by the names in import statements. Raises Undecodable for an invalid schema."""
        self.types: dict[str, Type] = {}
        for other in (_WELL_KNOWN, *(references or {}).values()):
            self.types.update(parse_proto(other).types)
        file = parse_proto(text)
        self._messages = file.messages
        self._by_name = {_local(one.name).encode(): one for one in file.messages}
        named = {_descriptor_name(name): one for name, one in file.types.items() if isinstance(one, MessageType)}
        self._of_glue = [named[name] for name in sorted(named)] if is_of_glue else None
        self.types.update(file.types)

    def read(self, payload: bytes) -> Any:
        """Decode a payload: the name of a message type, then the message. Raises Undecodable."""
        cursor = Cursor(payload)
        message = self.message_at(cursor)
        return self.message(cursor, message, len(payload), 0)

    def message_at(self, cursor: Cursor) -> MessageType:
        """Return the type of the message, and move `cursor` past the name of the type."""
        if self._of_glue is not None:
            return _at(self._of_glue, cursor.varint())
        data = cursor.data
        if data[1:2] == _REF_NAME and data[2:3] == bytes([max(0, data[0] - 2)]):
            named = self._by_name.get(data[3 : 1 + data[0]])
            if named is not None:
                cursor.take(1 + data[0])
                return named
        count = cursor.zigzag()
        cursor.enter(count)
        found, messages = None, self._messages
        for index in [cursor.zigzag() for _ in range(count)] if count else [0]:
            found = _at(messages, index)
            messages = found.nested
        if found is None:
            raise Undecodable("the message indexes are damaged")
        return found

    def message(self, cursor: Cursor, message: MessageType, end: int, depth: int, group: int = 0) -> Object:
        """Decode the message that ends at `end`, or a group, which ends with the end tag of its number."""
        cursor.enter(depth, 1 + len(message.fields))
        found: dict[int, list[Any]] = {}
        pairs: list[tuple[str, Any]] = []
        is_closed = False
        while cursor.position < end and not is_closed:
            start = cursor.position
            number, wire = divmod(cursor.varint(), 8)
            field = message.fields.get(number)
            cursor.enter(depth)
            if wire == GROUP_END and number == group:
                is_closed = True
            elif field is None:
                skip(cursor, number, wire, depth)
                pairs.append((f"?{number}", Unknown(cursor.data[start : cursor.position])))
            else:
                found.setdefault(number, []).extend(self.values(cursor, number, field, wire, end, depth))
        if is_closed != bool(group) or cursor.position > end:
            raise Undecodable("a message does not end where it should")
        for number, field in message.fields.items():
            pairs += self._pairs(field, found.get(number, []), cursor, depth)
        return self._unpacked(Object(pairs), cursor, depth) if message.name == ANY else Object(pairs)

    def values(self, cursor: Cursor, number: int, field: ProtoField, wire: int, end: int, depth: int) -> list[Any]:
        """Read one value after a tag, or several packed ones. A message is returned as a range of bytes, a group decoded."""
        kind = self.kind(field)
        if isinstance(kind, MessageType):
            if wire == GROUP:
                return [self.message(cursor, kind, end, depth + 1, number)]
            if wire == SIZED:
                size = cursor.varint()
                start = cursor.position
                cursor.take(size)
                return [range(start, cursor.position)]
            raise Undecodable("a field has another type, so the value has another schema")
        expected, read, _ = kind
        if wire == expected:
            return [read(cursor)]
        if wire != SIZED or not field.is_repeated:
            raise Undecodable("a field has another type, so the value has another schema")
        packed = Cursor(cursor.take(cursor.varint()))
        values = []
        while not packed.is_at_end:
            cursor.enter(depth)
            values.append(read(packed))
        return values

    def _pairs(self, field: ProtoField, values: list[Any], cursor: Cursor, depth: int) -> list[tuple[str, Any]]:
        """Return the values of a field as pairs of the field's name and a value."""
        kind = self.kind(field)
        if isinstance(kind, MessageType):
            if not field.is_repeated and len(values) > 1 and all(isinstance(one, range) for one in values):
                data = b"".join(cursor.data[one.start : one.stop] for one in values)
                cursor.enter(depth, len(data) // _JOINED_PART_BYTES)
                values = [self.apart(data, kind, cursor, depth)]
            values = [self._nested(one, kind, cursor, depth) if isinstance(one, range) else one for one in values]
        if field.is_map:
            entries = [dict(one) for one in values]
            return [(field.name, Object([(map_key(one.get("key")), one.get("value")) for one in entries]))]
        if field.is_repeated:
            return [(field.name, values)]
        if not values and field.has_default and not isinstance(kind, MessageType):
            values = [kind[2]]
        return [(field.name, one) for one in values]

    def _nested(self, place: range, message: MessageType, cursor: Cursor, depth: int) -> Object:
        """Decode the message in a range of the bytes, without moving the cursor."""
        back, cursor.position = cursor.position, place.start
        found = self.message(cursor, message, place.stop, depth + 1)
        cursor.position = back
        return found

    def apart(self, data: bytes, message: MessageType, cursor: Cursor, depth: int) -> Object:
        """Decode a message in other bytes. Its parts count towards the bounds of `cursor`."""
        inner = Cursor(data)
        inner.nodes_left = cursor.nodes_left
        found = self.message(inner, message, len(data), depth + 1)
        cursor.nodes_left = inner.nodes_left
        return found

    def _unpacked(self, found: Object, cursor: Cursor, depth: int) -> Object:
        fields = dict(found)
        url, data = fields.get("type_url"), fields.get("value")
        if not isinstance(url, str) or not isinstance(data, bytes):
            return found
        message = self.types.get(url.rpartition("/")[2])
        if not isinstance(message, MessageType):
            return Object([("@type", url), ("value", Unknown(data))])
        return Object([("@type", url), *self.apart(data, message, cursor, depth)])

    def kind(self, field: ProtoField) -> MessageType | tuple[int, Callable[[Cursor], Any], Any]:
        """Return the type of a field: a message type or, for a scalar or an enum, an entry as in `SCALARS`."""
        scalar = SCALARS.get(field.type)
        if scalar is not None:
            return scalar
        found = self.named(field)
        if isinstance(found, MessageType):
            return found
        read = _signed(32)

        def symbol(cursor: Cursor) -> Any:
            number = read(cursor)
            return found.get(number, number)

        return VARINT, symbol, found.get(0, 0)

    def named(self, field: ProtoField) -> Type:
        """Return the type of a field, looked up in the field's scope, then in the enclosing scopes."""
        scope = "" if field.type.startswith(".") else field.scope
        name = field.type.lstrip(".")
        while True:
            found = self.types.get(f"{scope}.{name}" if scope else name)
            if found is not None:
                return found
            if not scope:
                raise Undecodable("the Protobuf schema uses a type that it does not define")
            scope = scope.rpartition(".")[0]


def _at(messages: Sequence[MessageType], index: int) -> MessageType:
    if not 0 <= index < len(messages):
        raise Undecodable("the schema has no message with this index")
    return messages[index]


def _local(name: str) -> str:
    return name.rpartition(".")[2]


def _descriptor_name(name: str) -> str:
    """Return a message's full name as in descriptors, where the type of a map's entry is named after the map's field."""
    scope, _, field = name.rpartition(".")
    parts = field.rstrip(ENTRY).split("_")
    return f"{scope}.{''.join(one[:1].upper() + one[1:] for one in parts)}Entry" if field.endswith(ENTRY) else name


def skip(cursor: Cursor, number: int, wire: int, depth: int) -> None:
    """Skip the value after a tag."""
    cursor.enter(depth)
    if not number:
        raise Undecodable("a field has the number 0")
    if wire == VARINT:
        cursor.varint()
    elif wire in (EIGHT, FOUR):
        cursor.take(8 if wire == EIGHT else 4)
    elif wire == SIZED:
        cursor.take(cursor.varint())
    elif wire == GROUP:
        while (inner := divmod(cursor.varint(), 8)) != (number, GROUP_END):
            skip(cursor, *inner, depth + 1)
    else:
        raise Undecodable("a field has an unknown wire type")


def map_key(key: object) -> str:
    """Return the key of a map as the string that JSON uses for it."""
    return str(key).lower() if isinstance(key, bool) else str(key)
