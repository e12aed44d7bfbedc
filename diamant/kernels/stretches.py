"""Stretches of a segment (`constants.stretches`), recorded while the map is built, so that the rewrite can skip some of them.

The rewrite drops a stretch unread if none of its offsets is the last of a key; `judging.decide` would drop its batches, too.

This module also carries notes of rows from the map to the rewrite. A row has a note if its batch is a data batch of magic 2 that
begins at or above a given offset.
"""

import cython
from cython.cimports.diamant.kernels.constants import fates, fields
from cython.cimports.diamant.kernels.constants.stretches import (
    BATCHES,
    BATCHES_BEFORE,
    END,
    FIRST_OFFSET,
    RANGE_END,
    RANGE_START,
    RECORD_BYTES,
    START,
)
from cython.cimports.diamant.kernels.constants.stretches import LAST_OFFSET as LAST_OF_STRETCH
from cython.cimports.diamant.kernels.constants.stretches import RECORDS as RECORDS_OF_STRETCH
from cython.cimports.libc.stdint import int64_t, uint32_t


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_plain(rows: cython.const[int64_t][:, ::1], row: int64_t, least_offset: int64_t) -> cython.bint:
    """Tell whether a row may be part of a stretch."""
    return (
        rows[fields.MAGIC, row] == 2
        and rows[fields.NOTE, row] > 0
        and rows[fields.ATTRIBUTES, row] & (fields.CONTROL | fields.TRANSACTIONAL | fields.LOG_APPEND_TIME) == 0
        and rows[fields.RECORD_COUNT, row] > 0
        and rows[fields.BASE_OFFSET, row] >= least_offset
    )


def note_stretches(
    rows: cython.const[int64_t][:, ::1],
    count: int64_t,
    position: int64_t,
    least_offset: int64_t,
    stretch_bytes: int64_t,
    stretches: int64_t[:, ::1],
) -> int:
    """Record the stretches in the first `count` rows of a chunk at `position`; return their number.

    A stretch ends as soon as it has `stretch_bytes`; shorter stretches are not recorded. `stretches` must have room for one more
    stretch than the chunk can contain.
    """
    row: int64_t
    found: int64_t = 0
    is_open: cython.bint = False
    with cython.nogil:
        for row in range(count):
            if not is_plain(rows, row, least_offset):
                is_open = False
                continue
            if not is_open:
                is_open = True
                stretches[found, START] = position + rows[fields.POSITION, row]
                stretches[found, FIRST_OFFSET] = rows[fields.BASE_OFFSET, row]
                stretches[found, LAST_OF_STRETCH] = rows[fields.LAST_OFFSET, row]
                stretches[found, BATCHES] = stretches[found, RECORDS_OF_STRETCH] = stretches[found, RECORD_BYTES] = 0
            stretches[found, END] = position + rows[fields.POSITION, row] + rows[fields.SIZE, row]
            stretches[found, FIRST_OFFSET] = min(stretches[found, FIRST_OFFSET], rows[fields.BASE_OFFSET, row])
            stretches[found, LAST_OF_STRETCH] = max(stretches[found, LAST_OF_STRETCH], rows[fields.LAST_OFFSET, row])
            stretches[found, BATCHES] += 1
            stretches[found, RECORDS_OF_STRETCH] += rows[fields.RECORD_COUNT, row]
            stretches[found, RECORD_BYTES] += rows[fields.NOTE, row] - 1
            if stretches[found, END] - stretches[found, START] >= stretch_bytes:
                found += 1
                is_open = False
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_any(ascending: cython.const[int64_t][::1], first: int64_t, last: int64_t) -> cython.bint:
    """Tell whether any of the numbers is between `first` and `last`, inclusive."""
    low: int64_t = 0
    high: int64_t = ascending.shape[0]
    middle: int64_t
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < first:
            low = middle + 1
        else:
            high = middle
    return low < ascending.shape[0] and ascending[low] <= last


def ranges_to_read(
    stretches: cython.const[int64_t][:, ::1],
    position: int64_t,
    map_end_offset: int64_t,
    latest: cython.const[int64_t][::1],
    retained: cython.const[int64_t][::1],
    ranges: int64_t[:, ::1],
    counts: int64_t[::1],
) -> int:
    """Write the ranges to read between `position` and the end of the last stretch to `ranges`; return their number.

    There is at most one range more than stretches; the last range ends with the last stretch, and may be empty. Skipped stretches
    are added to `counts`. `latest` (offsets of last records) and `retained` (last offsets of batches that must stay) ascend.
    """
    index: int64_t
    found: int64_t = 0
    with cython.nogil:
        ranges[0, BATCHES_BEFORE] = 0
        ranges[0, RANGE_START] = position
        for index in range(stretches.shape[0]):
            if (
                stretches[index, LAST_OF_STRETCH] > map_end_offset
                or has_any(latest, stretches[index, FIRST_OFFSET], stretches[index, LAST_OF_STRETCH])
                or has_any(retained, stretches[index, FIRST_OFFSET], stretches[index, LAST_OF_STRETCH])
            ):
                continue
            if stretches[index, START] > ranges[found, RANGE_START]:
                ranges[found, RANGE_END] = stretches[index, START]
                found += 1
                ranges[found, BATCHES_BEFORE] = 0
            ranges[found, RANGE_START] = stretches[index, END]
            ranges[found, BATCHES_BEFORE] += stretches[index, BATCHES]
            counts[fates.MESSAGES_READ] += stretches[index, RECORDS_OF_STRETCH]
            counts[fates.REMOVED + fates.FATE_SUPERSEDED] += stretches[index, RECORDS_OF_STRETCH]
            counts[fates.REMOVED_BYTES + fates.FATE_SUPERSEDED] += stretches[index, RECORD_BYTES]
        ranges[found, RANGE_END] = stretches[stretches.shape[0] - 1, END]
    return found + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_note(rows: cython.const[int64_t][:, ::1], row: int64_t, least_offset: int64_t) -> cython.bint:
    """Tell whether a row has a note."""
    return (
        rows[fields.MAGIC, row] == 2
        and rows[fields.ATTRIBUTES, row] & fields.CONTROL == 0
        and rows[fields.BASE_OFFSET, row] >= least_offset
    )


def take_notes(
    rows: cython.const[int64_t][:, ::1], count: int64_t, least_offset: int64_t, notes: uint32_t[::1]
) -> int64_t:
    """Write the notes of the first `count` rows to `notes`, as many as fit; return the number of rows that have a note."""
    found: int64_t = 0
    row: int64_t
    with cython.nogil:
        for row in range(count):
            if has_note(rows, row, least_offset):
                if found < notes.shape[0]:
                    notes[found] = cython.cast(uint32_t, rows[fields.NOTE, row])
                found += 1
    return found


def give_notes(
    rows: int64_t[:, ::1], first: int64_t, end: int64_t, least_offset: int64_t, notes: cython.const[uint32_t][::1]
) -> int64_t:
    """Set the NOTE of each row that has one to the next of `notes`, or to 0 after the last; return the number of these rows."""
    found: int64_t = 0
    row: int64_t
    with cython.nogil:
        for row in range(first, end):
            if has_note(rows, row, least_offset):
                rows[fields.NOTE, row] = notes[found] if found < notes.shape[0] else 0
                found += 1
    return found
