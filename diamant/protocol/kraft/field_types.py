"""The wire types of metadata records, and the marks that say which version and tag a field has.

Numbers are big-endian, a bool is a byte, a uuid 16 bytes. A string or bytes is uvarint(size + 1) and the bytes, an
array uvarint(count + 1) and the elements; 0 means null. A struct in an array ends in a tagged section of its own. Used
as annotations of the record classes:

    rack: NullableText = None
    log_dirs: Annotated[Ids, Since(3), Tag(0)] = ()
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args
from uuid import UUID

MAX_ELEMENTS = 1_000_000
"""Elements of one array; a record is at most 8 MiB, so no honest one has more of anything we keep."""


class MalformedRecord(Exception):
    """A record's bytes are not what its layout demands, or a record has a value that its version cannot hold."""


class UnsupportedRecord(Exception):
    """A record of a type or version that this code does not know: a newer Kafka wrote it, guessing would lose data."""


class Since(NamedTuple):
    """The first record version that has a field.

    `is_ignorable`: older versions are written without it, whatever its value.
    """

    version: int
    is_ignorable: bool = False


class Tag(NamedTuple):
    """The tag of a field that stands in the tagged section."""

    number: int


class WireType(NamedTuple):
    """Reader (buffer, position -> value, position) and writer (appends to a bytearray) of one type."""

    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[bytearray, Any], None]


_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")


