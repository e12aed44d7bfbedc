"""Compiled readers of batches and records, and the writer of their integers: what the map's and the rewrite's kernels share.

Every read is checked against the end of its buffer. A record is accepted where `protocol.records.iter_records` accepts it.
It is *odd* if writing its fields again would give other bytes than copying them: integers in more bytes than they need,
or a null that is not -1. Kafka writes them again, so odd batches are left to the plain engine.

A chunk of a segment is described by a table of rows (`fields`), one row per batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled, inlined
from diamant.cleaner.kernels.fields import (
    ATTRIBUTES,
    BAD_HEADER,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    LAST_OFFSET,
    LEGACY,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    NO_FAULT,
    PAYLOAD_END,
    PAYLOAD_START,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
    STEP,
)
from diamant.cleaner.kernels.native import address_of, crc32c_at, load_uint8, store_uint8

if TYPE_CHECKING:
    from numpy.typing import NDArray


@inlined
def read_unsigned(data: int, position: int, size: int) -> int:
    """Return the big-endian unsigned integer in the `size` bytes at `position`."""
    value = 0
    for index in range(size):
        value = value << 8 | load_uint8(data, position + index)
    return value


@inlined
def read_int16(data: int, position: int) -> int:
    """Return the big-endian integer in the 2 bytes at `position`."""
    return np.int64(np.int16(read_unsigned(data, position, 2)))  # type: ignore[return-value]  # numba knows no int()


@inlined
def read_int32(data: int, position: int) -> int:
    """Return the big-endian integer in the 4 bytes at `position`."""
    return np.int64(np.int32(read_unsigned(data, position, 4)))  # type: ignore[return-value]


@inlined
def read_int64(data: int, position: int) -> int:
    """Return the big-endian integer in the 8 bytes at `position`."""
    return np.int64(read_unsigned(data, position, 8))  # type: ignore[return-value]


@compiled
def read_headers(data: NDArray[np.uint8], start: int, end: int, rows: NDArray[np.int64]) -> tuple[int, int, int, int]:
    """Fill `rows` with the whole batches from `start` on.

    Returns (fault, number of rows, position after the last, all their attributes together and LEGACY if there are entries
    of magic 0 or 1, of which only position, size and magic are told). Ends at a torn batch, or when `rows` is full.
    """
    address = address_of(data)
    together = 0
    count = 0
    position = start
    while count < rows.shape[1] and position + 17 <= end:
        size = read_int32(address, position + 8) + LOG_OVERHEAD
        magic = np.int64(np.int8(load_uint8(address, position + 16)))
        if size < 26 or magic < 0 or magic > 2 or (magic == 2 and size < HEADER_BYTES):
            return BAD_HEADER, count, position, together
        if position + size > end:
            break
        rows[:, count] = 0
        rows[POSITION, count] = position
        rows[SIZE, count] = size
        rows[MAGIC, count] = magic
        if magic == 2:
            base_offset = read_int64(address, position)
            rows[BASE_OFFSET, count] = base_offset
            rows[LAST_OFFSET, count] = base_offset + read_int32(address, position + 23)
            rows[ATTRIBUTES, count] = read_int16(address, position + 21)
            rows[BASE_TIMESTAMP, count] = read_int64(address, position + 27)
            rows[MAX_TIMESTAMP, count] = read_int64(address, position + 35)
            rows[PRODUCER_ID, count] = read_int64(address, position + 43)
            rows[RECORD_COUNT, count] = read_int32(address, position + 57)
            rows[PAYLOAD_START, count] = position + HEADER_BYTES
            rows[PAYLOAD_END, count] = position + size
            together |= rows[ATTRIBUTES, count]
        else:
            together |= LEGACY
        count += 1
        position += size
    return NO_FAULT, count, position, together


@compiled
def find_bad_crc(data: NDArray[np.uint8], rows: NDArray[np.int64], first: int, end: int, step: int) -> int:
    """Return the first of the rows that are to take `step` whose batch has not the CRC that it declares; -1 if none."""
    address = address_of(data)
    for row in range(first, end):
        if rows[STEP, row] == step:
            position = rows[POSITION, row]
            if crc32c_at(address, position + 21, position + rows[SIZE, row]) != read_unsigned(
                address, position + 17, 4
            ):
                return row
    return -1


@compiled
def read_varint(data: int, position: int, end: int, max_size: int) -> tuple[bool, bool, int, int]:
    """Read a ZigZag integer of at most `max_size` (5 or 10) bytes: (is it there, is it odd, ZigZag form, position after)."""
    value = np.uint64(0)
    for index in range(max_size):
        if position >= end:
            return False, False, 0, position
        byte = load_uint8(data, position)
        position += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * index)
        if byte < 0x80:
            is_odd = byte == 0 and index > 0
            if max_size == 5:
                is_odd |= bool(value > np.uint64(0xFFFFFFFF))
                value &= np.uint64(0xFFFFFFFF)
            else:
                is_odd |= index == 9 and byte > 1
            return True, is_odd, np.int64(value), position  # type: ignore[return-value]
    return False, False, 0, position


@compiled
def read_headers_of_record(data: int, position: int, end: int) -> tuple[bool, bool, int]:
    """Step over the headers of a record that ends at `end`: (are they well-formed, is any odd, position after them)."""
    is_there, is_odd, raw, position = read_varint(data, position, end, 5)
    if not is_there or raw & 1 or raw >> 1 > end - position:
        return False, False, position
    for _ in range(raw >> 1):
        is_there, odd, size, position = read_varint(data, position, end, 5)
        is_odd |= odd
        if not is_there or size & 1 or size >> 1 > end - position:
            return False, False, position
        is_there, odd, size, position = read_varint(data, position + (size >> 1), end, 5)
        is_odd |= odd | (size & 1 == 1 and size != 1)
        if not is_there:
            return False, False, position
        if not size & 1:
            if size >> 1 > end - position:
                return False, False, position
            position += size >> 1
    return True, is_odd, position


@inlined
def read_integer(data: int, position: int, end: int, max_size: int) -> tuple[int, int, bool]:
    """Read a ZigZag integer of at most `max_size` bytes: (ZigZag form, position after it or -1, is it odd)."""
    if position >= end:
        return 0, -1, False
    byte = load_uint8(data, position)
    if byte < 0x80:
        return byte, position + 1, False
    # Nearly all have one or two bytes.
    if position + 1 < end:
        second = load_uint8(data, position + 1)
        if 0 < second < 0x80:
            return byte & 0x7F | second << 7, position + 2, False
    is_there, is_odd, raw, position = read_varint(data, position, end, max_size)
    return raw, position if is_there else -1, is_odd


@inlined
def read_record(data: int, position: int, end: int) -> tuple[bool, bool, int, int, int, int, int, bool, int]:
    """Read the record at `position` of a payload that ends at `end`.

    Returns (is it well-formed, is it odd, ZigZag forms of the timestamp and the offset delta, where the offset delta
    begins, where the key begins, its size or -1, has it a value, where the record ends).
    """
    bad = (False, False, 0, 0, 0, 0, 0, False, 0)
    raw, position, is_odd = read_integer(data, position, end, 5)
    if position < 0 or raw & 1 or raw >> 1 > end - position:
        return bad
    record_end = position + (raw >> 1)
    timestamp, rest, odd = read_integer(data, position + 1, record_end, 10)
    if rest < 0:
        return bad
    is_odd |= odd
    delta, position, odd = read_integer(data, rest, record_end, 5)
    if position < 0:
        return bad
    is_odd |= odd
    raw, key_start, odd = read_integer(data, position, record_end, 5)
    if key_start < 0:
        return bad
    is_odd |= odd
    position = key_start
    key_size = -1
    if raw & 1:
        is_odd |= raw != 1
    else:
        key_size = raw >> 1
        if key_size >= record_end - position:
            return bad
        position += key_size
    raw, position, odd = read_integer(data, position, record_end, 5)
    if position < 0:
        return bad
    is_odd |= odd
    has_value = True
    if raw & 1:
        has_value = False
        is_odd |= raw != 1
    else:
        if raw >> 1 >= record_end - position:
            return bad
        position += raw >> 1
    if position >= record_end:
        return bad
    if load_uint8(data, position) == 0:
        position += 1
    else:
        is_there, odd, position = read_headers_of_record(data, position, record_end)
        if not is_there:
            return bad
        is_odd |= odd
    if position != record_end:
        return bad
    return True, is_odd, timestamp, delta, rest, key_start, key_size, has_value, record_end


@inlined
def from_zigzag(raw: int) -> int:
    """Return the integer whose ZigZag form, taken as unsigned 64 bits, is `raw`."""
    unsigned = np.uint64(raw)
    return np.int64(unsigned >> np.uint64(1)) ^ -np.int64(unsigned & np.uint64(1))  # type: ignore[return-value]


@inlined
def to_zigzag(value: int) -> np.uint64:
    """Return the ZigZag form of a 64-bit integer."""
    return np.uint64(value << 1) ^ np.uint64(value >> 63)


@inlined
def varint_size(raw: np.uint64) -> int:
    """Return how many bytes a ZigZag form takes."""
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(out: int, at: int, raw: np.uint64) -> int:
    """Write a ZigZag form, for which there must be room; return the position after it."""
    while raw >= np.uint64(0x80):
        store_uint8(out, at, np.int64(raw) & 0x7F | 0x80)
        raw >>= np.uint64(7)
        at += 1
    store_uint8(out, at, np.int64(raw))
    return at + 1


@inlined
def write_big_endian(out: int, at: int, value: int | np.int64, size: int) -> None:
    """Write the low `size` bytes of `value` at `at`, for which there must be room."""
    for index in range(size):
        store_uint8(out, at + index, value >> (8 * (size - 1 - index)))
