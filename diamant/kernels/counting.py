"""Counts records and keys: makes sums and entries from batches, and puts entries into a table.

An *entry* is three words: the two halves of a key's hash (`processor.h`), and a word of facts about the key
(`constants.counts`). The table (`table`) stores that word + 1.
"""

import cython
from cython.cimports.diamant.kernels.constants import fields
from cython.cimports.diamant.kernels.constants.counts import (
    ABORTED,
    BELOW_LOG_START,
    EARLIER,
    EARLIER_ONE,
    KEYLESS,
    MARKERS,
    NO_SOURCE,
    RECORDS,
    SOURCE_SHIFT,
    TOMBSTONE,
)
from cython.cimports.diamant.kernels.constants.counts import UNDECIDED as UNDECIDED_RECORDS
from cython.cimports.diamant.kernels.processor import hash128, prefetch, siphash128
from cython.cimports.diamant.kernels.records import Record, from_zigzag, input_bytes, read_record, wrapping_sum
from cython.cimports.diamant.kernels.table import slot_of
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t

_ENTRIES_AHEAD = cython.declare(cython.int, 8)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def count_row(
    payload: input_bytes,
    rows: cython.const[int64_t][:, ::1],
    row: int64_t,
    least_offset: int64_t,
    k0: uint64_t,
    k1: uint64_t,
    source: int64_t,
    entries: uint64_t[:, ::1],
    count: int64_t,
    sums: int64_t[::1],
) -> int64_t:
    """Run `count_records` for one row with records; `entries` must have room for them. Return -1 if the row is corrupt."""
    position: int64_t = rows[fields.PAYLOAD_START, row]
    end: int64_t = rows[fields.PAYLOAD_END, row]
    base_offset: int64_t = rows[fields.BASE_OFFSET, row]
    last_offset: int64_t = rows[fields.LAST_OFFSET, row]
    record_count: int64_t = rows[fields.RECORD_COUNT, row]
    outcome: int64_t = rows[fields.STEP, row]
    below: int64_t = 0
    keyless: int64_t = 0
    left: int64_t = record_count
    offset: int64_t
    record: Record
    hashed: hash128
    while left > 0:
        left -= 1
        record = read_record(payload, position, end)
        if not record.is_valid:
            return -1
        offset = wrapping_sum(base_offset, from_zigzag(record.delta))
        if offset < base_offset or offset > last_offset:
            return -1
        position = record.end
        if offset < least_offset:
            below += 1
        elif outcome == 0:
            if record.key_size < 0:
                keyless += 1
            else:
                hashed = siphash128(k0, k1, payload + record.key_start, record.key_size)
                entries[count, 0] = hashed.first
                entries[count, 1] = hashed.second
                if source == NO_SOURCE:
                    entries[count, 2] = cython.cast(uint64_t, offset)
                else:
                    entries[count, 2] = cython.cast(uint64_t, source << SOURCE_SHIFT | (not record.has_value))
                count += 1
    if position != end:
        return -1
    sums[RECORDS] += record_count
    sums[BELOW_LOG_START] += below
    sums[KEYLESS] += keyless
    if outcome == 1:
        sums[ABORTED] += record_count - below
    elif outcome == 2:
        sums[UNDECIDED_RECORDS] += record_count - below
    return count


def count_records(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: cython.const[int64_t][:, ::1],
    first: int64_t,
    end: int64_t,
    least_offset: int64_t,
    k0: uint64_t,
    k1: uint64_t,
    source: int64_t,
    entries: uint64_t[:, ::1],
    count: int64_t,
    sums: int64_t[::1],
) -> tuple[cython.int, int64_t, int64_t]:
    """Count the records of rows from `first` on; append entries for committed records with keys at or above `least_offset`.

    With NO_SOURCE, the entries are tuples of hash and offset (`offset_map`). STEP is the state of a row's transaction: 0
    committed, 1 aborted, 2 open. Returns (fault, row, number of entries). After CORRUPT, nothing of this row has been counted;
    after BUFFER_FULL, `entries` needs room for all records of this row.
    """
    row: int64_t = first
    fault: cython.int = fields.NO_FAULT
    record_count: int64_t
    found: int64_t
    payload: input_bytes
    with cython.nogil:
        while row < end:
            record_count = rows[fields.RECORD_COUNT, row]
            if rows[fields.ATTRIBUTES, row] & fields.CONTROL != 0:
                if record_count > 0 and rows[fields.LAST_OFFSET, row] >= least_offset:
                    sums[MARKERS] += record_count
            elif rows[fields.LAST_OFFSET, row] < least_offset:
                if record_count > 0:
                    sums[RECORDS] += record_count
                    sums[BELOW_LOG_START] += record_count
            elif record_count != 0:
                if (
                    record_count < 0
                    or record_count
                    > (rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row]) // fields.MIN_RECORD_BYTES
                ):
                    fault = fields.CORRUPT
                    break
                if rows[fields.STEP, row] == 0 and record_count > entries.shape[0] - count:
                    fault = fields.BUFFER_FULL
                    break
                payload = cython.address(unpacked[0]) if rows[fields.IS_UNPACKED, row] != 0 else cython.address(data[0])
                found = count_row(payload, rows, row, least_offset, k0, k1, source, entries, count, sums)
                if found < 0:
                    fault = fields.CORRUPT
                    break
                count = found
            row += 1
    return fault, row, count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def add_word(counts: int64_t[:, ::1], word: uint64_t) -> int64_t:
    """Count the latest record of a key in a source as LIVE or TOMBSTONES; return 1 if it is live."""
    is_tombstone: int64_t = cython.cast(int64_t, word & TOMBSTONE)
    counts[is_tombstone, cython.cast(int64_t, word >> SOURCE_SHIFT)] += 1
    return 1 - is_tombstone


