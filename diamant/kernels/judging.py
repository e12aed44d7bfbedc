"""Determines the fate of each batch of a chunk, and of each record in it.

    decide     batches whose records need not be read: all are removed, all are kept, or their transaction was aborted
    judge      the records of other batches: positions of the kept records, and fields of the batch's new header

The rules are the same as in `cleaner/rules/record_fate.py`; tests compare the two. There are two methods to determine whether a
data record is the last of its key. In the clean section, *probing* looks up the key in the table of keys; most keys of that
section are not in the table. In the dirty range, *membership* looks up the offset in the sorted offsets of last records, which is
possible because all records of that range were mapped.
"""

import cython
from cython.cimports.diamant.kernels.constants import fates, fields, steps
from cython.cimports.diamant.kernels.constants.rules import (
    FROZEN_ABOVE,
    HEADER_END,
    HELD_ABOVE,
    HELD_SINCE_MS,
    IS_KAFKA,
    IS_PROBING,
    LOG_START_OFFSET,
    MAP_END_OFFSET,
    NEW_HORIZON_MS,
    NO_HORIZON,
    NOW_MS,
)
from cython.cimports.diamant.kernels.judgement import Judgement
from cython.cimports.diamant.kernels.processor import hash128, prefetch, siphash128
from cython.cimports.diamant.kernels.records import (
    Record,
    from_zigzag,
    input_bytes,
    read_record,
    to_zigzag,
    varint_size,
    wrapping_difference,
    wrapping_sum,
)
from cython.cimports.diamant.kernels.table import find, slot_of
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memset

