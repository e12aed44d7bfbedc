"""Compiled loops over records (numba). Importing this module loads numba (about 65 MB and 0.3 s): never on the loop thread.

Each kernel takes arrays and scalars only, releases the GIL, and has a plain twin that it is tested against. This one serves
Produce; those of the cleaner are in `offset_map.py` and `rewrite.py`. See `cache.py` for where the compiled
code is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled
from diamant.protocol.batches.validation import (
    BAD_HEADER,
    BAD_HEADER_COUNT,
    BAD_LENGTH,
    BAD_OFFSET_DELTA,
    BAD_VARINT,
    CUT_OFF,
    LEFTOVER_BYTES,
    LENGTH_MISMATCH,
    NO_FAULT,
    TIMESTAMP_OVERFLOW,
    RecordChecks,
    WalkOutcome,
)
from diamant.protocol.batches.validation import walk_records as plain_walk_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL_BATCH_RECORDS = 4
"""Below this the plain walk is quicker than calling compiled code (about 3 us)."""

_INT64_MAX = 2**63 - 1
_GREATEST_BASE_TIMESTAMP = 2**62
_NO_TIMESTAMP = -1


@compiled
def read_raw(data: NDArray[np.uint8], position: int, end: int, max_size: int) -> tuple[int, int, int]:
    """(fault, ZigZag form, position after it) of a varint of at most `max_size` (5 or 10) bytes that ends before `end`."""
    value = np.uint64(0)
    for index in range(max_size):
        if position >= end:
            return CUT_OFF, 0, position
        byte = data[position]
        position += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * index)
        if byte < 0x80:
            if max_size == 5:
                value &= np.uint64(0xFFFFFFFF)
            return NO_FAULT, np.int64(value), position  # type: ignore[return-value]  # numba knows no int()
    return BAD_VARINT, 0, position


@compiled
def skip_headers(data: NDArray[np.uint8], position: int, record_end: int, end: int) -> tuple[int, int]:
    """(fault, position after the headers) from the header count at `position` on."""
    fault, raw, position = read_raw(data, position, end, 5)
    if fault != NO_FAULT:
        return fault, position
    if raw & 1 or raw >> 1 > record_end - position:
        return BAD_HEADER_COUNT, position
    for _ in range(raw >> 1):
        fault, size, position = read_raw(data, position, end, 5)
        if fault != NO_FAULT:
            return fault, position
        if size & 1 or size >> 1 > record_end - position:
            return BAD_HEADER, position
        fault, size, position = read_raw(data, position + (size >> 1), end, 5)
        if fault != NO_FAULT:
            return fault, position
        if not size & 1:
            if size >> 1 > record_end - position:
                return BAD_HEADER, position
            position += size >> 1
    return NO_FAULT, position


@compiled
def walk(data: NDArray[np.uint8], record_count: int, base_timestamp: int) -> tuple[int, int, int, int, int, bool, int]:
    """The fields of WalkOutcome for the records that should fill `data` (uint8[n]) exactly."""
    end = len(data)
    position = start = 0
    last = 0
    max_timestamp = _NO_TIMESTAMP
    offset_of_max = -1
    min_timestamp = _INT64_MAX
    has_null_key = False
    for index in range(record_count):
        start = position
        last = index
        fault, raw, position = read_raw(data, position, end, 5)
        if fault != NO_FAULT:
            return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        record_end = position + (raw >> 1)
        if raw & 1 or record_end > end:
            return BAD_LENGTH, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        fault, raw, position = read_raw(data, position + 1, end, 10)
        if fault != NO_FAULT:
            return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        unsigned = np.uint64(raw)
        delta = np.int64(unsigned >> np.uint64(1)) ^ -np.int64(unsigned & np.uint64(1))
        timestamp: int = base_timestamp + delta  # type: ignore[assignment]
        if (delta > 0 and timestamp < base_timestamp) or (delta < 0 and timestamp > base_timestamp):
            return TIMESTAMP_OVERFLOW, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            offset_of_max = index
        if timestamp < min_timestamp:
            min_timestamp = timestamp
        fault, raw, position = read_raw(data, position, end, 5)
        if fault != NO_FAULT:
            return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if raw != index << 1:
            return BAD_OFFSET_DELTA, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        fault, raw, position = read_raw(data, position, end, 5)
        if fault != NO_FAULT:
            return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if raw & 1:
            has_null_key = True
        else:
            position += raw >> 1
        fault, raw, position = read_raw(data, position, end, 5)
        if fault != NO_FAULT:
            return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if not raw & 1:
            position += raw >> 1
        if position >= end:
            return CUT_OFF, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if data[position] == 0:
            position += 1
        else:
            fault, position = skip_headers(data, position, record_end, end)
            if fault != NO_FAULT:
                return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
        if position != record_end:
            return LENGTH_MISMATCH, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp
    if position != end:
        return LEFTOVER_BYTES, position, record_count, max_timestamp, offset_of_max, has_null_key, min_timestamp
    return NO_FAULT, start, last, max_timestamp, offset_of_max, has_null_key, min_timestamp


def walk_records(
    payload: bytes | memoryview,
    record_count: int,
    base_timestamp: int,
    checks: RecordChecks,
    *,
    min_records: int = SMALL_BATCH_RECORDS,
) -> WalkOutcome:
    """Compiled twin of `protocol.validation.walk_records`, which still serves batches that are too small for it."""
    if record_count < min_records:
        return plain_walk_records(payload, record_count, base_timestamp, checks)
    if not -_GREATEST_BASE_TIMESTAMP <= base_timestamp <= _GREATEST_BASE_TIMESTAMP:
        return WalkOutcome(TIMESTAMP_OVERFLOW, 0, 0, _NO_TIMESTAMP, -1, False, _INT64_MAX)
    data = np.frombuffer(payload, np.uint8)
    # Whatever the buffer is: the walk is compiled for read-only memory alone.
    data.flags.writeable = False
    return WalkOutcome._make(walk(data, record_count, base_timestamp))


def warm_up() -> None:
    """Compile (or load from the cache) what a broker uses, so that the first real call does not pay for it."""
    walk(np.frombuffer(b"", np.uint8), 0, 0)
