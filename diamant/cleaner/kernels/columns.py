"""Compiled walk over the records of batches that writes them as columns: what the data source `kafka-log` makes Arrow of.

A record is stepped over as soon as nothing more of it is wanted: with no key, value or header to copy, only its length, its
timestamp and its offset are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled
from diamant.cleaner.kernels.fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CORRUPT,
    IS_UNPACKED,
    LAST_OFFSET,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    NO_FAULT,
    PAYLOAD_END,
    PAYLOAD_START,
    RECORD_COUNT,
    STEP,
)
from diamant.cleaner.kernels.native import address_of, copy_bytes
from diamant.cleaner.kernels.records import from_zigzag, read_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What is wanted of a record, bits; as in columns.py, which does not load numba.
WANT_KEYS = 1
WANT_VALUES = 2
WANT_HEADERS = 4
WANT_SIZES = 8
WANT_ALL = 15

# Rows of `fixed`.
OFFSET = 0
TIMESTAMP = 1
ROW = 2
"""Row of the record's batch in the chunk."""
VALUE_SIZE = 3
"""-1 of a null; left alone unless sizes are wanted."""
FIXED = 4

# Fields of `bounds`, all inclusive.
MIN_OFFSET = 0
MAX_OFFSET = 1
MIN_TIMESTAMP = 2
MAX_TIMESTAMP_BOUND = 3
BOUNDS = 4

# What is left by a call, int64[STATE_FIELDS]; all 0 before the first.
COUNT = 0
"""Records in the columns."""
HEADERS = 1
"""Headers of these."""
WALKED = 2
"""Records that were looked at."""
STATE_FIELDS = 3


