"""Writes the output bytes of a cleaned chunk.

encode_records     writes the kept records of compressed batches, ready for compression
room_for_output    returns the maximum size of the output
assemble           writes the output, batch by batch
"""

import cython
from cython.cimports.diamant.kernels.constants import fields, steps
from cython.cimports.diamant.kernels.processor import crc32c_of, prepare_crc32c, store_big
from cython.cimports.diamant.kernels.records import (
    Integer,
    from_zigzag,
    input_bytes,
    read_integer,
    start_of,
    to_zigzag,
    varint_size,
    wrapping_difference,
    wrapping_sum,
    write_varint,
)
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcpy

output_bytes = cython.typedef(cython.pointer(uint8_t))

_MAX_GROWTH_BYTES = cython.declare(int64_t, 10)
"""Maximum number of bytes by which a record grows when its timestamp delta is rewritten."""

prepare_crc32c()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_recompressed(rows: int64_t[:, ::1], row: int64_t) -> cython.bint:
    """Tell whether a row's batch is rebuilt with compressed records."""
    return rows[fields.STEP, row] == steps.REBUILD and rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK != 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def room_for_records(rows: int64_t[:, ::1], row: int64_t) -> int64_t:
    """Return the maximum number of bytes that `encode` writes."""
    return rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row] + _MAX_GROWTH_BYTES * rows[fields.KEPT, row]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def encode(
    source: input_bytes,
    rows: int64_t[:, ::1],
    row: int64_t,
    kept_records: cython.const[int32_t][::1],
    out: output_bytes,
) -> output_bytes:
    """Write the kept records of a row; return the position after them.

    `judging` has checked that their bytes are well-formed. `out` must have room for `room_for_records` bytes.
    """
    index: int64_t
    rest: int64_t
    size: int64_t
    delta: int64_t
    raw: uint64_t
    found = cython.declare(Integer)
    start: int64_t = rows[fields.PAYLOAD_START, row]
    end: int64_t = rows[fields.PAYLOAD_END, row]
    first: int64_t = rows[fields.KEPT_START, row]
    is_log_append_time: cython.bint = rows[fields.ATTRIBUTES, row] & fields.LOG_APPEND_TIME != 0
    # New delta = timestamp - new base = old base + old delta - new base.
    shift: int64_t = wrapping_difference(rows[fields.BASE_TIMESTAMP, row], rows[fields.NEW_BASE_TIMESTAMP, row])
    fixed_delta: int64_t = wrapping_difference(rows[fields.MAX_TIMESTAMP, row], rows[fields.NEW_BASE_TIMESTAMP, row])
    for index in range(first, first + rows[fields.KEPT, row]):
        found = read_integer(source, start + kept_records[index], end, 5)
        rest = found.position + (found.raw >> 1)
        found = read_integer(source, found.position + 1, end, 10)
        size = rest - found.position
        delta = fixed_delta if is_log_append_time else wrapping_sum(from_zigzag(found.raw), shift)
        raw = to_zigzag(delta)
        out = write_varint(out, cython.cast(uint64_t, 1 + varint_size(raw) + size) << 1)
        out[0] = 0  # attributes
        out = write_varint(out + 1, raw)
        memcpy(out, source + found.position, size)
        out += size
    return out


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def encode_rows(
    source: input_bytes,
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    kept_records: cython.const[int32_t][::1],
    out: output_bytes,
    size: int64_t,
) -> int64_t:
    """Implement `encode_records`, with an output of `size` bytes."""
    row: int64_t
    room: int64_t = 0
    at: output_bytes = out
    for row in range(first, end):
        if is_recompressed(rows, row):
            room += room_for_records(rows, row)
    if room > size:
        return -room
    for row in range(first, end):
        if is_recompressed(rows, row):
            rows[fields.EXTRA_START, row] = at - out
            at = encode(source, rows, row, kept_records, at)
            rows[fields.EXTRA_END, row] = at - out
    return at - out


def encode_records(
    payload: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    kept_records: cython.const[int32_t][::1],
    out: uint8_t[::1],
) -> int:
    """Write the kept records of rebuilt compressed batches, row by row; return their size in bytes.

    Sets EXTRA_START and EXTRA_END of each row to its range in `out`. If `out` is too small, writes nothing and returns the
    negative of the required size.
    """
    size: int64_t
    with cython.nogil:
        size = encode_rows(start_of(payload), rows, first, end, kept_records, cython.address(out[0]), out.shape[0])
    return size


