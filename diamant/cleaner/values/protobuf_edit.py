"""Changes fields in Protobuf: follows a path through a message's bytes, and encodes new values of fields by their schema.

All other bytes are copied, even unknown fields, except the sizes of messages around a change. `null` and `default` omit the
field, unless proto2 requires it. `empty` also omits it if readers cannot tell the difference. A given value is JSON with the
names in the schema; strings given for bytes are encoded as UTF-8. The field is added if it was omitted because it had its
default (proto3). If a field occurs several times, all occurrences change, in all parts of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from diamant.cleaner.values.cursor import MAX_DEPTH, Cursor
from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, Edit, NewValue, Unchangeable, growth, real, whole
from diamant.cleaner.values.proto_text import MessageType, ProtoField
from diamant.cleaner.values.protobuf import (
    ANY,
    GROUP,
    GROUP_END,
    SCALARS,
    SIZED,
    ProtobufReader,
    map_key,
    skip,
)

_NO_SUCH_VALUE = "the schema does not allow this value for the field"
_UNSIGNED = {"uint32": 32, "uint64": 64, "fixed32": 32, "fixed64": 64}
_SIGNED = {"int32": 32, "int64": 64, "sint32": 32, "sint64": 64, "sfixed32": 32, "sfixed64": 64}
_ANY_URL, _ANY_VALUE = 1, 2


def edit_protobuf(reader: ProtobufReader, payload: bytes, path: Sequence[str], new: NewValue) -> list[Edit]:
    """Return the edits that change the fields at a path. Raises Undecodable, Unchangeable."""
    cursor = Cursor(payload)
    message = reader.message_at(cursor)
    edits = _Edits(reader, cursor, new)
    edits.walk(message, len(payload), 0, tuple(path))
    return edits.found


class _Edits:
    def __init__(self, reader: ProtobufReader, cursor: Cursor, new: NewValue) -> None:
        self._reader = reader
        self._cursor = cursor
        self._new = new
        self._coder = _Coder(reader)
        self.found: list[Edit] = []

    def walk(self, message: MessageType, end: int, level: int, path: tuple[str, ...], group: int = 0) -> None:
        """Read a message up to its end, or up to the end of a group, and edit the fields at a path."""
        cursor = self._cursor
        cursor.enter(level)
        contained = self._contained(end) if message.name == ANY else None
        names = {} if contained else {number: one for number, one in message.fields.items() if one.name == path[0]}
        missing, at = set(names), cursor.position
        while at < end:
            number, wire = divmod(cursor.varint(), 8)
            if wire == GROUP_END and number == group:
                break
            cursor.enter(level)
            if number in names:
                self._field(at, number, wire, names[number], end, level, path, is_first=number in missing)
                missing.discard(number)
            elif contained is not None and (number, wire) == (_ANY_VALUE, SIZED):
                self._sized(contained, level, path)
            elif not names and contained is None and number not in message.fields:
                raise Unchangeable("the message has bytes that its schema does not explain")
            else:
                skip(cursor, number, wire, level)
            at = cursor.position
        for number in sorted(missing):
            self._add(at, number, names[number], path)

    def _contained(self, end: int) -> MessageType:
        """Return the type of the message in an `Any`, without moving the cursor."""
        cursor = self._cursor
        back, url = cursor.position, b""
        while cursor.position < end:
            number, wire = divmod(cursor.varint(), 8)
            if (number, wire) == (_ANY_URL, SIZED):
                url = cursor.take(cursor.varint())
            else:
                skip(cursor, number, wire, 0)
        cursor.position = back
        found = self._reader.types.get(url.decode(errors="replace").rpartition("/")[2])
        if not isinstance(found, MessageType):
            raise Unchangeable("the schema lacks the type of a message")
        return found

    def _sized(self, message: MessageType, level: int, path: tuple[str, ...]) -> None:
        """Read a size and the message after it, edit the message, and edit the size if it changes."""
        cursor, before = self._cursor, len(self.found)
        start = cursor.position
        size = cursor.varint()
        at = cursor.position
        cursor.take(size)
        cursor.position = at
        self.walk(message, at + size, level + 1, path)
        more = growth(self.found[before:])
        if more:
            self.found.append(Edit(start, at, varint(size + more)))

    def _field(
        self,
        start: int,
        number: int,
        wire: int,
        field: ProtoField,
        end: int,
        level: int,
        path: tuple[str, ...],
        *,
        is_first: bool,
    ) -> None:
        """Edit the field after a tag, or fields within it. `start`: position of the tag."""
        cursor, kind = self._cursor, self._reader.kind(field)
        at = cursor.position
        if len(path) > 1 and field.is_map and isinstance(kind, MessageType) and wire == SIZED:
            key = self._key(kind)
            cursor.position = at
            if key == path[1]:
                self._sized(kind, level, ("value", *path[2:]))
                return
        elif len(path) > 1 and isinstance(kind, MessageType):
            if wire == GROUP:
                self.walk(kind, end, level + 1, path[1:], number)
            else:
                self._sized(kind, level, path[1:])
            return
        if len(path) > 1:
            skip(cursor, number, wire, level)
            return
        if wire == GROUP and self._new.kind not in (NULL, DEFAULT):
            raise Unchangeable("a group can only be removed, not given a new value")
        old = self._old(number, wire, field, end, level)
        new = self._encoded(number, field, is_first=is_first)
        is_same = new == cursor.data[start : cursor.position]
        self.found.append(Edit(start, cursor.position, new, None if is_same else old))

    def _key(self, entry: MessageType) -> str:
        cursor = self._cursor
        fields = dict(self._reader.apart(cursor.take(cursor.varint()), entry, cursor, 0))
        return map_key(fields.get("key"))

    def _old(self, number: int, wire: int, field: ProtoField, end: int, level: int) -> list[Any]:
        """Return the values after a tag, and move the cursor past them."""
        cursor, kind = self._cursor, self._reader.kind(field)
        found = self._reader.values(cursor, number, field, wire, end, level)
        if not isinstance(kind, MessageType):
            return found
        return [
            self._reader.apart(cursor.data[one.start : one.stop], kind, cursor, level)
            if isinstance(one, range)
            else one
            for one in found
        ]

    def _encoded(self, number: int, field: ProtoField, *, is_first: bool) -> bytes:
        """Return the encoded replacement of a present field, including its tag."""
        what = self._new.kind
        if what in (NULL, DEFAULT):
            if field.is_required:
                raise Unchangeable("the schema requires the field")
            return b""
        if what == EMPTY:
            is_message = isinstance(self._reader.kind(field), MessageType)
            is_left_out = field.is_repeated or (field.has_default and not is_message)
            return b"" if is_left_out else self._coder.tagged(number, field, None)
        if field.is_repeated and what == GIVEN:
            return self._coder.items(number, field, self._new.given) if is_first else b""
        if field.is_repeated and field.type not in ("string", "bytes"):
            raise Unchangeable(_NO_SUCH_VALUE)
        return self._coder.tagged(number, field, self._new.given)

    def _add(self, at: int, number: int, field: ProtoField, path: tuple[str, ...]) -> None:
        """Add an empty edit for a missing field of the schema; add the field if it was omitted because it had its default."""
        new, given = b"", self._new.given if self._new.kind == GIVEN and len(path) == 1 else None
        kind = self._reader.kind(field)
        if given is not None and field.is_repeated:
            new = self._coder.items(number, field, given)
        elif given is not None and field.has_default and not isinstance(kind, MessageType) and given != kind[2]:
            new = self._coder.tagged(number, field, given)
        self.found.append(Edit(at, at, new))


class _Coder:
    """Encodes JSON values. Raises Unchangeable if a value does not fit its type."""

    def __init__(self, reader: ProtobufReader) -> None:
        self._reader = reader

    def items(self, number: int, field: ProtoField, value: Any, depth: int = 0) -> bytes:
        """Encode all items of a list, or all entries of a map, with their tags."""
        if field.is_map and isinstance(value, dict):
            value = [{"key": key, "value": one} for key, one in value.items()]
        elif field.is_map or not isinstance(value, list):
            raise Unchangeable(_NO_SUCH_VALUE)
        return b"".join(self.tagged(number, field, one, depth) for one in value)

    def tagged(self, number: int, field: ProtoField, value: Any, depth: int = 0) -> bytes:
        """Encode one value with its tag; None means an empty value."""
        kind = self._reader.kind(field)
        if isinstance(kind, MessageType):
            data = self._message(kind, {} if value is None else value, depth + 1)
        elif field.type in ("string", "bytes"):
            data = _octets("" if value is None else value)
        else:
            value = value if field.type in SCALARS else self._symbol(field, value)
            return varint(number * 8 + kind[0]) + _scalar(field.type, value)
        return varint(number * 8 + SIZED) + varint(len(data)) + data

    def _message(self, message: MessageType, value: Any, depth: int) -> bytes:
        numbers = {one.name: number for number, one in message.fields.items()}
        if depth > MAX_DEPTH or not isinstance(value, dict) or not value.keys() <= numbers.keys():
            raise Unchangeable(_NO_SUCH_VALUE)
        if any(one.is_required and value.get(one.name) is None for one in message.fields.values()):
            raise Unchangeable("the schema requires a field that is not given")
        parts = []
        given = {name: one for name, one in value.items() if one is not None}
        for name, one in given.items():
            field = message.fields[numbers[name]]
            parts.append((self.items if field.is_repeated else self.tagged)(numbers[name], field, one, depth))
        return b"".join(parts)

    def _symbol(self, field: ProtoField, value: Any) -> Any:
        """Return the number of an enum's symbol, or any other value unchanged."""
        symbols = self._reader.named(field)
        if not isinstance(value, str) or isinstance(symbols, MessageType):
            return value
        found = next((number for number, symbol in symbols.items() if symbol == value), None)
        if found is None:
            raise Unchangeable(_NO_SUCH_VALUE)
        return found


def varint(number: int) -> bytes:
    """Encode a number of up to 64 bits as a varint, a negative number as its two's complement."""
    left, out = number & (1 << 64) - 1, bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _octets(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Unchangeable(_NO_SUCH_VALUE)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Unchangeable(_NO_SUCH_VALUE) from None


def _scalar(kind: str, value: Any) -> bytes:
    """Encode a number, a boolean or the number of an enum symbol; None means 0 or false."""
    if kind == "bool" and isinstance(value, bool | None):
        return b"\1" if value else b"\0"
    value = 0 if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise Unchangeable(_NO_SUCH_VALUE)
    if kind in ("double", "float"):
        return real(value, "<d" if kind == "double" else "<f")
    bits = _UNSIGNED.get(kind) or _SIGNED.get(kind, 32)
    least, most = (0, 1 << bits) if kind in _UNSIGNED else (-1 << (bits - 1), 1 << (bits - 1))
    number = whole(value)
    if not least <= number < most:
        raise Unchangeable("the number does not fit the schema")
    if "fixed" in kind:
        return number.to_bytes(bits // 8, "little", signed=kind in _SIGNED)
    return varint((number << 1) ^ (number >> 63) if kind.startswith("sint") else number)
