"""The batches of a chunk: their headers as rows (`constants.fields`), one per batch, and their checksums."""

import cython
from cython.cimports.diamant.kernels.constants import fields
from cython.cimports.diamant.kernels.processor import (
    crc32c_by_tables,
    crc32c_of,
    crc32c_unfolded,
    load_big16,
    load_big32,
    load_big64,
    prepare_crc32c,
)
from cython.cimports.diamant.kernels.records import input_bytes, read_int32
from cython.cimports.libc.stdint import INT64_MAX, INT64_MIN, int8_t, int16_t, int64_t, uint8_t

prepare_crc32c()


def read_headers(
    data: cython.const[uint8_t][::1], start: int64_t, end: int64_t, rows: int64_t[:, ::1]
) -> tuple[cython.int, int64_t, int64_t, int64_t]:
    """Fill `rows` with the whole batches from `start` on.

    Returns (fault, number of rows, position after the last batch, bitwise OR of all attributes). If there are entries of magic 0
    or 1, LEGACY is added to the attributes; the rows of such entries have only position, size and magic. Stops at a torn batch,
    or when `rows` is full. A batch whose last offset exceeds 64 bits is a fault.
    """
    together: int64_t = 0
    count: int64_t = 0
    position: int64_t = start
    fault: cython.int = fields.NO_FAULT
    room: int64_t = rows.shape[1]
    size: int64_t
    magic: int64_t
    base_offset: int64_t
    delta: int64_t
    field: cython.Py_ssize_t
    batch: input_bytes
    with cython.nogil:
        while count < room and position + 17 <= end:
            batch = cython.address(data[position])
            size = read_int32(batch + 8) + fields.LOG_OVERHEAD
            magic = cython.cast(int8_t, batch[16])
            base_offset = cython.cast(int64_t, load_big64(batch))
            if size < 26 or magic < 0 or magic > 2 or (magic == 2 and size < fields.HEADER_BYTES):
                fault = fields.BAD_HEADER
                break
            if position + size > end:
                break
            delta = read_int32(batch + 23) if magic == 2 else 0
            if base_offset > INT64_MAX - delta if delta > 0 else base_offset < INT64_MIN - delta:
                fault = fields.BAD_HEADER
                break
            for field in range(rows.shape[0]):
                rows[field, count] = 0
            rows[fields.POSITION, count] = position
            rows[fields.SIZE, count] = size
            rows[fields.MAGIC, count] = magic
            if magic == 2:
                rows[fields.BASE_OFFSET, count] = base_offset
                rows[fields.LAST_OFFSET, count] = base_offset + delta
                rows[fields.ATTRIBUTES, count] = cython.cast(int16_t, load_big16(batch + 21))
                rows[fields.BASE_TIMESTAMP, count] = cython.cast(int64_t, load_big64(batch + 27))
                rows[fields.MAX_TIMESTAMP, count] = cython.cast(int64_t, load_big64(batch + 35))
                rows[fields.PRODUCER_ID, count] = cython.cast(int64_t, load_big64(batch + 43))
                rows[fields.RECORD_COUNT, count] = read_int32(batch + 57)
                rows[fields.PAYLOAD_START, count] = position + fields.HEADER_BYTES
                rows[fields.PAYLOAD_END, count] = position + size
                together |= rows[fields.ATTRIBUTES, count]
            else:
                together |= fields.LEGACY
            count += 1
            position += size
    return fault, count, position, together


def whole_batches(
    data: cython.const[uint8_t][::1], end_offset: int64_t
) -> tuple[int64_t, int64_t, int64_t, int64_t, int64_t]:
    """Measure the whole batches at the start of `data` that begin below `end_offset`, for `clusters.fetching`.

    Returns (bytes of these batches, size of the first one, next offset, first offset, latest timestamp).
    """
    at: int64_t = 0
    size: int64_t
    base_offset: int64_t
    first_size: int64_t = 0
    first_offset: int64_t = -1
    next_offset: int64_t = -1
    latest_ms: int64_t = -1
    batch: input_bytes
    with cython.nogil:
        while at + 17 <= data.shape[0]:
            batch = cython.address(data[at])
            size = read_int32(batch + 8) + fields.LOG_OVERHEAD
            base_offset = cython.cast(int64_t, load_big64(batch))
            if size < (fields.HEADER_BYTES if batch[16] == 2 else 17) or at + size > data.shape[0]:
                break
            if base_offset >> 62 != 0:
                break  # Negative, or so large that a sum could overflow.
            if at == 0:
                first_size = size
                first_offset = base_offset
            if base_offset >= end_offset:
                next_offset = max(next_offset, end_offset)
                break
            next_offset = base_offset + 1
            if batch[16] == 2:
                next_offset += read_int32(batch + 23)
                latest_ms = max(latest_ms, cython.cast(int64_t, load_big64(batch + 35)))
            at += size
    return at, first_size, next_offset, first_offset, latest_ms


def find_bad_crc(
    data: cython.const[uint8_t][::1], rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t, step: int64_t
) -> int64_t:
    """Return the first row with STEP `step` whose batch has a wrong CRC; -1 if there is none."""
    row: int64_t
    found: int64_t = -1
    batch: input_bytes
    with cython.nogil:
        for row in range(first, end):
            if rows[fields.STEP, row] == step:
                batch = cython.address(data[rows[fields.POSITION, row]])
                if crc32c_of(batch + 21, rows[fields.SIZE, row] - 21) != load_big32(batch + 17):
                    found = row
                    break
    return found


