"""The loops that build the offset map: hash keys, put hashes into a table, spill tuples to partitions.

A *tuple* is three words: the two halves of the key's hash, and the offset. The table (`table`) stores offset + 1. The second
half of the hash selects the partition that a key is spilled to.

The hash is SipHash-2-4 with a 128-bit result (Aumasson and Bernstein). Its key is random for each data directory, so a client
cannot construct two record keys that collide.
"""

import cython
from cython.cimports.diamant.kernels.constants import fields
from cython.cimports.diamant.kernels.constants.tuples import (
    ACCEPTED,
    DISORDERED,
    EMPTY,
    IS_PLAIN,
    LAST_SEEN,
    MAP,
    PLACE,
    RECORD,
    ROW,
)
from cython.cimports.diamant.kernels.processor import (
    begin_hashing,
    end_hashing,
    hash128,
    hash_key,
    key_hasher,
    prefetch,
    siphash128,
)
from cython.cimports.diamant.kernels.records import (
    Record,
    from_zigzag,
    input_bytes,
    read_record,
    start_of,
    wrapping_sum,
)
from cython.cimports.diamant.kernels.table import find, slot_of
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t

tuple_words = cython.typedef(cython.pointer(uint64_t))

_TUPLES_AHEAD = cython.declare(cython.int, 16)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hash_row(
    payload: input_bytes,
    rows: int64_t[:, ::1],
    row: int64_t,
    state: int64_t[::1],
    tuples: uint64_t[:, ::1],
    count: int64_t,
    hasher: cython.pointer(key_hasher),
    least_offset: int64_t,
    end_offset: int64_t,
) -> tuple[cython.int, int64_t]:
    """Run `hash_records` for one row, from `state` on, with `count` tuples so far."""
    room: int64_t = tuples.shape[0]
    end: int64_t = rows[fields.PAYLOAD_END, row]
    base_offset: int64_t = rows[fields.BASE_OFFSET, row]
    last_offset: int64_t = rows[fields.LAST_OFFSET, row]
    record_count: int64_t = rows[fields.RECORD_COUNT, row]
    index: int64_t = state[RECORD]
    position: int64_t = state[PLACE]
    last_seen: int64_t = state[LAST_SEEN]
    is_plain: cython.bint = state[IS_PLAIN] != 0
    fault: cython.int = fields.NO_FAULT if record_count >= 0 else fields.CORRUPT
    offset: int64_t
    record: Record
    while index < record_count:
        if count == room:
            fault = fields.BUFFER_FULL
            break
        record = read_record(payload, position, end)
        if not record.is_valid:
            fault = fields.CORRUPT
            break
        offset = wrapping_sum(base_offset, from_zigzag(record.delta))
        if offset <= last_seen or offset < base_offset or offset > last_offset:
            if state[DISORDERED] == 0:
                fault = fields.OUT_OF_ORDER
                break
            if state[DISORDERED] == ACCEPTED:
                state[DISORDERED] = row + 1
            is_plain = False
        last_seen = max(last_seen, offset)
        if record.is_odd or record.key_size < 0 or not record.has_value:
            is_plain = False
        if record.key_size >= 0 and offset >= least_offset and offset < end_offset:
            # The hash may be written later, because several keys are hashed at a time.
            hash_key(hasher, cython.address(tuples[count, 0]), payload + record.key_start, record.key_size)
            tuples[count, 2] = cython.cast(uint64_t, offset)
            count += 1
        position = record.end
        index += 1
    if fault == fields.NO_FAULT and record_count > 0 and position != end:
        fault = fields.CORRUPT
    if fault == fields.NO_FAULT:
        last_seen = max(last_seen, last_offset)
    state[RECORD] = index
    state[PLACE] = position
    state[LAST_SEEN] = last_seen
    state[IS_PLAIN] = is_plain
    return fault, count