def room_for_output(rows: int64_t[:, ::1], first: int64_t, end: int64_t) -> int:
    """Return the maximum number of bytes that `assemble` writes."""
    room: int64_t = 0
    row: int64_t
    step: int64_t
    with cython.nogil:
        for row in range(first, end):
            step = rows[fields.STEP, row]
            if step == steps.COPY:
                room += rows[fields.SIZE, row]
            elif step == steps.EXTRA:
                room += rows[fields.EXTRA_END, row] - rows[fields.EXTRA_START, row]
            elif step == steps.HEADER_ONLY:
                room += fields.HEADER_BYTES
            elif step == steps.REBUILD:
                room += fields.HEADER_BYTES
                if is_recompressed(rows, row):
                    room += rows[fields.EXTRA_END, row] - rows[fields.EXTRA_START, row]
                else:
                    room += room_for_records(rows, row)
    return room


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write_header(
    old: input_bytes, rows: int64_t[:, ::1], row: int64_t, out: output_bytes, end: output_bytes
) -> cython.void:
    """Write the header of a rebuilt batch, whose records end at `end`, or of an emptied batch."""
    attributes: int64_t = rows[fields.ATTRIBUTES, row] & (
        fields.LOG_APPEND_TIME | fields.TRANSACTIONAL | fields.CONTROL
    )
    base_timestamp: int64_t = -1
    max_timestamp: int64_t = rows[fields.MAX_TIMESTAMP, row]
    count: int64_t = 0
    if rows[fields.STEP, row] != steps.HEADER_ONLY:
        attributes |= rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK
        if rows[fields.HORIZON, row] != 0:
            attributes |= fields.DELETE_HORIZON
        base_timestamp = rows[fields.NEW_BASE_TIMESTAMP, row]
        max_timestamp = rows[fields.NEW_MAX_TIMESTAMP, row]
        count = rows[fields.KEPT, row]
    memcpy(out, old, fields.HEADER_BYTES)
    store_big(out + 8, end - out - fields.LOG_OVERHEAD, 4)
    store_big(out + 21, attributes, 2)
    store_big(out + 27, base_timestamp, 8)
    store_big(out + 35, max_timestamp, 8)
    store_big(out + 57, count, 4)
    store_big(out + 17, crc32c_of(out + 21, end - out - 21), 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_extra(extra: input_bytes, rows: int64_t[:, ::1], row: int64_t, out: output_bytes) -> output_bytes:
    """Copy a row's range of the extra buffer to `out`; return the position after it."""
    size: int64_t = rows[fields.EXTRA_END, row] - rows[fields.EXTRA_START, row]
    memcpy(out, extra + rows[fields.EXTRA_START, row], size)
    return out + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def assemble_rows(
    data: input_bytes,
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    kept_records: cython.const[int32_t][::1],
    extra: input_bytes,
    out: output_bytes,
    columns: int64_t[:, ::1],
) -> tuple[int64_t, int64_t]:
    """Implement `assemble`."""
    count: int64_t = 0
    row: int64_t = first
    step: int64_t
    run_start: int64_t
    run_end: int64_t
    at: output_bytes = out
    start: output_bytes = out
    while row < end:
        step = rows[fields.STEP, row]
        start = at
        if step == steps.COPY:
            run_start = run_end = rows[fields.POSITION, row]
            while row < end and rows[fields.STEP, row] == steps.COPY and rows[fields.POSITION, row] == run_end:
                columns[0, count] = rows[fields.SIZE, row]
                columns[1, count] = rows[fields.LAST_OFFSET, row]
                columns[2, count] = rows[fields.MAX_TIMESTAMP, row]
                run_end += rows[fields.SIZE, row]
                count += 1
                row += 1
            memcpy(at, data + run_start, run_end - run_start)
            at += run_end - run_start
            continue
        if step == steps.EXTRA:
            at = copy_extra(extra, rows, row, at)
            columns[2, count] = rows[fields.NEW_MAX_TIMESTAMP, row]
        elif step == steps.HEADER_ONLY:
            at += fields.HEADER_BYTES
            write_header(data + rows[fields.POSITION, row], rows, row, start, at)
            columns[2, count] = rows[fields.MAX_TIMESTAMP, row]
        elif step == steps.REBUILD:
            at += fields.HEADER_BYTES
            if is_recompressed(rows, row):
                at = copy_extra(extra, rows, row, at)
            else:
                at = encode(data, rows, row, kept_records, at)
            write_header(data + rows[fields.POSITION, row], rows, row, start, at)
            columns[2, count] = rows[fields.NEW_MAX_TIMESTAMP, row]
        if at > start:
            columns[0, count] = at - start
            columns[1, count] = rows[fields.LAST_OFFSET, row]
            count += 1
        row += 1
    return at - out, count


def assemble(
    data: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    kept_records: cython.const[int32_t][::1],
    extra: cython.const[uint8_t][::1],
    out: uint8_t[::1],
    columns: int64_t[:, ::1],
) -> tuple:
    """Write the output of rows to `out`, which must have room for `room_for_output` bytes.

    `columns`, int64[3, rows], receives size, last offset and max timestamp of each batch. Returns (bytes, batches).
    """
    written: tuple[int64_t, int64_t]
    target: output_bytes = cython.cast(output_bytes, cython.NULL)
    if out.shape[0] > 0:
        target = cython.address(out[0])
    with cython.nogil:
        written = assemble_rows(start_of(data), rows, first, end, kept_records, start_of(extra), target, columns)
    return written


def copy_columns(
    rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t, columns: int64_t[:, ::1]
) -> cython.void:
    """Fill `columns` as `assemble` does, for rows that are copied unchanged."""
    row: int64_t
    with cython.nogil:
        for row in range(first, end):
            columns[0, row - first] = rows[fields.SIZE, row]
            columns[1, row - first] = rows[fields.LAST_OFFSET, row]
            columns[2, row - first] = rows[fields.MAX_TIMESTAMP, row]
