"""Compiled loops that build the offset map: keys to hashes, hashes into a table, tuples into partitions.

A *tuple* is three words: the two halves of the key's hash, and the offset. The table is uint64[slots, 3] with linear probing,
whose third word is the offset + 1, so that a slot of zeros is empty. A key's slot comes from its first half, the partition
that it is spilled to from its second.

The hash is SipHash-2-4 with a 128-bit result (Aumasson and Bernstein) under the data directory's own random key: a
client that writes the log cannot make up two keys that pass for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled, inlined
from diamant.cleaner.kernels.fields import (
    BASE_OFFSET,
    BUFFER_FULL,
    CORRUPT,
    IS_UNPACKED,
    LAST_OFFSET,
    NO_FAULT,
    NOTE,
    OUT_OF_ORDER,
    PAYLOAD_END,
    PAYLOAD_START,
    RECORD_COUNT,
    STEP,
)
from diamant.cleaner.kernels.native import address_of, load_uint8, load_uint64, prefetch
from diamant.cleaner.kernels.records import from_zigzag, read_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENTRY_BYTES = 24
EMPTY = 0
"""Third word of an empty slot."""
MISSING = -1
"""Result of a lookup for a key that is not in the table."""

# What to do with a batch while the map is built.
SKIP = 0
MAP = 1

# Where a call of `hash_records` stopped, int64[STATE_FIELDS].
ROW = 0
RECORD = 1
PLACE = 2
"""Position of the next record in its payload; 0 when the row has not been begun."""
LAST_SEEN = 3
"""Greatest offset so far."""
IS_PLAIN = 4
"""1 if the records of the row so far have keys and values, and none is odd."""
STATE_FIELDS = 5

_PREFETCH_DISTANCE = 8


@inlined
def sip_round(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> tuple[np.uint64, ...]:
    """Return the state after one SipRound."""
    v0 += v1
    v2 += v3
    v1 = v1 << np.uint64(13) | v1 >> np.uint64(51)
    v3 = v3 << np.uint64(16) | v3 >> np.uint64(48)
    v1 ^= v0
    v3 ^= v2
    v0 = v0 << np.uint64(32) | v0 >> np.uint64(32)
    v2 += v1
    v0 += v3
    v1 = v1 << np.uint64(17) | v1 >> np.uint64(47)
    v3 = v3 << np.uint64(21) | v3 >> np.uint64(43)
    v1 ^= v2
    v3 ^= v0
    v2 = v2 << np.uint64(32) | v2 >> np.uint64(32)
    return v0, v1, v2, v3


@inlined
def siphash128(k0: np.uint64, k1: np.uint64, data: int, start: int, end: int) -> tuple[np.uint64, np.uint64]:
    """Return the SipHash-2-4-128 of the bytes from address `data` + `start` to `data` + `end` under the key (k0, k1)."""
    v0 = np.uint64(0x736F6D6570736575) ^ k0
    v1 = np.uint64(0x646F72616E646F6D) ^ k1 ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ k0
    v3 = np.uint64(0x7465646279746573) ^ k1
    position = start
    while position + 8 <= end:
        word = load_uint64(data, position)
        v3 ^= word
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = np.uint64(end - start) << np.uint64(56)
    shift = np.uint64(0)
    while position < end:
        word |= np.uint64(load_uint8(data, position)) << shift
        shift += np.uint64(8)
        position += 1
    v3 ^= word
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@compiled
def hash_records(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    end_row: int,
    state: NDArray[np.int64],
    tuples: NDArray[np.uint64],
    k0: np.uint64,
    k1: np.uint64,
    least_offset: int,
    end_offset: int,
) -> tuple[int, int]:
    """Append the tuples of all records with keys and offsets in [least_offset, end_offset) in rows that are to be mapped.

    Continues from `state` up to `end_row`, and leaves in NOTE of each finished row the size of its records + 1 if none
    lacks key or value or is odd, else 0. Returns (fault, number of tuples): BUFFER_FULL wants to be called again
    with empty `tuples`; for CORRUPT and OUT_OF_ORDER the state tells the row.
    """
    count = 0
    row = state[ROW]
    last_seen = state[LAST_SEEN]
    while row < end_row:
        if rows[STEP, row] != MAP:
            row += 1
            continue
        end = rows[PAYLOAD_END, row]
        base_offset = rows[BASE_OFFSET, row]
        last_offset = rows[LAST_OFFSET, row]
        record_count = rows[RECORD_COUNT, row]
        if state[PLACE] == 0:
            state[ROW] = row
            state[RECORD] = 0
            state[PLACE] = rows[PAYLOAD_START, row]
            state[IS_PLAIN] = 1
            if record_count < 0:
                return CORRUPT, count
        index = state[RECORD]
        position = state[PLACE]
        is_plain = state[IS_PLAIN] != 0
        payload = address_of(unpacked) if rows[IS_UNPACKED, row] != 0 else address_of(data)
        while index < record_count:
            if count == tuples.shape[0]:
                state[ROW] = row
                state[RECORD] = index
                state[PLACE] = position
                state[LAST_SEEN] = last_seen
                state[IS_PLAIN] = 1 if is_plain else 0
                return BUFFER_FULL, count
            is_valid, is_odd, _, raw, _, key_start, key_size, has_value, position = read_record(payload, position, end)
            if not is_valid:
                state[ROW] = row
                return CORRUPT, count
            offset = base_offset + from_zigzag(raw)
            if offset <= last_seen or not base_offset <= offset <= last_offset:
                state[ROW] = row
                return OUT_OF_ORDER, count
            last_seen = offset
            if is_odd or key_size < 0 or not has_value:
                is_plain = False
            if key_size >= 0 and least_offset <= offset < end_offset:
                first, second = siphash128(k0, k1, payload, key_start, key_start + key_size)
                tuples[count, 0] = first
                tuples[count, 1] = second
                tuples[count, 2] = np.uint64(offset)
                count += 1
            index += 1
        if record_count > 0 and position != end:
            state[ROW] = row
            return CORRUPT, count
        rows[NOTE, row] = end - rows[PAYLOAD_START, row] + 1 if is_plain else 0
        state[PLACE] = 0
        row += 1
    state[ROW] = row
    state[LAST_SEEN] = last_seen
    return NO_FAULT, count


@inlined
def slot_of(first: np.uint64, slots: int) -> int:
    """Return the first slot that a hash is looked for in; it grows with the hash."""
    return np.int64((first >> np.uint64(32)) * np.uint64(slots) >> np.uint64(32))  # type: ignore[return-value]


@compiled
def put_tuples(
    table: NDArray[np.uint64],
    size: int,
    max_size: int,
    tuples: NDArray[np.uint64],
    start: int,
    end: int,
) -> tuple[int, int]:
    """Put tuples `start` to `end` into the table, later ones over earlier ones; return (next tuple, keys in the table).

    Stops before a tuple when there are `max_size` keys, less than there are slots, even if it brings no new one.
    """
    slots = table.shape[0]
    address = address_of(table)
    for ahead in range(start, min(start + _PREFETCH_DISTANCE, end)):
        prefetch(address, slot_of(tuples[ahead, 0], slots) * ENTRY_BYTES)
    for index in range(start, end):
        if index + _PREFETCH_DISTANCE < end:
            prefetch(address, slot_of(tuples[index + _PREFETCH_DISTANCE, 0], slots) * ENTRY_BYTES)
        if size >= max_size:
            return index, size
        first = tuples[index, 0]
        second = tuples[index, 1]
        slot = slot_of(first, slots)
        while table[slot, 2] != EMPTY:
            if table[slot, 0] == first and table[slot, 1] == second:
                break
            slot += 1
            if slot == slots:
                slot = 0
        if table[slot, 2] == EMPTY:
            table[slot, 0] = first
            table[slot, 1] = second
            size += 1
        table[slot, 2] = tuples[index, 2] + np.uint64(1)
    return end, size


@inlined
def find(table: int, slots: int, first: np.uint64, second: np.uint64) -> int:
    """Return the offset of a key, or MISSING, in the table at an address. It must have an empty slot."""
    slot = slot_of(first, slots)
    while True:
        place = slot * ENTRY_BYTES
        word = load_uint64(table, place + 16)
        if word == EMPTY:
            return MISSING
        if load_uint64(table, place) == first and load_uint64(table, place + 8) == second:
            return np.int64(word) - 1  # type: ignore[return-value]
        slot += 1
        if slot == slots:
            slot = 0


@compiled
def find_key(table: NDArray[np.uint64], k0: np.uint64, k1: np.uint64, key: NDArray[np.uint8]) -> int:
    """Return the offset of a key given by its bytes, or MISSING."""
    first, second = siphash128(k0, k1, address_of(key), 0, key.shape[0])
    return find(address_of(table), table.shape[0], first, second)


@compiled
def move_slots(table: NDArray[np.uint64], start: int, end: int, target: NDArray[np.uint64]) -> None:
    """Put what is in slots `start` to `end` of a table into another one that has room and none of these keys."""
    slots = target.shape[0]
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


@compiled
def take_tuples(table: NDArray[np.uint64], slot: int, tuples: NDArray[np.uint64]) -> tuple[int, int]:
    """Copy what is in the table from `slot` on until `tuples` is full; return (next slot, number of tuples)."""
    count = 0
    while slot < table.shape[0] and count < tuples.shape[0]:
        if table[slot, 2] != EMPTY:
            tuples[count, 0] = table[slot, 0]
            tuples[count, 1] = table[slot, 1]
            tuples[count, 2] = table[slot, 2] - np.uint64(1)
            count += 1
        slot += 1
    return slot, count


@compiled
def take_offsets(table: NDArray[np.uint64], words: NDArray[np.int64]) -> int:
    """Write the offsets in the table to the front of `words`, which may be the table's own memory; return how many."""
    count = 0
    for slot in range(table.shape[0]):
        if table[slot, 2] != EMPTY:
            # Never ahead of the slot that is read, so that the table may be eaten up from its own front.
            words[count] = np.int64(table[slot, 2]) - 1
            count += 1
    return count