def hash_records(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    end_row: int64_t,
    state: int64_t[::1],
    tuples: uint64_t[:, ::1],
    k0: uint64_t,
    k1: uint64_t,
    least_offset: int64_t,
    end_offset: int64_t,
    may_use_vectors: cython.bint = True,
) -> tuple[cython.int, int64_t]:
    """Append a tuple for each record with a key and an offset in [least_offset, end_offset) in rows with STEP MAP.

    Continues from `state` up to `end_row`. Sets the NOTE of each finished row to the size of its records + 1 if all of them have
    keys and values, none is odd, and their offsets ascend; otherwise to 0. Returns (fault, number of tuples). After BUFFER_FULL,
    call again with empty `tuples`; after CORRUPT or OUT_OF_ORDER, `state` has the row. Eight keys are hashed at a time if the
    processor supports it, unless `may_use_vectors` is False.
    """
    data_start: input_bytes = start_of(data)
    unpacked_start: input_bytes = start_of(unpacked)
    payload: input_bytes
    count: int64_t = 0
    row: int64_t = state[ROW]
    fault: cython.int = fields.NO_FAULT
    hasher = cython.declare(key_hasher)
    with cython.nogil:
        begin_hashing(cython.address(hasher), k0, k1, may_use_vectors)
        while row < end_row:
            if rows[fields.STEP, row] == MAP:
                if state[PLACE] == 0:
                    state[RECORD] = 0
                    state[PLACE] = rows[fields.PAYLOAD_START, row]
                    state[IS_PLAIN] = 1
                payload = unpacked_start if rows[fields.IS_UNPACKED, row] != 0 else data_start
                fault, count = hash_row(
                    payload, rows, row, state, tuples, count, cython.address(hasher), least_offset, end_offset
                )
                if fault != fields.NO_FAULT:
                    break
                rows[fields.NOTE, row] = (
                    rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row] + 1 if state[IS_PLAIN] != 0 else 0
                )
                state[PLACE] = 0
            row += 1
        end_hashing(cython.address(hasher))
        state[ROW] = row
    return fault, count


def put_tuples(
    table: uint64_t[:, ::1],
    size: int64_t,
    max_size: int64_t,
    tuples: cython.const[uint64_t][:, ::1],
    start: int64_t,
    end: int64_t,
    are_in_order: cython.bint = True,
) -> tuple[int64_t, int64_t]:
    """Put tuples `start` to `end` into the table; return (next tuple, keys in the table).

    A tuple replaces the tuple of the same key in the table; unless `are_in_order`, it does so only if its offset is greater.

    Stops at `max_size` keys, which must be less than the number of slots, even if the next tuple's key is in the table.
    """
    slots: int64_t = table.shape[0]
    index: int64_t = start
    ahead: int64_t = start
    slot: int64_t
    first: uint64_t
    second: uint64_t
    with cython.nogil:
        while index < end and size < max_size:
            while ahead < end and ahead <= index + _TUPLES_AHEAD:
                # An entry may span two cache lines.
                slot = slot_of(tuples[ahead, 0], slots)
                prefetch(cython.address(table[slot, 0]))
                prefetch(cython.address(table[slot, 2]))
                ahead += 1
            first = tuples[index, 0]
            second = tuples[index, 1]
            slot = slot_of(first, slots)
            while table[slot, 2] != EMPTY and (table[slot, 0] != first or table[slot, 1] != second):
                slot += 1
                if slot == slots:
                    slot = 0
            if table[slot, 2] == EMPTY:
                table[slot, 0] = first
                table[slot, 1] = second
                size += 1
            if are_in_order or table[slot, 2] <= tuples[index, 2]:
                table[slot, 2] = tuples[index, 2] + 1
            index += 1
    return index, size


def find_key(
    table: cython.const[uint64_t][:, ::1], k0: uint64_t, k1: uint64_t, key: cython.const[uint8_t][::1]
) -> int64_t:
    """Return the offset of a key; MISSING if the key is not in the table."""
    hashed: hash128 = siphash128(k0, k1, start_of(key), key.shape[0])
    return find(cython.address(table[0, 0]), table.shape[0], hashed.first, hashed.second)


def siphash(k0: uint64_t, k1: uint64_t, data: cython.const[uint8_t][::1]) -> tuple[uint64_t, uint64_t]:
    """Return the two halves of the hash of `data` under the key (k0, k1)."""
    hashed: hash128 = siphash128(k0, k1, start_of(data), data.shape[0])
    return hashed.first, hashed.second


