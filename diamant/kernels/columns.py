"""Walks over the records of batches and writes them as columns, from which the data source `kafka-log` makes Arrow data.

The walk skips the rest of a record as soon as no more fields are wanted: if neither key, value nor headers are wanted, it reads
only length, timestamp and offset.
"""

import cython
from cython.cimports.diamant.kernels.constants import fields as row_fields
from cython.cimports.diamant.kernels.constants.columns import (
    COUNT,
    HEADERS,
    MAX_OFFSET,
    MIN_OFFSET,
    MIN_TIMESTAMP,
    OFFSET,
    TIMESTAMP,
    VALUE_SIZE,
    WALKED,
    WANT_HEADERS,
    WANT_KEYS,
    WANT_SIZES,
    WANT_VALUES,
)
from cython.cimports.diamant.kernels.constants.columns import MAX_TIMESTAMP as MAX_WANTED_TIMESTAMP
from cython.cimports.diamant.kernels.constants.columns import ROW as ROW_OF_RECORD
from cython.cimports.diamant.kernels.records import Integer, from_zigzag, input_bytes, read_integer, wrapping_sum
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t
from cython.cimports.libc.string import memcpy, memset

output_integers = cython.typedef(cython.pointer(int64_t))
ends32 = cython.typedef(cython.pointer(int32_t))

# A column of byte strings: all bytes, the end of each string and, if they can be null, a flag for each string.
Column = cython.struct(data=cython.pointer(uint8_t), ends=ends32, is_there=cython.pointer(uint8_t))

# All columns, and their current sizes.
Columns = cython.struct(
    keys=Column,
    values=Column,
    header_ends=ends32,
    header_keys=Column,
    header_values=Column,
    count=int64_t,
    header_count=int64_t,
    walked=int64_t,
)

# The wanted records and fields.
WantedRecords = cython.struct(
    min_offset=int64_t,
    max_offset=int64_t,
    min_timestamp=int64_t,
    max_timestamp=int64_t,
    has_only=cython.bint,
    only=cython.pointer(cython.const[int64_t]),
    only_count=int64_t,
    at_only=int64_t,
    fields=int64_t,
)