def end_of_sound(
    data: cython.const[uint8_t][::1],
    rows: cython.const[int64_t][:, ::1],
    first: int64_t,
    end: int64_t,
    last_offset: int64_t,
) -> tuple[int64_t, int64_t]:
    """Return the first row that has magic 0 or 1, a wrong CRC, or offsets not above earlier ones; `end` if there is none.

    Also returns the last offset before that row; this is `last_offset` if no row precedes it.
    """
    row: int64_t = first
    batch: input_bytes
    with cython.nogil:
        while row < end:
            if rows[fields.MAGIC, row] != 2 or rows[fields.BASE_OFFSET, row] <= last_offset:
                break
            if rows[fields.LAST_OFFSET, row] < rows[fields.BASE_OFFSET, row]:
                break
            batch = cython.address(data[rows[fields.POSITION, row]])
            if crc32c_of(batch + 21, rows[fields.SIZE, row] - 21) != load_big32(batch + 17):
                break
            last_offset = rows[fields.LAST_OFFSET, row]
            row += 1
    return row, last_offset


def next_with(rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t, attributes: int64_t) -> int64_t:
    """Return the first row whose batch has at least one of these attribute bits; `end` if there is none."""
    row: int64_t = first
    with cython.nogil:
        while row < end and rows[fields.ATTRIBUTES, row] & attributes == 0:
            row += 1
    return row


def next_with_step(rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t, step: int64_t) -> int64_t:
    """Return the first row with STEP `step`; `end` if there is none."""
    row: int64_t = first
    with cython.nogil:
        while row < end and rows[fields.STEP, row] != step:
            row += 1
    return row


def next_without_step(rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t, step: int64_t) -> int64_t:
    """Return the first row with a STEP other than `step`; `end` if there is none."""
    row: int64_t = first
    with cython.nogil:
        while row < end and rows[fields.STEP, row] == step:
            row += 1
    return row


def set_steps(
    rows: int64_t[:, ::1], count: int64_t, step: int64_t, other_step: int64_t, attributes: int64_t = 0
) -> cython.void:
    """Set the STEP of each row: `other_step` for magic 0 and 1 and for rows with one of these attribute bits, else `step`."""
    row: int64_t
    with cython.nogil:
        for row in range(count):
            rows[fields.STEP, row] = (
                other_step if rows[fields.MAGIC, row] != 2 or rows[fields.ATTRIBUTES, row] & attributes != 0 else step
            )


def find_packed(
    rows: cython.const[int64_t][:, ::1],
    first: int64_t,
    end: int64_t,
    step: int64_t,
    start_field: int64_t,
    found: int64_t[:, ::1],
) -> int64_t:
    """Write the rows with STEP `step` and compressed records to `found`; return their number.

    `found`: int64[end - first, 4] of row, codec, and the two fields from `start_field` on.
    """
    count: int64_t = 0
    row: int64_t
    with cython.nogil:
        for row in range(first, end):
            if (
                rows[fields.STEP, row] == step
                and rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK != 0
                and rows[fields.RECORD_COUNT, row] != 0
            ):
                found[count, 0] = row
                found[count, 1] = rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK
                found[count, 2] = rows[start_field, row]
                found[count, 3] = rows[start_field + 1, row]
                count += 1
    return count


def records_in(rows: cython.const[int64_t][:, ::1], count: int64_t) -> int64_t:
    """Return the number of records in the first `count` rows as the map counts them: a control batch counts as 1."""
    records: int64_t = 0
    row: int64_t
    with cython.nogil:
        for row in range(count):
            records += 1 if rows[fields.ATTRIBUTES, row] & fields.CONTROL != 0 else rows[fields.RECORD_COUNT, row]
    return records


def last_offset_in(rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t) -> int64_t:
    """Return the greatest last offset of rows `first` to `end`, of which there must be at least one."""
    last: int64_t = rows[fields.LAST_OFFSET, first]
    row: int64_t
    with cython.nogil:
        for row in range(first, end):
            last = max(last, rows[fields.LAST_OFFSET, row])
    return last


def are_in_order(rows: cython.const[int64_t][:, ::1], count: int64_t, last_offset: int64_t) -> cython.bint:
    """Tell whether the offsets of each row are above `last_offset` and all offsets of earlier rows."""
    row: int64_t
    are: cython.bint = True
    with cython.nogil:
        for row in range(count):
            if (
                rows[fields.BASE_OFFSET, row] <= last_offset
                or rows[fields.LAST_OFFSET, row] < rows[fields.BASE_OFFSET, row]
            ):
                are = False
                break
            last_offset = rows[fields.LAST_OFFSET, row]
    return are


def crc32c(
    data: cython.const[uint8_t][::1], may_fold: cython.bint = True, may_use_instructions: cython.bint = True
) -> int64_t:
    """Return the CRC-32C of `data`. If an option is False, compute it as on processors without these instructions."""
    start: input_bytes = cython.cast(input_bytes, cython.NULL)
    if data.shape[0] > 0:
        start = cython.address(data[0])
    if not may_use_instructions:
        return crc32c_by_tables(start, data.shape[0])
    return crc32c_of(start, data.shape[0]) if may_fold else crc32c_unfolded(start, data.shape[0])