def read_uvarint(buffer: bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes; MalformedRecord when it is longer, IndexError when it is cut off."""
    value = buffer[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRecord(f"varint before byte {position} has more than 5 bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append `value` (0 or more) as an unsigned varint."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _number(layout: struct.Struct) -> WireType:
    size = layout.size

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        return layout.unpack_from(buffer, position)[0], position + size

    def write(out: bytearray, value: float) -> None:
        out += layout.pack(value)

    return WireType(read, write)


def _read_bool(buffer: bytes, position: int) -> tuple[bool, int]:
    return buffer[position] != 0, position + 1


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


_MAX_KNOWN_IDS = 4096
_known_ids: dict[bytes, UUID] = {}
"""UUID objects by their bytes, at most `_MAX_KNOWN_IDS`: every partition repeats its topic's id and its directory's."""


def _read_uuid(buffer: bytes, position: int) -> tuple[UUID, int]:
    raw = buffer[position : position + 16]
    value = _known_ids.get(raw)
    if value is None:
        if len(raw) != 16:
            raise IndexError
        value = UUID(bytes=raw)
        if len(_known_ids) >= _MAX_KNOWN_IDS:
            _known_ids.clear()
        _known_ids[raw] = value
    return value, position + 16


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _read_nullable_bytes(buffer: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_uvarint(buffer, position)
    if size == 0:
        return None, position
    end = position + size - 1
    if end > len(buffer):
        raise IndexError
    return buffer[position:end], end


def _read_bytes(buffer: bytes, position: int) -> tuple[bytes, int]:
    value, end = _read_nullable_bytes(buffer, position)
    if value is None:
        raise MalformedRecord(f"null at byte {position}, expected a value")
    return value, end


def _read_nullable_string(buffer: bytes, position: int) -> tuple[str | None, int]:
    value, end = _read_nullable_bytes(buffer, position)
    return (None, end) if value is None else (value.decode(), end)


def _read_string(buffer: bytes, position: int) -> tuple[str, int]:
    value, end = _read_bytes(buffer, position)
    return value.decode(), end


def _write_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_uvarint(out, len(value) + 1)
        out += value


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def _write_nullable_string(out: bytearray, value: str | None) -> None:
    _write_nullable_bytes(out, None if value is None else value.encode())


def _write_string(out: bytearray, value: str) -> None:
    _write_bytes(out, value.encode())


def array_type(element: WireType) -> WireType:
    """Return the type of an array that cannot be null; its value is a tuple."""
    nullable = _nullable_array(element)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        value, end = nullable.read(buffer, position)
        if value is None:
            raise MalformedRecord(f"null at byte {position}, expected an array")
        return value, end

    def write(out: bytearray, value: Sequence[Any]) -> None:
        if value is None:
            raise MalformedRecord("array is None, expected a sequence")
        nullable.write(out, value)

    return WireType(read, write)


def _nullable_array(element: WireType) -> WireType:
    read_element, write_element = element

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        count, position = read_uvarint(buffer, position)
        if count <= 1:
            return (None, position) if count == 0 else ((), position)
        if count == 2:
            value, position = read_element(buffer, position)
            return (value,), position
        if count - 1 > min(MAX_ELEMENTS, len(buffer) - position):
            raise MalformedRecord(
                f"array of {count - 1} elements at byte {position}, {len(buffer) - position} bytes left"
            )
        values = []
        for _ in range(count - 1):
            value, position = read_element(buffer, position)
            values.append(value)
        return tuple(values), position

    def write(out: bytearray, value: Sequence[Any] | None) -> None:
        if value is None:
            out.append(0)
            return
        write_uvarint(out, len(value) + 1)
        for item in value:
            write_element(out, item)

    return WireType(read, write)


def _remembering(wire_type: WireType) -> WireType:
    """Return the type with a memory of what its last 256 values look like: partitions have few distinct arrays."""

    @lru_cache(maxsize=256)
    def encoded(value: tuple[Any, ...] | None) -> bytes:
        out = bytearray()
        wire_type.write(out, value)
        return bytes(out)

    def write(out: bytearray, value: tuple[Any, ...] | None) -> None:
        out += encoded(value)

    return WireType(wire_type.read, write)


_STRING = WireType(_read_string, _write_string)
_BYTES = WireType(_read_bytes, _write_bytes)
_UUID = WireType(_read_uuid, _write_uuid)

Int8: TypeAlias = Annotated[int, _number(_INT8)]
Int16: TypeAlias = Annotated[int, _number(_INT16)]
Uint16: TypeAlias = Annotated[int, _number(_UINT16)]
Int32: TypeAlias = Annotated[int, _number(_INT32)]
Int64: TypeAlias = Annotated[int, _number(_INT64)]
Float64: TypeAlias = Annotated[float, _number(_FLOAT64)]
Bool: TypeAlias = Annotated[bool, WireType(_read_bool, _write_bool)]
Id: TypeAlias = Annotated[UUID, _UUID]
Text: TypeAlias = Annotated[str, _STRING]
NullableText: TypeAlias = Annotated[str | None, WireType(_read_nullable_string, _write_nullable_string)]
Binary: TypeAlias = Annotated[bytes, _BYTES]
Int32s: TypeAlias = Annotated[tuple[int, ...], _remembering(array_type(_number(_INT32)))]
NullableInt32s: TypeAlias = Annotated[tuple[int, ...] | None, _remembering(_nullable_array(_number(_INT32)))]
Ids: TypeAlias = Annotated[tuple[UUID, ...], _remembering(array_type(_UUID))]
NullableIds: TypeAlias = Annotated[tuple[UUID, ...] | None, _remembering(_nullable_array(_UUID))]
Texts: TypeAlias = Annotated[tuple[str, ...], array_type(_STRING)]


def struct_type(make: Callable[..., Any], *members: Any) -> WireType:
    """Return the type of a struct in an array: its members, then a tagged section that is written empty and skipped."""
    types = tuple(wire_type_of(member) for member in members)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        values = []
        for wire_type in types:
            value, position = wire_type.read(buffer, position)
            values.append(value)
        return make(*values), skip_tags(buffer, position)

    def write(out: bytearray, value: Sequence[Any]) -> None:
        for wire_type, member in zip(types, value, strict=True):
            wire_type.write(out, member)
        out.append(0)

    return WireType(read, write)


def skip_tags(buffer: bytes, position: int) -> int:
    count, position = read_uvarint(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise IndexError
    return position


def wire_type_of(annotation: Any) -> WireType:
    return next(part for part in get_args(annotation) if isinstance(part, WireType))