@cython.cfunc
@cython.inline
def column_of(data: uint8_t[::1], ends: int32_t[::1], is_there: uint8_t[::1]) -> Column:
    """Return the addresses of a column."""
    column = cython.declare(Column)
    column.data = cython.NULL
    column.is_there = cython.NULL
    column.ends = cython.address(ends[0])
    if data.shape[0] > 0:
        column.data = cython.address(data[0])
    if is_there.shape[0] > 0:
        column.is_there = cython.address(is_there[0])
    return column


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def append(column: cython.pointer(Column), index: int64_t, data: input_bytes, size: int64_t) -> cython.void:
    """Append field `index` of a column; size -1 means null."""
    start: int64_t = column.ends[index]
    if size > 0:
        memcpy(column.data + start, data, size)
        start += size
    if column.is_there != cython.NULL:
        column.is_there[index] = size >= 0
    column.ends[index + 1] = cython.cast(int32_t, start)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_size(data: input_bytes, position: int64_t, end: int64_t, left: int64_t) -> tuple[int64_t, int64_t]:
    """Read a field's size; return (size, -1 for null; position after it, -1 if the field and `left` more bytes pass `end`)."""
    found: Integer = read_integer(data, position, end, 5)
    size: int64_t = -1 if found.raw & 1 else found.raw >> 1
    if found.position >= 0 and size > end - found.position - left:
        return -1, -1
    return size, found.position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_headers(
    columns: cython.pointer(Columns), index: int64_t, data: input_bytes, position: int64_t, end: int64_t
) -> cython.bint:
    """Append the headers of record `index`, at `position` to `end` of `data`; return False if they are malformed."""
    found: Integer = read_integer(data, position, end, 5)
    left: int64_t = found.raw >> 1
    size: int64_t
    if found.position < 0 or found.raw & 1 or left > end - found.position:
        return False
    position = found.position
    while left > 0:
        size, position = read_size(data, position, end, 0)
        if position < 0 or size < 0:
            return False
        append(cython.address(columns.header_keys), columns.header_count, data + position, size)
        size, position = read_size(data, position + size, end, 0)
        if position < 0:
            return False
        append(cython.address(columns.header_values), columns.header_count, data + position, size)
        position += size if size > 0 else 0
        columns.header_count += 1
        left -= 1
    columns.header_ends[index + 1] = cython.cast(int32_t, columns.header_count)
    return position == end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_fields(
    columns: cython.pointer(Columns),
    index: int64_t,
    fields: int64_t,
    data: input_bytes,
    position: int64_t,
    end: int64_t,
) -> tuple[cython.bint, int64_t]:
    """Append the fields of record `index`, whose key is at `position`; return (False if malformed, size of the value)."""
    size: int64_t
    size, position = read_size(data, position, end, 1)
    if position < 0:
        return False, -1
    if fields & WANT_KEYS:
        append(cython.address(columns.keys), index, data + position, size)
    if not fields & (WANT_VALUES | WANT_HEADERS | WANT_SIZES):
        return True, -1
    size, position = read_size(data, position + (size if size > 0 else 0), end, 1)
    if position < 0:
        return False, -1
    if fields & WANT_VALUES:
        append(cython.address(columns.values), index, data + position, size)
    if fields & WANT_HEADERS and not copy_headers(columns, index, data, position + (size if size > 0 else 0), end):
        return False, -1
    return True, size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_wanted(wanted: cython.pointer(WantedRecords), offset: int64_t, timestamp: int64_t) -> cython.bint:
    """Tell whether a record is within the bounds and, if given, in `only`. Offsets must ascend from call to call."""
    if not (
        wanted.min_offset <= offset <= wanted.max_offset and wanted.min_timestamp <= timestamp <= wanted.max_timestamp
    ):
        return False
    if not wanted.has_only:
        return True
    while wanted.at_only < wanted.only_count and wanted.only[wanted.at_only] < offset:
        wanted.at_only += 1
    return wanted.at_only < wanted.only_count and wanted.only[wanted.at_only] == offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_row(
    payload: input_bytes,
    rows: int64_t[:, ::1],
    row: int64_t,
    wanted: cython.pointer(WantedRecords),
    columns: cython.pointer(Columns),
    fixed: int64_t[:, ::1],
) -> cython.bint:
    """Append the wanted records of a row; return False if a record is malformed."""
    position: int64_t = rows[row_fields.PAYLOAD_START, row]
    end: int64_t = rows[row_fields.PAYLOAD_END, row]
    record_end: int64_t
    base_offset: int64_t = rows[row_fields.BASE_OFFSET, row]
    last_offset: int64_t = rows[row_fields.LAST_OFFSET, row]
    base_timestamp: int64_t = rows[row_fields.BASE_TIMESTAMP, row]
    append_timestamp: int64_t = rows[row_fields.MAX_TIMESTAMP, row]
    is_append_time: cython.bint = rows[row_fields.ATTRIBUTES, row] & row_fields.LOG_APPEND_TIME != 0
    last_seen: int64_t = wrapping_sum(base_offset, -1)
    left: int64_t = rows[row_fields.RECORD_COUNT, row]
    index: int64_t = columns.count
    offset: int64_t
    timestamp: int64_t
    size: int64_t = -1
    is_sound: cython.bint
    found: Integer
    while left > 0:
        found = read_integer(payload, position, end, 5)
        if found.position < 0 or found.raw & 1 or found.raw >> 1 > end - found.position:
            return False
        record_end = found.position + (found.raw >> 1)
        found = read_integer(payload, found.position + 1, record_end, 10)
        if found.position < 0:
            return False
        timestamp = append_timestamp if is_append_time else wrapping_sum(base_timestamp, from_zigzag(found.raw))
        found = read_integer(payload, found.position, record_end, 5)
        if found.position < 0:
            return False
        offset = wrapping_sum(base_offset, from_zigzag(found.raw))
        if offset <= last_seen or offset > last_offset:
            return False
        last_seen = offset
        if is_wanted(wanted, offset, timestamp):
            if wanted.fields != 0:
                is_sound, size = copy_fields(columns, index, wanted.fields, payload, found.position, record_end)
                if not is_sound:
                    return False
                fixed[VALUE_SIZE, index] = size
            fixed[OFFSET, index] = offset
            fixed[TIMESTAMP, index] = timestamp
            fixed[ROW_OF_RECORD, index] = row
            index += 1
        position = record_end
        left -= 1
    columns.count = index
    columns.walked += max(rows[row_fields.RECORD_COUNT, row], 0)
    return position == end