@compiled
def walk_records(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first_row: int,
    end_row: int,
    step: int,
    bounds: NDArray[np.int64],
    only: NDArray[np.int64],
    has_only: bool,
    want: int,
    state: NDArray[np.int64],
    fixed: NDArray[np.int64],
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int32],
    has_key: NDArray[np.bool_],
    values: NDArray[np.uint8],
    value_ends: NDArray[np.int32],
    has_value: NDArray[np.bool_],
    header_ends: NDArray[np.int32],
    header_keys: NDArray[np.uint8],
    header_key_ends: NDArray[np.int32],
    header_values: NDArray[np.uint8],
    header_value_ends: NDArray[np.int32],
    has_header_value: NDArray[np.bool_],
) -> tuple[int, int]:
    """Append the records within `bounds` of the rows from `first_row` on that are to take `step`; return (fault, row).

    With `has_only` just those whose offsets are in `only`, int64[n], ascending. The columns have room for all records and all
    bytes of these rows; `ends` have an entry more, the first being 0. Of a row with a fault nothing is left in the columns.
    """
    count = state[COUNT]
    header_count = state[HEADERS]
    walked = state[WALKED]
    keys_address = address_of(keys)
    values_address = address_of(values)
    header_keys_address = address_of(header_keys)
    header_values_address = address_of(header_values)
    at_only = 0
    for row in range(first_row, end_row):
        if rows[STEP, row] != step:
            continue
        state[COUNT] = count
        state[HEADERS] = header_count
        state[WALKED] = walked
        payload = address_of(unpacked) if rows[IS_UNPACKED, row] != 0 else address_of(data)
        position = rows[PAYLOAD_START, row]
        end = rows[PAYLOAD_END, row]
        base_offset = rows[BASE_OFFSET, row]
        last_offset = rows[LAST_OFFSET, row]
        base_timestamp = rows[BASE_TIMESTAMP, row]
        is_append_time = rows[ATTRIBUTES, row] & LOG_APPEND_TIME != 0
        last_seen = base_offset - 1
        for _ in range(rows[RECORD_COUNT, row]):
            raw, position, _ = read_integer(payload, position, end, 5)
            if position < 0 or raw & 1 or raw >> 1 > end - position:
                return CORRUPT, row
            record_end = position + (raw >> 1)
            raw, position, _ = read_integer(payload, position + 1, record_end, 10)
            if position < 0:
                return CORRUPT, row
            timestamp = rows[MAX_TIMESTAMP, row] if is_append_time else base_timestamp + from_zigzag(raw)
            raw, position, _ = read_integer(payload, position, record_end, 5)
            if position < 0:
                return CORRUPT, row
            offset = base_offset + from_zigzag(raw)
            if offset <= last_seen or offset > last_offset:
                return CORRUPT, row
            last_seen = offset
            walked += 1
            is_wanted = (
                bounds[MIN_OFFSET] <= offset <= bounds[MAX_OFFSET]
                and bounds[MIN_TIMESTAMP] <= timestamp <= bounds[MAX_TIMESTAMP_BOUND]
            )
            if is_wanted and has_only:
                while at_only < only.shape[0] and only[at_only] < offset:
                    at_only += 1
                is_wanted = at_only < only.shape[0] and only[at_only] == offset
            if not is_wanted or want & WANT_ALL == 0:
                position = record_end
                if is_wanted:
                    fixed[OFFSET, count] = offset
                    fixed[TIMESTAMP, count] = timestamp
                    fixed[ROW, count] = row
                    count += 1
                continue
            raw, position, _ = read_integer(payload, position, record_end, 5)
            size = -1 if raw & 1 else raw >> 1
            if position < 0 or size >= record_end - position:
                return CORRUPT, row
            if want & WANT_KEYS:
                place: int = np.int64(key_ends[count])  # type: ignore[assignment]  # numba knows no int()
                if size > 0:
                    copy_bytes(keys_address, place, payload, position, size)
                has_key[count] = size >= 0
                key_ends[count + 1] = place + max(size, 0)
            position += max(size, 0)
            if want & (WANT_VALUES | WANT_HEADERS | WANT_SIZES):
                raw, position, _ = read_integer(payload, position, record_end, 5)
                size = -1 if raw & 1 else raw >> 1
                if position < 0 or size >= record_end - position:
                    return CORRUPT, row
                if want & WANT_VALUES:
                    place = np.int64(value_ends[count])  # type: ignore[assignment]  # numba knows no int()
                    if size > 0:
                        copy_bytes(values_address, place, payload, position, size)
                    has_value[count] = size >= 0
                    value_ends[count + 1] = place + max(size, 0)
                fixed[VALUE_SIZE, count] = size
                position += max(size, 0)
            if want & WANT_HEADERS:
                raw, position, _ = read_integer(payload, position, record_end, 5)
                if position < 0 or raw & 1 or raw >> 1 > record_end - position:
                    return CORRUPT, row
                for _ in range(raw >> 1):
                    raw, position, _ = read_integer(payload, position, record_end, 5)
                    if position < 0 or raw & 1 or raw >> 1 > record_end - position:
                        return CORRUPT, row
                    place = np.int64(header_key_ends[header_count])  # type: ignore[assignment]  # numba knows no int()
                    copy_bytes(header_keys_address, place, payload, position, raw >> 1)
                    header_key_ends[header_count + 1] = place + (raw >> 1)
                    raw, position, _ = read_integer(payload, position + (raw >> 1), record_end, 5)
                    size = -1 if raw & 1 else raw >> 1
                    if position < 0 or size > record_end - position:
                        return CORRUPT, row
                    place = np.int64(header_value_ends[header_count])  # type: ignore[assignment]  # numba knows no int()
                    if size > 0:
                        copy_bytes(header_values_address, place, payload, position, size)
                    has_header_value[header_count] = size >= 0
                    header_value_ends[header_count + 1] = place + max(size, 0)
                    position += max(size, 0)
                    header_count += 1
                if position != record_end:
                    return CORRUPT, row
                header_ends[count + 1] = header_count
            position = record_end
            fixed[OFFSET, count] = offset
            fixed[TIMESTAMP, count] = timestamp
            fixed[ROW, count] = row
            count += 1
        if position != end:
            return CORRUPT, row
    state[COUNT] = count
    state[HEADERS] = header_count
    state[WALKED] = walked
    return NO_FAULT, end_row
