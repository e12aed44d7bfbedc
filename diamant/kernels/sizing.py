"""Sums the sizes of records by key."""

import cython
from cython.cimports.diamant.kernels.constants import fields, sizes
from cython.cimports.diamant.kernels.processor import hash128, siphash128
from cython.cimports.diamant.kernels.records import Record, from_zigzag, input_bytes, read_record, wrapping_sum
from cython.cimports.diamant.kernels.table import slot_of
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcpy


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def group_of(table: uint64_t[:, ::1], hashed: hash128, count: int64_t) -> int64_t:
    """Return the group of a key. A new key is added to the table, which must have room, as group `count`."""
    slot: int64_t = slot_of(hashed.first, table.shape[0])
    while table[slot, 2] != 0 and (table[slot, 0] != hashed.first or table[slot, 1] != hashed.second):
        slot += 1
        if slot == table.shape[0]:
            slot = 0
    if table[slot, 2] == 0:
        table[slot, 0] = hashed.first
        table[slot, 1] = hashed.second
        table[slot, 2] = cython.cast(uint64_t, count + 1)
    return cython.cast(int64_t, table[slot, 2]) - 1


def sum_sizes(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: cython.const[int64_t][:, ::1],
    first: int64_t,
    end: int64_t,
    least_offset: int64_t,
    k0: uint64_t,
    k1: uint64_t,
    table: uint64_t[:, ::1],
    groups: int64_t[:, ::1],
    count: int64_t,
    keys: uint8_t[::1],
    used: int64_t,
) -> tuple[cython.int, int64_t, int64_t, int64_t]:
    """Sum the sizes of data records with keys, from `least_offset` on, in rows with well-formed records.

    So far there are `count` groups, one for each key, in `groups`, int64[n, SIZES]; their keys are in the first `used` bytes of
    `keys`, and in `table`, which must have more slots than there are groups, and is empty at first. Returns (fault, row, groups,
    bytes of keys). After BUFFER_FULL, `groups` needs room for all records of this row, and `keys` for the row's payload.
    """
    row: int64_t = first
    left: int64_t
    position: int64_t
    offset: int64_t
    group: int64_t
    fault: cython.int = fields.NO_FAULT
    payload: input_bytes
    record: Record
    with cython.nogil:
        while row < end:
            left = rows[fields.RECORD_COUNT, row]
            if (
                left <= 0
                or rows[fields.ATTRIBUTES, row] & fields.CONTROL != 0
                or rows[fields.LAST_OFFSET, row] < least_offset
            ):
                row += 1
                continue
            if (
                left > groups.shape[0] - count
                or rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row] > keys.shape[0] - used
            ):
                fault = fields.BUFFER_FULL
                break
            payload = cython.address(unpacked[0]) if rows[fields.IS_UNPACKED, row] != 0 else cython.address(data[0])
            position = rows[fields.PAYLOAD_START, row]
            while left > 0:
                left -= 1
                record = read_record(payload, position, rows[fields.PAYLOAD_END, row])
                if not record.is_valid:
                    break
                position = record.end
                offset = wrapping_sum(rows[fields.BASE_OFFSET, row], from_zigzag(record.delta))
                if record.key_size < 0 or offset < least_offset:
                    continue
                group = group_of(table, siphash128(k0, k1, payload + record.key_start, record.key_size), count)
                if group == count:
                    groups[group, sizes.RECORDS] = 0
                    groups[group, sizes.BYTES] = 0
                    groups[group, sizes.KEY_START] = used
                    if record.key_size > 0:
                        memcpy(cython.address(keys[used]), payload + record.key_start, record.key_size)
                    used += record.key_size
                    groups[group, sizes.KEY_END] = used
                    count += 1
                groups[group, sizes.RECORDS] += 1
                groups[group, sizes.BYTES] += record.key_size + (record.value_size if record.has_value else 0)
            row += 1
    return fault, row, count, used
