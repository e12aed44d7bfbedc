"""Compiled loops of the rewrite: what becomes of each batch of a chunk and each record in it, and the bytes that are written.

They go over a table of rows (`records.py`) in steps, between which Python decompresses, compresses, and hands batches
that are not plain data to the plain engine:

    decide     batches that need no look at their records: nothing of them stays, or all, or their transaction aborted
    judge      the records of the others: where those are that stay, and what the batch's new header says
    encode     the records that stay of a compressed batch, to be compressed
    assemble   the output's bytes, batch after batch

The rules are those of `rules/record_fate.py`, written out in `decide` and `judge`; the tests compare them. Whether a data
record is the last of its key is asked of the table of keys (*probing*: the clean section, where most keys are not in
it), or of the sorted offsets of last records (*membership*: the dirty range, where each record was mapped).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled, inlined
from diamant.cleaner.kernels.fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL,
    CORRUPT,
    DELETE_HORIZON,
    DROPS_ALL,
    EXTRA_END,
    EXTRA_START,
    HEADER_BYTES,
    HORIZON,
    IS_UNPACKED,
    KEPT,
    KEPT_START,
    LAST_OFFSET,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    NEW_BASE_TIMESTAMP,
    NEW_MAX_TIMESTAMP,
    NO_FAULT,
    NOTE,
    OUT_OF_ORDER,
    PAYLOAD_END,
    PAYLOAD_START,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    RETAINED,
    SIZE,
    STEP,
    TRANSACTIONAL,
)
from diamant.cleaner.kernels.native import address_of, copy_bytes, crc32c_at, store_uint8
from diamant.cleaner.kernels.offset_map import find, siphash128
from diamant.cleaner.kernels.records import (
    from_zigzag,
    read_integer,
    read_record,
    to_zigzag,
    varint_size,
    write_big_endian,
    write_varint,
)
from diamant.cleaner.rules import record_fate

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Steps of a row. The first four are what becomes of the batch.
DROP = record_fate.DROP
COPY = record_fate.COPY
REBUILD = record_fate.REBUILD
HEADER_ONLY = record_fate.HEADER_ONLY
UNDECIDED = 4
JUDGE = 5
"""Its records must be looked at."""
EXTRA = 6
"""Its bytes are in the extra buffer."""
PLAIN_ENGINE = 7
"""For the plain engine."""

KEEP = record_fate.KEEP
FATE_SUPERSEDED = record_fate.FATE_SUPERSEDED
FATE_TOMBSTONE = record_fate.FATE_TOMBSTONE
FATE_KEYLESS = record_fate.FATE_KEYLESS
FATE_BELOW_LOG_START = record_fate.FATE_BELOW_LOG_START
FATES = len(record_fate.FATE_REASONS)

# Fields of the rules of a round, int64[RULES].
IS_KAFKA = 0
MAP_END_OFFSET = 1
LOG_START_OFFSET = 2
"""-2**63 in mode kafka."""
ROUND_END_OFFSET = 3
NOW_MS = 4
NEW_HORIZON_MS = 5
IS_PROBING = 6
FROZEN_ABOVE = 7
"""Tombstones of batches that begin above do not expire (`CleanPlan.is_frozen`); 2**63 - 1 where all may."""
RULES = 8

# Counts, int64[COUNTS]: first the records removed by fate, then their bytes.
REMOVED = 0
REMOVED_BYTES = FATES
MESSAGES_READ = 2 * FATES
INVALID_READ = 2 * FATES + 1
MESSAGES_WRITTEN = 2 * FATES + 2
COUNTS = 2 * FATES + 3

_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
MAX_GROWTH_BYTES = 10
"""Bytes that a record can grow by when its timestamp delta is rewritten."""


@compiled
def last_data_offset(producers: NDArray[np.int64], producer_id: int) -> int:
    """Return the last data offset of an active producer from int64[2, n] by ascending id; -1 without one."""
    low = 0
    high = producers.shape[1]
    while low < high:
        middle = (low + high) >> 1
        if producers[0, middle] < producer_id:
            low = middle + 1
        else:
            high = middle
    if low < producers.shape[1] and producers[0, low] == producer_id:
        return producers[1, low]  # type: ignore[no-any-return]
    return -1


@compiled
def decide(
    rows: NDArray[np.int64],
    first: int,
    end: int,
    rules: NDArray[np.int64],
    producers: NDArray[np.int64],
    latest: NDArray[np.int64],
    at: int,
    counts: NDArray[np.int64],
) -> int:
    """Set the step of each row that is UNDECIDED, to JUDGE if its records must be looked at.

    `at` is a place in `latest` not after the first row's offsets; the place for the next call is returned.
    """
    for row in range(first, end):
        if rows[STEP, row] != UNDECIDED:
            continue
        base_offset = rows[BASE_OFFSET, row]
        last_offset = rows[LAST_OFFSET, row]
        record_count = rows[RECORD_COUNT, row]
        fate = rows[DROPS_ALL, row]
        if last_offset < rules[LOG_START_OFFSET]:
            fate = FATE_BELOW_LOG_START
        is_retained = last_offset + 1 == rules[ROUND_END_OFFSET]
        producer_id = rows[PRODUCER_ID, row]
        if producer_id >= 0 and not is_retained:
            protected = last_data_offset(producers, producer_id)
            is_retained = protected >= 0 and protected == last_offset
        rows[RETAINED, row] = 1 if is_retained else 0
        emptied = HEADER_ONLY if is_retained else DROP
        if fate != KEEP:
            rows[STEP, row] = emptied
            if is_retained:
                counts[MESSAGES_READ] += record_count
            counts[REMOVED + fate] += record_count
            if record_count != 0:
                counts[REMOVED_BYTES + fate] += rows[SIZE, row] - HEADER_BYTES
            continue
        counts[MESSAGES_READ] += record_count
        rows[STEP, row] = JUDGE
        if (
            rules[IS_PROBING] != 0
            or rows[NOTE, row] == 0
            or record_count == 0
            or last_offset > rules[MAP_END_OFFSET]
            or base_offset < rules[LOG_START_OFFSET]
            or rows[ATTRIBUTES, row] & LOG_APPEND_TIME != 0
        ):
            continue
        while at < latest.shape[0] and latest[at] < base_offset:
            at += 1
        kept_from = at
        while at < latest.shape[0] and latest[at] <= last_offset:
            at += 1
        if at == kept_from:
            rows[STEP, row] = emptied
            counts[REMOVED + FATE_SUPERSEDED] += record_count
            counts[REMOVED_BYTES + FATE_SUPERSEDED] += rows[NOTE, row] - 1
        elif at - kept_from == record_count:
            rows[STEP, row] = COPY
            rows[KEPT, row] = record_count
            counts[MESSAGES_WRITTEN] += record_count
    return at


@compiled
def judge(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end_row: int,
    rules: NDArray[np.int64],
    table: NDArray[np.uint64],
    k0: np.uint64,
    k1: np.uint64,
    latest: NDArray[np.int64],
    kept_records: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> tuple[int, int]:
    """Judge the records of the rows whose step is JUDGE, and set the step to what becomes of the batch.

    A batch with odd records that must be rebuilt becomes PLAIN_ENGINE, uncounted. For others that must be, `kept_records`,
    with room for every record, tells where in the payload the records begin that stay. Returns (fault, row).
    """
    kept_end = 0
    at = 0
    if rules[IS_PROBING] == 0 and first < end_row:
        at = np.searchsorted(latest, rows[BASE_OFFSET, first])
    map_end_offset = rules[MAP_END_OFFSET]
    log_start_offset = rules[LOG_START_OFFSET]
    is_probing = rules[IS_PROBING] != 0
    removed = np.zeros(2 * FATES, np.int64)
    for row in range(first, end_row):
        if rows[STEP, row] != JUDGE:
            continue
        record_count = rows[RECORD_COUNT, row]
        if record_count < 0:
            return CORRUPT, row
        payload = address_of(unpacked) if rows[IS_UNPACKED, row] != 0 else address_of(data)
        position = rows[PAYLOAD_START, row]
        end = rows[PAYLOAD_END, row]
        base_offset = rows[BASE_OFFSET, row]
        last_offset = rows[LAST_OFFSET, row]
        base_timestamp = rows[BASE_TIMESTAMP, row]
        attributes = rows[ATTRIBUTES, row]
        has_horizon = attributes & DELETE_HORIZON != 0
        is_log_append_time = attributes & LOG_APPEND_TIME != 0
        is_expired = has_horizon and rules[NOW_MS] >= base_timestamp and base_offset <= rules[FROZEN_ABOVE]
        removed[:] = 0
        kept = 0
        first_timestamp = np.int64(-1)
        max_timestamp = np.int64(-1)
        last_tombstone_offset = np.int64(-1)
        previous = base_offset - 1
        is_batch_odd = False
        kept_start = kept_end
        payload_start = position
        for _ in range(record_count):
            start = position
            is_valid, is_odd, raw_timestamp, raw, rest, key_start, key_size, has_value, position = read_record(
                payload, position, end
            )
            if not is_valid:
                return CORRUPT, row
            offset = base_offset + from_zigzag(raw)
            if offset <= previous or offset > last_offset:
                return OUT_OF_ORDER, row
            previous = offset
            is_batch_odd |= is_odd
            if offset < log_start_offset:
                fate = FATE_BELOW_LOG_START
            elif offset > map_end_offset:
                fate = KEEP
            elif key_size < 0:
                fate = FATE_KEYLESS
            else:
                if is_probing:
                    hash_first, hash_second = siphash128(k0, k1, payload, key_start, key_start + key_size)
                    is_superseded = offset < find(address_of(table), table.shape[0], hash_first, hash_second)
                else:
                    while at < latest.shape[0] and latest[at] < offset:
                        at += 1
                    is_superseded = at == latest.shape[0] or latest[at] != offset
                if is_superseded:
                    fate = FATE_SUPERSEDED
                elif is_expired and not has_value:
                    fate = FATE_TOMBSTONE
                else:
                    fate = KEEP
            if fate == KEEP:
                kept_records[kept_start + kept] = start - payload_start
                timestamp = (
                    rows[MAX_TIMESTAMP, row] if is_log_append_time else base_timestamp + from_zigzag(raw_timestamp)
                )
                if kept == 0:
                    first_timestamp = timestamp
                    max_timestamp = timestamp
                elif timestamp > max_timestamp:
                    max_timestamp = timestamp
                if not has_value:
                    last_tombstone_offset = offset
                kept += 1
            else:
                size = position - start
                if is_log_append_time:
                    # Counted with the batch's timestamp for its own.
                    size = encoded_size(position - rest, rows[MAX_TIMESTAMP, row] - base_timestamp)
                removed[REMOVED + fate] += 1
                removed[REMOVED_BYTES + fate] += size
        if record_count > 0 and position != end:
            return CORRUPT, row
        sets_horizon = (
            not has_horizon
            and last_tombstone_offset >= 0
            and (rules[IS_KAFKA] != 0 or last_tombstone_offset <= map_end_offset)
        )
        if is_batch_odd and kept > 0 and (kept < record_count or sets_horizon):
            rows[STEP, row] = PLAIN_ENGINE
            counts[MESSAGES_READ] -= record_count
            continue
        for fate in range(FATES):
            counts[REMOVED + fate] += removed[REMOVED + fate]
            counts[REMOVED_BYTES + fate] += removed[REMOVED_BYTES + fate]
        counts[INVALID_READ] += removed[REMOVED + FATE_KEYLESS]
        counts[MESSAGES_WRITTEN] += kept
        if kept == 0:
            rows[STEP, row] = HEADER_ONLY if rows[RETAINED, row] != 0 else DROP
        elif kept == record_count and not sets_horizon:
            rows[STEP, row] = COPY
        else:
            rows[STEP, row] = REBUILD
            kept_end += kept
        rows[KEPT, row] = kept
        rows[KEPT_START, row] = kept_start
        rows[HORIZON, row] = 1 if has_horizon or sets_horizon else 0
        if has_horizon:
            rows[NEW_BASE_TIMESTAMP, row] = base_timestamp
        elif sets_horizon:
            rows[NEW_BASE_TIMESTAMP, row] = rules[NEW_HORIZON_MS]
        else:
            rows[NEW_BASE_TIMESTAMP, row] = first_timestamp
        rows[NEW_MAX_TIMESTAMP, row] = rows[MAX_TIMESTAMP, row] if is_log_append_time else max_timestamp
    return NO_FAULT, end_row


@compiled
def encoded_size(rest_size: int, delta: int) -> int:
    """Return the size of a record with this timestamp delta and so many bytes from its offset delta on."""
    body = 1 + varint_size(to_zigzag(delta)) + rest_size
    return body + varint_size(np.uint64(body) << np.uint64(1))


@inlined
def encode_at(
    payload: int, rows: NDArray[np.int64], row: int, kept_records: NDArray[np.int32], out: int, at: int
) -> int:
    """Write the records of a row that stay, from one address to another; return the position after them.

    They were judged before, so that their bytes are known to be sound; `out` has room for `room_for_records`.
    """
    payload_start = rows[PAYLOAD_START, row]
    end = rows[PAYLOAD_END, row]
    is_log_append_time = rows[ATTRIBUTES, row] & LOG_APPEND_TIME != 0
    # New delta = timestamp - new base = old base + old delta - new base.
    shift = rows[BASE_TIMESTAMP, row] - rows[NEW_BASE_TIMESTAMP, row]
    fixed_delta = rows[MAX_TIMESTAMP, row] - rows[NEW_BASE_TIMESTAMP, row]
    first = rows[KEPT_START, row]
    for index in range(first, first + rows[KEPT, row]):
        raw_size, position, _ = read_integer(payload, payload_start + kept_records[index], end, 5)
        raw_timestamp, rest, _ = read_integer(payload, position + 1, end, 10)
        raw = to_zigzag(fixed_delta if is_log_append_time else from_zigzag(raw_timestamp) + shift)
        size = position + (raw_size >> 1) - rest
        at = write_varint(out, at, np.uint64(1 + varint_size(raw) + size) << np.uint64(1))
        store_uint8(out, at, 0)  # attributes
        at = write_varint(out, at + 1, raw)
        copy_bytes(out, at, payload, rest, size)
        at += size
    return at


@inlined
def room_for_records(rows: NDArray[np.int64], row: int) -> int:
    """Return how many bytes `encode_at` writes at most."""
    return rows[PAYLOAD_END, row] - rows[PAYLOAD_START, row] + MAX_GROWTH_BYTES * rows[KEPT, row]  # type: ignore[no-any-return]


@compiled
def encode_records(
    payload: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end: int,
    kept_records: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> int:
    """Write the records that stay of the compressed batches that are rebuilt, row after row; return their size.

    Where those of a row are is left in EXTRA_START and EXTRA_END. Without enough room in `out`, writes nothing and returns
    how much is needed, less than 0.
    """
    room = 0
    for row in range(first, end):
        if rows[STEP, row] == REBUILD and rows[ATTRIBUTES, row] & CODEC_MASK != 0:
            room += room_for_records(rows, row)
    if room > out.shape[0]:
        return -room
    source = address_of(payload)
    target = address_of(out)
    at = 0
    for row in range(first, end):
        if rows[STEP, row] == REBUILD and rows[ATTRIBUTES, row] & CODEC_MASK != 0:
            rows[EXTRA_START, row] = at
            at = encode_at(source, rows, row, kept_records, target, at)
            rows[EXTRA_END, row] = at
    return at


@compiled
def room_for_output(rows: NDArray[np.int64], first: int, end: int) -> int:
    """Return how many bytes `assemble` writes at most."""
    room = 0
    for row in range(first, end):
        step = rows[STEP, row]
        if step == COPY:
            room += rows[SIZE, row]
        elif step == HEADER_ONLY:
            room += HEADER_BYTES
        elif step == EXTRA:
            room += rows[EXTRA_END, row] - rows[EXTRA_START, row]
        elif step == REBUILD:
            room += HEADER_BYTES
            if rows[ATTRIBUTES, row] & CODEC_MASK != 0:
                room += rows[EXTRA_END, row] - rows[EXTRA_START, row]
            else:
                room += room_for_records(rows, row)
    return room


@compiled
def write_header(data: int, rows: NDArray[np.int64], row: int, out: int, start: int, end: int) -> None:
    """Write the header of a rebuilt batch, whose records lie in `out` before `end`, or of an emptied one, at `start`."""
    is_empty = rows[STEP, row] == HEADER_ONLY
    copy_bytes(out, start, data, rows[POSITION, row], HEADER_BYTES)
    attributes = rows[ATTRIBUTES, row] & _KEPT_ATTRIBUTES
    base_timestamp = np.int64(-1)
    max_timestamp = rows[MAX_TIMESTAMP, row]
    count = np.int64(0)
    if not is_empty:
        attributes |= rows[ATTRIBUTES, row] & CODEC_MASK
        if rows[HORIZON, row] != 0:
            attributes |= DELETE_HORIZON
        base_timestamp = rows[NEW_BASE_TIMESTAMP, row]
        max_timestamp = rows[NEW_MAX_TIMESTAMP, row]
        count = rows[KEPT, row]
    write_big_endian(out, start + 8, end - start - LOG_OVERHEAD, 4)
    write_big_endian(out, start + 21, attributes, 2)
    write_big_endian(out, start + 27, base_timestamp, 8)
    write_big_endian(out, start + 35, max_timestamp, 8)
    write_big_endian(out, start + 57, count, 4)
    write_big_endian(out, start + 17, crc32c_at(out, start + 21, end), 4)


@compiled
def assemble(
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end_row: int,
    kept_records: NDArray[np.int32],
    extra: NDArray[np.uint8],
    out: NDArray[np.uint8],
    columns: NDArray[np.int64],
) -> tuple[int, int]:
    """Write the output of rows to `out`, which has room for `room_for_output`.

    `columns`, int64[3, rows], gets size, last offset and max timestamp of each batch. Returns (bytes, batches).
    """
    source = address_of(data)
    ready = address_of(extra)
    target = address_of(out)
    at = 0
    count = 0
    row = first
    while row < end_row:
        step = rows[STEP, row]
        start = at
        if step == COPY:
            run_start = rows[POSITION, row]
            run_end = run_start
            while row < end_row and rows[STEP, row] == COPY and rows[POSITION, row] == run_end:
                columns[0, count] = rows[SIZE, row]
                columns[1, count] = rows[LAST_OFFSET, row]
                columns[2, count] = rows[MAX_TIMESTAMP, row]
                run_end += rows[SIZE, row]
                count += 1
                row += 1
            copy_bytes(target, at, source, run_start, run_end - run_start)
            at += run_end - run_start
            continue
        if step == EXTRA:
            size = rows[EXTRA_END, row] - rows[EXTRA_START, row]
            copy_bytes(target, at, ready, rows[EXTRA_START, row], size)
            at += size
            columns[2, count] = rows[NEW_MAX_TIMESTAMP, row]
        elif step == HEADER_ONLY:
            at += HEADER_BYTES
            write_header(source, rows, row, target, start, at)
            columns[2, count] = rows[MAX_TIMESTAMP, row]
        elif step == REBUILD:
            at += HEADER_BYTES
            if rows[ATTRIBUTES, row] & CODEC_MASK != 0:
                size = rows[EXTRA_END, row] - rows[EXTRA_START, row]
                copy_bytes(target, at, ready, rows[EXTRA_START, row], size)
                at += size
            else:
                at = encode_at(source, rows, row, kept_records, target, at)
            write_header(source, rows, row, target, start, at)
            columns[2, count] = rows[NEW_MAX_TIMESTAMP, row]
        if at > start:
            columns[0, count] = at - start
            columns[1, count] = rows[LAST_OFFSET, row]
            count += 1
        row += 1
    return at, count


# What is known of an output segment, int64[OUTPUT_FIELDS].
OUTPUT_SIZE = 0
OUTPUT_BASE_OFFSET = 1
SINCE_ENTRY = 2
"""Bytes since the last index entry."""
GREATEST_TIMESTAMP = 3
OFFSET_OF_GREATEST = 4
INDEXED_TIMESTAMP = 5
INDEX_BYTES = 6
TIME_INDEX_BYTES = 7
INDEX_INTERVAL = 8
MAX_INDEX_BYTES = 9
MAX_TIME_INDEX_BYTES = 10
MAX_OUTPUT_SIZE = 11
IS_STRICT = 12
OUTPUT_FIELDS = 13

INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12


@compiled
def index_batches(
    columns: NDArray[np.int64],
    count: int,
    output: NDArray[np.int64],
    index: NDArray[np.uint8],
    time_index: NDArray[np.uint8],
) -> tuple[int, int, int]:
    """Make the index entries that are due for `count` batches, as `SegmentWriter` does for each.

    `columns` as `assemble` leaves them; there is room for an entry for each. Returns (batches done, bytes of index entries,
    of time index entries): it stops before a batch for which `SegmentWriter` raises.
    """
    index_at = 0
    time_index_at = 0
    index_address = address_of(index)
    time_index_address = address_of(time_index)
    for batch in range(count):
        size = columns[0, batch]
        position = output[OUTPUT_SIZE]
        relative = columns[1, batch] - output[OUTPUT_BASE_OFFSET]
        if position + size > output[MAX_OUTPUT_SIZE] or relative < 0 or relative > 2**31 - 1:
            return batch, index_at, time_index_at
        is_due = output[SINCE_ENTRY] > output[INDEX_INTERVAL]
        if is_due:
            is_full = (
                output[INDEX_BYTES] + INDEX_ENTRY_BYTES > output[MAX_INDEX_BYTES]
                or output[TIME_INDEX_BYTES] + TIME_INDEX_ENTRY_BYTES > output[MAX_TIME_INDEX_BYTES]
            )
            if is_full and output[IS_STRICT] != 0:
                return batch, index_at, time_index_at
            is_due = not is_full
        if columns[2, batch] > output[GREATEST_TIMESTAMP]:
            output[GREATEST_TIMESTAMP] = columns[2, batch]
            output[OFFSET_OF_GREATEST] = columns[1, batch]
        if is_due:
            write_big_endian(index_address, index_at, relative, 4)
            write_big_endian(index_address, index_at + 4, position, 4)
            index_at += INDEX_ENTRY_BYTES
            output[INDEX_BYTES] += INDEX_ENTRY_BYTES
            if output[GREATEST_TIMESTAMP] > output[INDEXED_TIMESTAMP]:
                write_big_endian(time_index_address, time_index_at, output[GREATEST_TIMESTAMP], 8)
                relative = output[OFFSET_OF_GREATEST] - output[OUTPUT_BASE_OFFSET]
                write_big_endian(time_index_address, time_index_at + 8, relative, 4)
                time_index_at += TIME_INDEX_ENTRY_BYTES
                output[TIME_INDEX_BYTES] += TIME_INDEX_ENTRY_BYTES
                output[INDEXED_TIMESTAMP] = output[GREATEST_TIMESTAMP]
            output[SINCE_ENTRY] = 0
        output[SINCE_ENTRY] += size
        output[OUTPUT_SIZE] = position + size
    return count, index_at, time_index_at