KeyTable = cython.struct(words=cython.pointer(cython.const[uint64_t]), slots=int64_t, k0=uint64_t, k1=uint64_t)
"""The table of keys, with 0 slots if it is not used, and the key of its hash function."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def place_of(ascending: cython.pointer(cython.const[int64_t]), count: int64_t, number: int64_t) -> int64_t:
    """Return the index of the first of `count` numbers that is not less than `number`."""
    low: int64_t = 0
    high: int64_t = count
    middle: int64_t
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def last_data_offset(producers: cython.const[int64_t][::1], producer_id: int64_t) -> int64_t:
    """Return the last data offset of an active producer, -1 for others; `producers` holds ascending ids, then offsets."""
    place: int64_t
    count: int64_t = producers.shape[0] >> 1
    if count > 0:
        place = place_of(cython.address(producers[0]), count, producer_id)
        if place < count and producers[place] == producer_id:
            return producers[count + place]
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decide_rows(
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    rules: cython.const[int64_t][::1],
    producers: cython.const[int64_t][::1],
    latest: cython.const[int64_t][::1],
    at: int64_t,
    counts: int64_t[::1],
) -> int64_t:
    """Implement `decide`."""
    row: int64_t
    base_offset: int64_t
    last_offset: int64_t
    record_count: int64_t
    fate: int64_t
    emptied: int64_t
    kept_from: int64_t
    is_retained: cython.bint
    for row in range(first, end):
        if rows[fields.STEP, row] != steps.UNDECIDED:
            continue
        base_offset = rows[fields.BASE_OFFSET, row]
        last_offset = rows[fields.LAST_OFFSET, row]
        record_count = rows[fields.RECORD_COUNT, row]
        fate = rows[fields.DROPS_ALL, row]
        if last_offset < rules[LOG_START_OFFSET]:
            fate = fates.FATE_BELOW_LOG_START
        is_retained = last_offset == rules[HEADER_END] - 1
        if rows[fields.PRODUCER_ID, row] >= 0 and last_offset >= 0 and not is_retained:
            is_retained = last_data_offset(producers, rows[fields.PRODUCER_ID, row]) == last_offset
        rows[fields.RETAINED, row] = is_retained
        emptied = steps.HEADER_ONLY if is_retained else steps.DROP
        if fate != fates.KEEP:
            rows[fields.STEP, row] = emptied
            if is_retained:
                counts[fates.MESSAGES_READ] += record_count
            counts[fates.REMOVED + fate] += record_count
            if record_count != 0:
                counts[fates.REMOVED_BYTES + fate] += rows[fields.SIZE, row] - fields.HEADER_BYTES
            continue
        counts[fates.MESSAGES_READ] += record_count
        rows[fields.STEP, row] = steps.JUDGE
        if (
            rules[IS_PROBING] != 0
            or rows[fields.NOTE, row] == 0
            or record_count == 0
            or last_offset > rules[MAP_END_OFFSET]
            or base_offset < rules[LOG_START_OFFSET]
            or rows[fields.ATTRIBUTES, row] & fields.LOG_APPEND_TIME != 0
        ):
            continue
        while at < latest.shape[0] and latest[at] < base_offset:
            at += 1
        kept_from = at
        while at < latest.shape[0] and latest[at] <= last_offset:
            at += 1
        if at == kept_from:
            rows[fields.STEP, row] = emptied
            counts[fates.REMOVED + fates.FATE_SUPERSEDED] += record_count
            counts[fates.REMOVED_BYTES + fates.FATE_SUPERSEDED] += rows[fields.NOTE, row] - 1
        elif at - kept_from == record_count:
            rows[fields.STEP, row] = steps.COPY
            rows[fields.KEPT, row] = record_count
            counts[fates.MESSAGES_WRITTEN] += record_count
    return at


def decide(
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    rules: cython.const[int64_t][::1],
    producers: cython.const[int64_t][::1],
    latest: cython.const[int64_t][::1],
    at: int64_t,
    counts: int64_t[::1],
) -> int:
    """Set the step of each UNDECIDED row; the step is JUDGE if its records must be read.

    `at`: an index into `latest`, not beyond the first row's offsets. Returns the index for the next call.
    """
    with cython.nogil:
        at = decide_rows(rows, first, end, rules, producers, latest, at, counts)
    return at


def room_to_judge(rows: cython.const[int64_t][:, ::1], first: int64_t, end: int64_t) -> int:
    """Return the maximum number of records in the rows with step JUDGE, even if their headers declare more."""
    room: int64_t = 0
    row: int64_t
    with cython.nogil:
        for row in range(first, end):
            if rows[fields.STEP, row] == steps.JUDGE:
                room += max(
                    min(
                        rows[fields.RECORD_COUNT, row],
                        (rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row]) // fields.MIN_RECORD_BYTES,
                    ),
                    0,
                )
    return room


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def encoded_size(rest_size: int64_t, delta: int64_t) -> int64_t:
    """Return the size of an encoded record with this timestamp delta and `rest_size` bytes from the offset delta on."""
    body: int64_t = 1 + varint_size(to_zigzag(delta)) + rest_size
    return body + varint_size(cython.cast(uint64_t, body) << 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_ahead(
    payload: input_bytes,
    position: int64_t,
    end: int64_t,
    count: int64_t,
    keys: KeyTable,
    records: cython.pointer(Record),
    hashes: cython.pointer(hash128),
) -> cython.void:
    """Read the next `count` records and, if there is a table, hash their keys and prefetch their slots.

    Without prefetching, most of a lookup's time would be spent waiting for memory.
    """
    index: int64_t
    for index in range(count):
        records[index] = read_record(payload, position, end)
        if not records[index].is_valid:
            return
        if keys.slots > 0 and records[index].key_size >= 0:
            hashes[index] = siphash128(keys.k0, keys.k1, payload + records[index].key_start, records[index].key_size)
            prefetch(keys.words + 3 * slot_of(hashes[index].first, keys.slots))
        position = records[index].end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def fate_of(
    record: cython.pointer(Record),
    hashed: cython.pointer(hash128),
    offset: int64_t,
    is_expired: cython.bint,
    rules: cython.const[int64_t][::1],
    keys: KeyTable,
    latest: cython.const[int64_t][::1],
    at: cython.pointer(int64_t),
) -> int64_t:
    """Return the fate of a record. `is_expired`: the tombstones of its batch have expired. `at`: index into `latest`."""
    is_superseded: cython.bint
    if offset < rules[LOG_START_OFFSET]:
        return fates.FATE_BELOW_LOG_START
    if offset > rules[MAP_END_OFFSET]:
        return fates.KEEP
    if record.key_size < 0:
        return fates.FATE_KEYLESS
    if rules[IS_PROBING] != 0:
        is_superseded = offset < find(keys.words, keys.slots, hashed.first, hashed.second)
    else:
        while at[0] < latest.shape[0] and latest[at[0]] < offset:
            at[0] += 1
        is_superseded = at[0] == latest.shape[0] or latest[at[0]] != offset
    if is_superseded:
        return fates.FATE_SUPERSEDED
    return fates.FATE_TOMBSTONE if is_expired and not record.has_value else fates.KEEP


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def are_tombstones_expired(rows: int64_t[:, ::1], row: int64_t, rules: cython.const[int64_t][::1]) -> cython.bint:
    """Tell whether a row's tombstones are removed because its delete horizon has passed and nothing holds them."""
    base_offset: int64_t = rows[fields.BASE_OFFSET, row]
    horizon_ms: int64_t = rows[fields.BASE_TIMESTAMP, row]
    return (
        rows[fields.ATTRIBUTES, row] & fields.DELETE_HORIZON != 0
        and rules[NOW_MS] >= horizon_ms
        and base_offset <= rules[FROZEN_ABOVE]
        and (base_offset <= rules[HELD_ABOVE] or horizon_ms <= rules[HELD_SINCE_MS])
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def judge_records(
    payload: input_bytes,
    rows: int64_t[:, ::1],
    row: int64_t,
    rules: cython.const[int64_t][::1],
    keys: KeyTable,
    latest: cython.const[int64_t][::1],
    at: cython.pointer(int64_t),
    kept_records: int32_t[::1],
    kept_start: int64_t,
    judged: cython.pointer(Judgement),
) -> cython.int:
    """Determine the fates of a row's records; return the fault."""
    index: int64_t
    records = cython.declare(Record[16])
    hashes = cython.declare(hash128[16])
    place: int64_t
    ahead: int64_t
    record: cython.pointer(Record)
    offset: int64_t
    fate: int64_t
    timestamp: int64_t
    size: int64_t
    position: int64_t = rows[fields.PAYLOAD_START, row]
    base_offset: int64_t = rows[fields.BASE_OFFSET, row]
    previous: int64_t = wrapping_sum(base_offset, -1)
    base_timestamp: int64_t = rows[fields.BASE_TIMESTAMP, row]
    batch_timestamp: int64_t = rows[fields.MAX_TIMESTAMP, row]
    is_log_append_time: cython.bint = rows[fields.ATTRIBUTES, row] & fields.LOG_APPEND_TIME != 0
    is_expired: cython.bint = are_tombstones_expired(rows, row, rules)
    for index in range(rows[fields.RECORD_COUNT, row]):
        place = index & 15
        if place == 0:
            ahead = min(rows[fields.RECORD_COUNT, row] - index, 16)
            read_ahead(payload, position, rows[fields.PAYLOAD_END, row], ahead, keys, records, hashes)
        record = cython.address(records[place])
        if not record.is_valid:
            return fields.CORRUPT
        offset = wrapping_sum(base_offset, from_zigzag(record.delta))
        if offset <= previous or offset > rows[fields.LAST_OFFSET, row]:
            judged.is_disordered = True
            return fields.NO_FAULT
        previous = offset
        judged.is_odd |= record.is_odd
        fate = fate_of(record, cython.address(hashes[place]), offset, is_expired, rules, keys, latest, at)
        if fate == fates.KEEP:
            kept_records[kept_start + judged.kept] = cython.cast(int32_t, position - rows[fields.PAYLOAD_START, row])
            timestamp = (
                batch_timestamp if is_log_append_time else wrapping_sum(base_timestamp, from_zigzag(record.timestamp))
            )
            if judged.kept == 0:
                judged.first_timestamp = timestamp
            if judged.kept == 0 or timestamp > judged.max_timestamp:
                judged.max_timestamp = timestamp
            if not record.has_value:
                judged.last_tombstone_offset = offset
            judged.kept += 1
        else:
            size = record.end - position
            if is_log_append_time:
                # Count the size that the record has with the batch's timestamp in place of its own.
                size = encoded_size(record.end - record.rest, wrapping_difference(batch_timestamp, base_timestamp))
            judged.removed[fate] += 1
            judged.removed_bytes[fate] += size
        position = record.end
    return (
        fields.CORRUPT
        if rows[fields.RECORD_COUNT, row] > 0 and position != rows[fields.PAYLOAD_END, row]
        else fields.NO_FAULT
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def conclude(
    rows: int64_t[:, ::1],
    row: int64_t,
    rules: cython.const[int64_t][::1],
    kept_start: int64_t,
    judged: cython.pointer(Judgement),
    counts: int64_t[::1],
) -> cython.void:
    """Set a row's step and the fields of its new header after its records have been judged."""
    fate: int64_t
    record_count: int64_t = rows[fields.RECORD_COUNT, row]
    has_horizon: cython.bint = rows[fields.ATTRIBUTES, row] & fields.DELETE_HORIZON != 0
    sets_horizon: cython.bint = (
        not has_horizon
        and judged.last_tombstone_offset >= 0
        and (rules[IS_KAFKA] != 0 or judged.last_tombstone_offset <= rules[MAP_END_OFFSET])
    )
    if judged.is_disordered or (judged.is_odd and judged.kept > 0 and (judged.kept < record_count or sets_horizon)):
        rows[fields.STEP, row] = steps.PLAIN_ENGINE
        counts[fates.MESSAGES_READ] -= record_count
        return
    for fate in range(fates.FATES):
        counts[fates.REMOVED + fate] += judged.removed[fate]
        counts[fates.REMOVED_BYTES + fate] += judged.removed_bytes[fate]
    counts[fates.INVALID_READ] += judged.removed[fates.FATE_KEYLESS]
    counts[fates.MESSAGES_WRITTEN] += judged.kept
    if judged.kept == 0:
        rows[fields.STEP, row] = steps.HEADER_ONLY if rows[fields.RETAINED, row] != 0 else steps.DROP
    elif judged.kept == record_count and not sets_horizon:
        rows[fields.STEP, row] = steps.COPY
    else:
        rows[fields.STEP, row] = steps.REBUILD
    rows[fields.KEPT, row] = judged.kept
    rows[fields.KEPT_START, row] = kept_start
    sets_horizon = sets_horizon and rules[NEW_HORIZON_MS] != NO_HORIZON
    rows[fields.HORIZON, row] = has_horizon or sets_horizon
    if has_horizon:
        rows[fields.NEW_BASE_TIMESTAMP, row] = rows[fields.BASE_TIMESTAMP, row]
    elif sets_horizon:
        rows[fields.NEW_BASE_TIMESTAMP, row] = rules[NEW_HORIZON_MS]
    else:
        rows[fields.NEW_BASE_TIMESTAMP, row] = judged.first_timestamp
    rows[fields.NEW_MAX_TIMESTAMP, row] = (
        rows[fields.MAX_TIMESTAMP, row]
        if rows[fields.ATTRIBUTES, row] & fields.LOG_APPEND_TIME != 0
        else judged.max_timestamp
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def judge_rows(
    data: input_bytes,
    unpacked: input_bytes,
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    rules: cython.const[int64_t][::1],
    keys: KeyTable,
    latest: cython.const[int64_t][::1],
    kept_records: int32_t[::1],
    counts: int64_t[::1],
) -> tuple[cython.int, int64_t]:
    """Implement `judge`."""
    row: int64_t
    fault: cython.int
    judged = cython.declare(Judgement)
    kept_end: int64_t = 0
    at: int64_t = 0
    at_row: int64_t
    if rules[IS_PROBING] == 0 and first < end and latest.shape[0] > 0:
        at = place_of(cython.address(latest[0]), latest.shape[0], rows[fields.BASE_OFFSET, first])
    for row in range(first, end):
        if rows[fields.STEP, row] != steps.JUDGE:
            continue
        if rows[fields.RECORD_COUNT, row] < 0:
            return fields.CORRUPT, row
        memset(cython.address(judged), 0, cython.sizeof(Judgement))
        judged.first_timestamp = judged.max_timestamp = judged.last_tombstone_offset = -1
        at_row = at
        fault = judge_records(
            unpacked if rows[fields.IS_UNPACKED, row] != 0 else data,
            rows,
            row,
            rules,
            keys,
            latest,
            cython.address(at),
            kept_records,
            kept_end,
            cython.address(judged),
        )
        if fault != fields.NO_FAULT:
            return fault, row
        if judged.is_disordered:
            at = at_row
        conclude(rows, row, rules, kept_end, cython.address(judged), counts)
        if rows[fields.STEP, row] == steps.REBUILD:
            kept_end += judged.kept
    return fields.NO_FAULT, end


def judge(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    first: int64_t,
    end: int64_t,
    rules: cython.const[int64_t][::1],
    table: cython.const[uint64_t][:, ::1],
    k0: uint64_t,
    k1: uint64_t,
    latest: cython.const[int64_t][::1],
    kept_records: int32_t[::1],
    counts: int64_t[::1],
) -> tuple:
    """Determine the fates of the records in rows with step JUDGE, and set the step to the batch's outcome.

    A batch gets step PLAIN_ENGINE, and is not counted, if it must be rebuilt and has odd records, or if its record offsets do not
    ascend or lie outside its range. For other batches that must be rebuilt, the positions of the kept records in the payload are
    written to `kept_records`, which must have room for all records. Returns (fault, row).
    """
    source: input_bytes = cython.cast(input_bytes, cython.NULL)
    unpacked_source: input_bytes = source
    keys = cython.declare(KeyTable)
    outcome: tuple[cython.int, int64_t]
    if data.shape[0] > 0:
        source = cython.address(data[0])
    if unpacked.shape[0] > 0:
        unpacked_source = cython.address(unpacked[0])
    keys.words = cython.address(table[0, 0])
    keys.slots = table.shape[0] if rules[IS_PROBING] != 0 else 0
    keys.k0 = k0
    keys.k1 = k1
    with cython.nogil:
        outcome = judge_rows(source, unpacked_source, rows, first, end, rules, keys, latest, kept_records, counts)
    return outcome