def put_entries(
    table: uint64_t[:, ::1],
    size: int64_t,
    max_size: int64_t,
    only_source: int64_t,
    entries: cython.const[uint64_t][:, ::1],
    start: int64_t,
    end: int64_t,
    counts: int64_t[:, ::1],
    is_one_log: cython.bint,
) -> tuple[int64_t, int64_t]:
    """Put entries `start` to `end` into the table, where a later entry replaces an earlier entry with the same key.

    `counts`: int64[3, sources] of live keys, tombstones and superseded records. A replaced entry is counted for its source. It
    counts as superseded if the later entry has the same source or the sources are parts of one log (`is_one_log`); otherwise as
    a live key or a tombstone. Stops before an entry of another source than `only_source`, unless that is
    negative, and at `max_size` keys, which must be less than the number of slots. Returns (next entry, keys in the table).
    """
    slots: int64_t = table.shape[0]
    index: int64_t = start
    ahead: int64_t = start
    slot: int64_t
    first: uint64_t
    second: uint64_t
    word: uint64_t
    known: uint64_t
    earlier: uint64_t
    with cython.nogil:
        while index < end and size < max_size:
            while ahead < end and ahead <= index + _ENTRIES_AHEAD:
                prefetch(cython.address(table[slot_of(entries[ahead, 0], slots), 0]))
                ahead += 1
            first = entries[index, 0]
            second = entries[index, 1]
            word = entries[index, 2]
            if only_source >= 0 and cython.cast(int64_t, word >> SOURCE_SHIFT) != only_source:
                break
            slot = slot_of(first, slots)
            while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
                slot += 1
                if slot == slots:
                    slot = 0
            if table[slot, 2] == 0:
                table[slot, 0] = first
                table[slot, 1] = second
                size += 1
            else:
                known = table[slot, 2] - 1
                earlier = known & EARLIER
                if is_one_log or known >> SOURCE_SHIFT == word >> SOURCE_SHIFT:
                    counts[2, cython.cast(int64_t, known >> SOURCE_SHIFT)] += 1
                elif add_word(counts, known) != 0 and earlier < 2 * EARLIER_ONE:
                    earlier += EARLIER_ONE
                word |= earlier
            table[slot, 2] = word + 1
            index += 1
    return index, size


def take_entries(
    table: cython.const[uint64_t][:, ::1], slot: int64_t, entries: uint64_t[:, ::1]
) -> tuple[int64_t, int64_t]:
    """Copy the table's entries from `slot` on until `entries` is full; return (next slot, number of entries).

    The halves of the hashes are swapped, so that another table receives the entries in random order. In slot order, they would
    all compete for the same few slots while that table is small.
    """
    count: int64_t = 0
    with cython.nogil:
        while slot < table.shape[0] and count < entries.shape[0]:
            if table[slot, 2] != 0:
                entries[count, 0] = table[slot, 1]
                entries[count, 1] = table[slot, 0]
                entries[count, 2] = table[slot, 2] - 1
                count += 1
            slot += 1
    return slot, count


def sum_entries(table: cython.const[uint64_t][:, ::1], counts: int64_t[:, ::1]) -> int64_t:
    """Count the keys in a table; return the number of keys that are live in several sources."""
    shared: int64_t = 0
    slot: int64_t
    live: int64_t
    with cython.nogil:
        for slot in range(table.shape[0]):
            if table[slot, 2] != 0:
                live = add_word(counts, table[slot, 2] - 1)
                live += cython.cast(int64_t, (table[slot, 2] - 1 & EARLIER) // EARLIER_ONE)
                shared += live > 1
    return shared
