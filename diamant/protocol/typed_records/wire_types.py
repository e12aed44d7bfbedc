"""Wire types of the fields of records.

Numbers are big-endian, a bool has one byte, a uuid 16 bytes. Other types have two forms. In flexible versions, a string or bytes
is encoded as uvarint(size + 1) and the bytes, an array as uvarint(count + 1) and the elements; 0 means null. In earlier versions,
the size of a string is an int16, and the size of bytes and the count of an array are int32; -1 means null. Record classes have
wire types in their annotations (`layout.py`):

    rack: NullableText = None
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import read_uvarint, uuid_of

MAX_ELEMENTS = 1_000_000
"""Maximum number of elements in one array. A record has at most 8 MiB, so no valid array has more elements."""


class MalformedRecord(Exception):
    """A record's bytes violate its layout, or a record has a value that its version cannot represent."""


class UnsupportedRecord(Exception):
    """A record of an unknown type or version. A newer Kafka wrote it, and guessing its content would lose data."""


UNREADABLE = (IndexError, struct.error, UnicodeDecodeError, MalformedRecord, ProtocolError)
"""The errors of readers: the bytes end too early, a string is not UTF-8, or the bytes violate the layout."""

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Takes a buffer and a position; returns the value and the position after it."""
Writer: TypeAlias = Callable[[bytearray, Any], None]
"""Takes a bytearray and a value; appends the value's bytes."""


class WireType(NamedTuple):
    """A wire type. `classic` has the reader and the writer for versions that are not flexible; None if they are the same."""

    read: Reader
    write: Writer
    classic: tuple[Reader, Writer] | None = None

    def form(self, *, is_flexible: bool) -> "WireType":
        """Return the type in its flexible or classic form."""
        return self if is_flexible or self.classic is None else WireType(*self.classic)


