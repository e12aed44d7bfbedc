"""Picks candidate records: records with a key, or records with certain bytes and later records with the same keys."""

import cython
from cython.cimports.diamant.kernels.constants import fields, picking
from cython.cimports.diamant.kernels.processor import contains, hash128, siphash128
from cython.cimports.diamant.kernels.records import Record, input_bytes, read_record
from cython.cimports.diamant.kernels.table import find, slot_of
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcmp


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def add_key(table: uint64_t[:, ::1], hashed: hash128) -> int64_t:
    """Add a new key to the table, which must have room; return 1."""
    slot: int64_t = slot_of(hashed.first, table.shape[0])
    while table[slot, 2] != 0:
        slot += 1
        if slot == table.shape[0]:
            slot = 0
    table[slot, 0] = hashed.first
    table[slot, 1] = hashed.second
    table[slot, 2] = 1
    return 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pick_from_row(
    payload: input_bytes,
    rows: cython.const[int64_t][:, ::1],
    row: int64_t,
    wanted: input_bytes,
    wanted_size: int64_t,
    mode: int64_t,
    k0: uint64_t,
    k1: uint64_t,
    watched: uint64_t[:, ::1],
    size: int64_t,
    picked: int64_t[:, ::1],
    count: int64_t,
) -> tuple[int64_t, int64_t]:
    """Run `pick_records` for one row. Return (records picked, keys in the table), with -1 records if the row is corrupt."""
    position: int64_t = rows[fields.PAYLOAD_START, row]
    end: int64_t = rows[fields.PAYLOAD_END, row]
    start: int64_t
    left: int64_t = rows[fields.RECORD_COUNT, row]
    is_there: cython.bint = mode == picking.WITH_TEXT
    is_wanted: cython.bint
    is_watched: cython.bint
    record: Record
    hashed: hash128
    if is_there:
        is_there = contains(payload + position, end - position, wanted, wanted_size)
    if not is_there and size == 0 and mode in (picking.WITH_TEXT, picking.WATCHED):
        return count, size
    while left > 0:
        left -= 1
        start = position
        record = read_record(payload, position, end)
        if not record.is_valid:
            return -1, size
        position = record.end
        if mode == picking.WITH_KEY:
            is_wanted = record.key_size == wanted_size
            # An empty key has no address to compare.
            if is_wanted and wanted_size > 0:
                is_wanted = memcmp(payload + record.key_start, wanted, wanted_size) == 0
        else:
            is_wanted = is_there
            if is_wanted:
                is_wanted = contains(payload + start, position - start, wanted, wanted_size)
            elif mode == picking.TOMBSTONES:
                is_wanted = record.key_size >= 0 and not record.has_value
            if record.key_size >= 0 and (is_wanted or size > 0):
                hashed = siphash128(k0, k1, payload + record.key_start, record.key_size)
                is_watched = find(cython.address(watched[0, 0]), watched.shape[0], hashed.first, hashed.second) >= 0
                if is_wanted and not is_watched:
                    size += add_key(watched, hashed)
                is_wanted = is_wanted or is_watched
        if is_wanted:
            picked[count, 0] = row
            picked[count, 1] = start
            picked[count, 2] = position
            count += 1
    return (count if position == end else -1), size


def pick_records(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: cython.const[int64_t][:, ::1],
    first: int64_t,
    end: int64_t,
    least_offset: int64_t,
    wanted: cython.const[uint8_t][::1],
    mode: int64_t,
    k0: uint64_t,
    k1: uint64_t,
    watched: uint64_t[:, ::1],
    size: int64_t,
    picked: int64_t[:, ::1],
) -> tuple[cython.int, int64_t, int64_t, int64_t]:
    """Pick data records from rows `first` to `end`; write each record's row and its start and end in the payload to `picked`.

    `mode` (`constants.picking`) and `wanted`, a key or non-empty bytes, select the records. The table `watched` has `size` keys
    whose later records are picked as well. Batches that end before `least_offset` are skipped. Returns (fault, row, records
    picked, keys in the table). After CORRUPT, nothing of this row has been picked. After BUFFER_FULL, `picked`, int64[n, 3],
    and the table need room for all records of this row; a quarter of the table's slots must stay free.
    """
    row: int64_t = first
    count: int64_t = 0
    found: int64_t
    record_count: int64_t
    payload_size: int64_t
    fault: cython.int = fields.NO_FAULT
    payload: input_bytes
    wanted_start: input_bytes = cython.cast(input_bytes, cython.NULL)
    if wanted.shape[0] > 0:
        wanted_start = cython.address(wanted[0])
    with cython.nogil:
        while row < end:
            record_count = rows[fields.RECORD_COUNT, row]
            if (
                record_count == 0
                or rows[fields.ATTRIBUTES, row] & fields.CONTROL != 0
                or rows[fields.LAST_OFFSET, row] < least_offset
            ):
                row += 1
                continue
            payload_size = rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row]
            if record_count < 0 or record_count > payload_size // fields.MIN_RECORD_BYTES:
                fault = fields.CORRUPT
                break
            payload = cython.address(unpacked[0]) if rows[fields.IS_UNPACKED, row] != 0 else cython.address(data[0])
            if record_count > picked.shape[0] - count or size + record_count > watched.shape[0] * 3 // 4:
                fault = fields.BUFFER_FULL
                break
            found, size = pick_from_row(
                payload, rows, row, wanted_start, wanted.shape[0], mode, k0, k1, watched, size, picked, count
            )
            if found < 0:
                fault = fields.CORRUPT
                break
            count = found
            row += 1
    return fault, row, count, size