@compiled
def scatter(
    tuples: NDArray[np.uint64],
    start: int,
    end: int,
    shift: int,
    buffers: NDArray[np.uint64],
    fill: NDArray[np.int64],
) -> int:
    """Append tuples to the buffers of their partitions, uint64[partitions, room, 3]; return the next tuple.

    The partition is in the bits of the second half of the hash from `shift` on. Stops when a buffer is full: `fill`
    tells which.
    """
    mask = np.uint64(buffers.shape[0] - 1)
    room = buffers.shape[1]
    for index in range(start, end):
        partition = np.int64(tuples[index, 1] >> np.uint64(shift) & mask)
        at = fill[partition]
        if at == room:
            return index
        buffers[partition, at, 0] = tuples[index, 0]
        buffers[partition, at, 1] = tuples[index, 1]
        buffers[partition, at, 2] = tuples[index, 2]
        fill[partition] = at + 1
    return end


@compiled
def take_missing(table: NDArray[np.uint64], tuples: NDArray[np.uint64], count: int, offsets: NDArray[np.int64]) -> int:
    """Write the offsets of those tuples whose keys are not in the table, or not with a later offset; return how many."""
    address = address_of(table)
    taken = 0
    for index in range(count):
        if find(address, table.shape[0], tuples[index, 0], tuples[index, 1]) <= np.int64(tuples[index, 2]):
            offsets[taken] = np.int64(tuples[index, 2])
            taken += 1
    return taken
