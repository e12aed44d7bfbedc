"""Kafka's primitive types, read from and written to byte strings.

    int8..int64      big-endian two's complement
    uvarint          7 bits per byte, low bits first, high bit set on all but the last byte; at most 5 bytes
    string           int16 length, UTF-8; length -1 = null
    compact string   uvarint length + 1, UTF-8; 0 = null
    bytes, records   int32 length, or uvarint length + 1 where compact; null as above
    array            int32 count, or uvarint count + 1 where compact; null as above
    uuid             16 bytes, all zero = null
    tagged fields    uvarint count, then (uvarint tag, uvarint size, content)*

Readers take a buffer, a position and the position after the last byte, and return (value, next position). They raise
ProtocolError, or IndexError, struct.error or UnicodeDecodeError, which callers must convert to ProtocolError.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from uuid import UUID

from diamant.protocol.errors import ProtocolError

MAX_ELEMENTS = 500_000
"""Maximum number of array elements in one request, which bounds the memory of decoding: one byte may become a Python object."""
MAX_TAGS = 10_000
"""Maximum number of tagged fields in one block, as in Kafka 4.4."""

ZERO_UUID = bytes(16)

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")


def read_uvarint(buffer: memoryview | bytes | bytearray, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it, and the position after it."""
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
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ProtocolError(f"varint before position {position} does not end within 32 bits")


def encode_uvarint(value: int) -> bytes:
    """Return `value` (0..2^32-1) as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def read_string(buffer: memoryview, position: int, end: int) -> tuple[str | None, int]:
    """Read a nullable string; return it, and the position after it."""
    (length,) = INT16.unpack_from(buffer, position)
    start = position + 2
    if length < 0:
        if length < -1:
            raise ProtocolError(f"string length {length} at position {position}, expected -1 (null) or more")
        return None, start
    stop = start + length
    if stop > end:
        raise ProtocolError(f"string of {length} bytes at position {position}, but {end - start} bytes are left")
    return buffer[start:stop].tobytes().decode(), stop


def read_compact_string(buffer: memoryview, position: int, end: int) -> tuple[str | None, int]:
    """Read a nullable compact string; return it, and the position after it."""
    length = buffer[position]
    start = position + 1
    if length >= 0x80:
        length, start = read_uvarint(buffer, position)
    if length == 0:
        return None, start
    stop = start + length - 1
    if stop > end:
        raise ProtocolError(f"string of {length - 1} bytes at position {position}, but {end - start} bytes are left")
    return buffer[start:stop].tobytes().decode(), stop


def read_array_length(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read the element count of a non-nullable array; return it, and the position after it.

    Raises ProtocolError if there are more than `MAX_ELEMENTS`, or more elements than remaining bytes.
    """
    (count,) = INT32.unpack_from(buffer, position)
    position += 4
    if count < 0 or count > end - position or count > MAX_ELEMENTS:
        raise ProtocolError(
            f"an array at position {position} cannot have {count} elements: {end - position} bytes are left"
        )
    return count, position


def read_compact_array_length(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """Like `read_array_length`, for a compact array."""
    count = buffer[position]
    if count < 0x80:
        position += 1
    else:
        count, position = read_uvarint(buffer, position)
    count -= 1
    if count < 0 or count > end - position or count > MAX_ELEMENTS:
        raise ProtocolError(
            f"an array at position {position} cannot have {count} elements: {end - position} bytes are left"
        )
    return count, position


def read_tag_count(buffer: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read the number of tagged fields in a block; return it, and the position after it."""
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGS:
        raise ProtocolError(f"{count} tagged fields before position {position}, at most {MAX_TAGS} are allowed")
    return count, position


def skip_tags(buffer: memoryview, position: int, end: int) -> int:
    """Skip a block of tagged fields; return the position after it."""
    if buffer[position] == 0:
        return position + 1
    count, position = read_tag_count(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise ProtocolError(f"tagged field of {size} bytes reaches {position - end} bytes beyond the end")
    return position


@lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """Return the uuid of 16 bytes. The last 1024 objects are cached, since creating one takes a microsecond."""
    return UUID(bytes=raw)


def read_uuid(buffer: memoryview, position: int, end: int) -> tuple[UUID | None, int]:
    """Read a uuid; return it (None if it is all zeros), and the position after it."""
    stop = position + 16
    if stop > end:
        raise ProtocolError(f"uuid at position {position}, but {end - position} bytes are left")
    raw = bytes(buffer[position:stop])
    return (None if raw == ZERO_UUID else uuid_of(raw)), stop


def encode_uuid(value: UUID | None) -> bytes:
    """Return the 16 bytes of a uuid; None becomes zeros."""
    return ZERO_UUID if value is None else value.bytes


def encode_bytes(value: bytes | None) -> bytes:
    """Encode nullable bytes."""
    return b"\xff\xff\xff\xff" if value is None else INT32.pack(len(value)) + value


def encode_string(value: str | None) -> bytes:
    """Encode a nullable string. Raises OverflowError if it has more than 32767 bytes."""
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    if len(encoded) > 0x7FFF:
        raise OverflowError(f"string of {len(encoded)} bytes, at most 32767 are allowed")
    return INT16.pack(len(encoded)) + encoded


def encode_compact_string(value: str | None) -> bytes:
    """Encode a nullable compact string."""
    if value is None:
        return b"\x00"
    encoded = value.encode()
    length = len(encoded) + 1
    return (_ONE_BYTE[length] if length < 0x80 else encode_uvarint(length)) + encoded