def move_slots(
    table: cython.const[uint64_t][:, ::1], start: int64_t, end: int64_t, target: uint64_t[:, ::1]
) -> cython.void:
    """Copy slots `start` to `end` of a table to another table, which must have room for their keys, but none of these keys."""
    slots: int64_t = target.shape[0]
    index: int64_t
    slot: int64_t
    with cython.nogil:
        for index in range(start, end):
            if table[index, 2] != EMPTY:
                slot = slot_of(table[index, 0], slots)
                while target[slot, 2] != EMPTY:
                    slot += 1
                    if slot == slots:
                        slot = 0
                target[slot, 0] = table[index, 0]
                target[slot, 1] = table[index, 1]
                target[slot, 2] = table[index, 2]


def take_tuples(
    table: cython.const[uint64_t][:, ::1], slot: int64_t, tuples: uint64_t[:, ::1]
) -> tuple[int64_t, int64_t]:
    """Copy the table's tuples from `slot` on until `tuples` is full; return (next slot, number of tuples)."""
    count: int64_t = 0
    with cython.nogil:
        while slot < table.shape[0] and count < tuples.shape[0]:
            # A branch would be mispredicted for every third slot. So every slot is copied; the next copy overwrites an empty one.
            tuples[count, 0] = table[slot, 0]
            tuples[count, 1] = table[slot, 1]
            tuples[count, 2] = table[slot, 2] - 1
            count += table[slot, 2] != EMPTY
            slot += 1
    return slot, count


def take_offsets(table: cython.const[uint64_t][:, ::1], words: int64_t[::1]) -> int64_t:
    """Write the table's offsets to the front of `words`, which may be the table's own memory; return their number.

    `words` must have room for one number more than the table has offsets.
    """
    count: int64_t = 0
    slot: int64_t
    following: uint64_t
    """An offset + 1, or EMPTY."""
    with cython.nogil:
        for slot in range(table.shape[0]):
            # A write is never beyond the slot being read, so `words` may be the table itself.
            following = table[slot, 2]
            words[count] = cython.cast(int64_t, following - 1)
            count += following != EMPTY
    return count


def scatter(
    tuples: cython.const[uint64_t][:, ::1],
    start: int64_t,
    end: int64_t,
    shift: cython.int,
    buffers: uint64_t[:, :, ::1],
    fill: int64_t[::1],
) -> int64_t:
    """Append tuples to the buffers of their partitions, uint64[partitions, room, 3]; return the next tuple.

    The bits from `shift` on in the second half of its hash select a tuple's partition. Stops when a buffer is full; `fill`, the
    number of tuples in each buffer, shows which.
    """
    mask: uint64_t = cython.cast(uint64_t, buffers.shape[0]) - 1
    index: int64_t = start
    partition: int64_t
    at: int64_t
    with cython.nogil:
        while index < end:
            partition = cython.cast(int64_t, tuples[index, 1] >> shift & mask)
            at = fill[partition]
            if at == buffers.shape[1]:
                break
            buffers[partition, at, 0] = tuples[index, 0]
            buffers[partition, at, 1] = tuples[index, 1]
            buffers[partition, at, 2] = tuples[index, 2]
            fill[partition] = at + 1
            index += 1
    return index


def take_missing(
    table: cython.const[uint64_t][:, ::1],
    tuples: cython.const[uint64_t][:, ::1],
    count: int64_t,
    offsets: int64_t[::1],
) -> int64_t:
    """Write the offsets of the tuples whose keys are missing in the table or have no later offset there; return their number."""
    taken: int64_t = 0
    index: int64_t
    offset: int64_t
    start: cython.pointer(cython.const[uint64_t]) = cython.address(table[0, 0])
    with cython.nogil:
        for index in range(count):
            offset = cython.cast(int64_t, tuples[index, 2])
            if find(start, table.shape[0], tuples[index, 0], tuples[index, 1]) <= offset:
                offsets[taken] = offset
                taken += 1
    return taken
