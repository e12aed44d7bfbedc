"""Variable-length integers of records: varint (32 bits) and varlong (64 bits).

ZigZag maps 0, -1, 1, -2 ... to 0, 1, 2, 3 ... The result is written in groups of 7 bits, least significant group first; every
byte but the last has its top bit set.

     -1   01
      5   0a
    150   ac 02

A varint has at most 5 bytes, a varlong at most 10; a longer one is an error. Like Kafka's ByteUtils, readers drop the bits of the
last byte that exceed 32 or 64 bits.
"""

from __future__ import annotations

from typing import TypeAlias

from diamant.protocol.errors import CorruptBatch

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_VARINT_SIZE = 5
MAX_VARLONG_SIZE = 10


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value as int32, position after it). Raises CorruptBatch if it is too long or the buffer ends within it."""
    value, position = _read(buffer, position, MAX_VARINT_SIZE)
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value as int64, position after it). Raises CorruptBatch if it is too long or the buffer ends within it."""
    value, position = _read(buffer, position, MAX_VARLONG_SIZE)
    value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


def write_varint(out: bytearray, value: int) -> None:
    """Append `value` to `out` as a varint or varlong; the caller must ensure that it fits 32 or 64 bits."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def varint_size(value: int) -> int:
    """Return the number of bytes that `write_varint` appends for `value`."""
    if -64 <= value < 64:
        return 1
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    return (zigzag.bit_length() + 6) // 7


def _read(buffer: Buffer, position: int, max_size: int) -> tuple[int, int]:
    start = position
    value = 0
    shift = 0
    end = min(len(buffer), start + max_size)
    while position < end:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    if position - start >= max_size:
        raise CorruptBatch(start, f"variable-length integer has more than {max_size} bytes")
    raise CorruptBatch(start, f"variable-length integer is cut off after {position - start} bytes")