def walk_records(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    first_row: int64_t,
    end_row: int64_t,
    step: int64_t,
    bounds: cython.const[int64_t][::1],
    only: cython.const[int64_t][::1],
    has_only: cython.bint,
    want: int64_t,
    state: int64_t[::1],
    fixed: int64_t[:, ::1],
    keys: uint8_t[::1],
    key_ends: int32_t[::1],
    has_key: uint8_t[::1],
    values: uint8_t[::1],
    value_ends: int32_t[::1],
    has_value: uint8_t[::1],
    header_ends: int32_t[::1],
    header_keys: uint8_t[::1],
    header_key_ends: int32_t[::1],
    header_values: uint8_t[::1],
    header_value_ends: int32_t[::1],
    has_header_value: uint8_t[::1],
) -> tuple:
    """Append records within `bounds` from the rows with STEP `step`, from `first_row` on; return (fault, row).

    If `has_only`, only records with an offset in `only`, int64[n], ascending, are appended. The columns must have room for all
    records and bytes of these rows; arrays of ends have an additional first entry, 0. A row with a fault adds nothing to the
    columns. `data` and `unpacked` must not be empty.
    """
    wanted = cython.declare(WantedRecords)
    memset(cython.address(wanted), 0, cython.sizeof(WantedRecords))
    wanted.min_offset = bounds[MIN_OFFSET]
    wanted.max_offset = bounds[MAX_OFFSET]
    wanted.min_timestamp = bounds[MIN_TIMESTAMP]
    wanted.max_timestamp = bounds[MAX_WANTED_TIMESTAMP]
    wanted.has_only = has_only
    wanted.only_count = only.shape[0]
    wanted.at_only = 0
    wanted.fields = want
    if only.shape[0] > 0:
        wanted.only = cython.address(only[0])
    columns = cython.declare(Columns)
    columns.keys = column_of(keys, key_ends, has_key)
    columns.values = column_of(values, value_ends, has_value)
    columns.header_ends = cython.address(header_ends[0])
    columns.header_keys = column_of(header_keys, header_key_ends, has_header_value[:0])
    columns.header_values = column_of(header_values, header_value_ends, has_header_value)
    columns.count = state[COUNT]
    columns.header_count = state[HEADERS]
    columns.walked = state[WALKED]
    payload: input_bytes
    row: int64_t
    with cython.nogil:
        for row in range(first_row, end_row):
            if rows[row_fields.STEP, row] != step:
                continue
            payload = cython.address(unpacked[0]) if rows[row_fields.IS_UNPACKED, row] != 0 else cython.address(data[0])
            if not walk_row(payload, rows, row, cython.address(wanted), cython.address(columns), fixed):
                break
            state[COUNT] = columns.count
            state[HEADERS] = columns.header_count
            state[WALKED] = columns.walked
        else:
            row = end_row
    return row_fields.NO_FAULT if row == end_row else row_fields.CORRUPT, row