def write_uvarint(out: bytearray, value: int) -> None:
    """Append `value` (0 or more) as an unsigned varint."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _number(form: str) -> WireType:
    layout = struct.Struct(form)
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


def _read_uuid(buffer: bytes, position: int) -> tuple[UUID, int]:
    raw = buffer[position : position + 16]
    if len(raw) != 16:
        raise IndexError(f"uuid at position {position}, but {len(raw)} bytes are left")
    return uuid_of(raw), position + 16


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _read_nullable_uuid(buffer: bytes, position: int) -> tuple[UUID | None, int]:
    value, end = _read_uuid(buffer, position)
    return value if value.int else None, end


def _write_nullable_uuid(out: bytearray, value: UUID | None) -> None:
    out += bytes(16) if value is None else value.bytes


class _Size(NamedTuple):
    """Reader and writer of a size plus one; 0 means null."""

    read: Callable[[bytes, int], tuple[int, int]]
    write: Callable[[bytearray, int], None]


def _classic_size(form: str) -> _Size:
    layout = struct.Struct(form)
    largest = (1 << 8 * layout.size - 1) - 1

    def read(buffer: bytes, position: int) -> tuple[int, int]:
        (size,) = layout.unpack_from(buffer, position)
        if size < -1:
            raise MalformedRecord(f"size {size} at byte {position}, expected -1 or more")
        return size + 1, position + layout.size

    def write(out: bytearray, value: int) -> None:
        if value > largest + 1:
            raise OverflowError(f"size is {value - 1}, expected at most {largest}")
        out += layout.pack(value - 1)

    return _Size(read, write)


_COMPACT = _Size(read_uvarint, write_uvarint)
_SHORT = _classic_size(">h")
_LONG = _classic_size(">i")


def _binary(size: _Size, is_nullable: bool) -> WireType:
    read_size, write_size = size

    def read(buffer: bytes, position: int) -> tuple[bytes | None, int]:
        count, start = read_size(buffer, position)
        if count == 0:
            if is_nullable:
                return None, start
            raise MalformedRecord(f"null at byte {position}, expected a value")
        end = start + count - 1
        if end > len(buffer):
            raise IndexError(f"{count - 1} bytes at position {start}, but {len(buffer) - start} are left")
        return buffer[start:end], end

    def write(out: bytearray, value: bytes | None) -> None:
        if value is None and is_nullable:
            write_size(out, 0)
        else:
            write_size(out, len(value) + 1)  # type: ignore[arg-type]  # a TypeError
            out += value  # type: ignore[arg-type]

    return WireType(read, write)


def _text(size: _Size, is_nullable: bool) -> WireType:
    read_size, write_size = size
    read_bytes, write_bytes, _ = _binary(size, is_nullable)

    def read(buffer: bytes, position: int) -> tuple[str | None, int]:
        count, start = read_size(buffer, position)
        end = start + count - 1
        if count == 0 or end > len(buffer):
            return read_bytes(buffer, position)  # null, or an error
        return buffer[start:end].decode(), end

    def write(out: bytearray, value: str | None) -> None:
        if value is None:
            write_bytes(out, None)
        else:
            encoded = value.encode()
            write_size(out, len(encoded) + 1)
            out += encoded

    return WireType(read, write)


def _array(size: _Size, element: WireType, is_nullable: bool) -> WireType:
    read_size, write_size = size
    read_element, write_element, _ = element

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        count, start = read_size(buffer, position)
        if count <= 1:
            if count == 0 and not is_nullable:
                raise MalformedRecord(f"null at byte {position}, expected an array")
            return (None, start) if count == 0 else ((), start)
        position = start
        if count == 2:
            value, position = read_element(buffer, position)
            return (value,), position
        if count - 1 > min(MAX_ELEMENTS, len(buffer) - position):
            raise MalformedRecord(
                f"array of {count - 1} elements at byte {position}, but {len(buffer) - position} bytes are left"
            )
        values = []
        for _ in range(count - 1):
            value, position = read_element(buffer, position)
            values.append(value)
        return tuple(values), position

    def write(out: bytearray, value: Sequence[Any] | None) -> None:
        if value is None:
            if not is_nullable:
                raise MalformedRecord("array is None, expected a sequence")
            write_size(out, 0)
            return
        write_size(out, len(value) + 1)
        for item in value:
            write_element(out, item)

    return WireType(read, write)


def array_type(element: WireType, *, is_nullable: bool = False) -> WireType:
    """Return the type of an array, whose values are tuples."""
    classic = _array(_LONG, element.form(is_flexible=False), is_nullable)
    return _array(_COMPACT, element, is_nullable)._replace(classic=classic[:2])


def remembering(wire_type: WireType) -> WireType:
    """Return a type, for flexible versions only, that caches the encoded forms of the last 256 values, which must be hashable."""

    @lru_cache(maxsize=256)
    def encoded(value: tuple[Any, ...] | None) -> bytes:
        out = bytearray()
        wire_type.write(out, value)
        return bytes(out)

    def write(out: bytearray, value: tuple[Any, ...] | None) -> None:
        out += encoded(value)

    return WireType(wire_type.read, write)


def _in_both_forms(make: Callable[[_Size, bool], WireType], classic: _Size, *, is_nullable: bool = False) -> WireType:
    return make(_COMPACT, is_nullable)._replace(classic=make(classic, is_nullable)[:2])


INT32 = _number(">i")
INT32_ARRAY = array_type(INT32)
UUID_TYPE = WireType(_read_uuid, _write_uuid)
_STRING = _in_both_forms(_text, _SHORT)

Int8: TypeAlias = Annotated[int, _number(">b")]
Int16: TypeAlias = Annotated[int, _number(">h")]
Uint16: TypeAlias = Annotated[int, _number(">H")]
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, _number(">q")]
Float64: TypeAlias = Annotated[float, _number(">d")]
Bool: TypeAlias = Annotated[bool, WireType(_read_bool, _write_bool)]
Id: TypeAlias = Annotated[UUID, UUID_TYPE]
NullableId: TypeAlias = Annotated[UUID | None, WireType(_read_nullable_uuid, _write_nullable_uuid)]
"""None is encoded as 16 zero bytes."""
Text: TypeAlias = Annotated[str, _STRING]
NullableText: TypeAlias = Annotated[str | None, _in_both_forms(_text, _SHORT, is_nullable=True)]
Binary: TypeAlias = Annotated[bytes, _in_both_forms(_binary, _LONG)]
NullableBinary: TypeAlias = Annotated[bytes | None, _in_both_forms(_binary, _LONG, is_nullable=True)]
Int32s: TypeAlias = Annotated[tuple[int, ...], INT32_ARRAY]
Texts: TypeAlias = Annotated[tuple[str, ...], array_type(_STRING)]
