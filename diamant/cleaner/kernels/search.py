"""The compiled look at a chunk of batches for the certifying scan. Importing this loads numba: never on the loop thread.

It decides one thing only: of which batches nothing more needs to be known. Those have a checksum that fits, exactly as many
well-formed records as they declare, none with one of the keys, and no needle anywhere. All others are looked at again by
the plain reader, which says what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels.cache import compiled, inlined
from diamant.cleaner.kernels.fields import (
    ATTRIBUTES,
    CODEC_MASK,
    FIELDS,
    IS_UNPACKED,
    PAYLOAD_END,
    PAYLOAD_START,
    POSITION,
    RECORD_COUNT,
    SIZE,
    STEP,
)
from diamant.cleaner.kernels.native import address_of, crc32c_at, load_uint8, load_uint64
from diamant.cleaner.kernels.records import read_record, read_unsigned
from diamant.cleaner.kernels.rolling_hash import MULTIPLIER

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Values of STEP.
SEARCH = 1
"""To be looked at."""
CLEAN = 2
"""Was looked at, and there is nothing."""
LOOK_AGAIN = 3
"""For the plain reader."""

_FACTOR = np.uint64(MULTIPLIER)


@inlined
def hash_of(data: int, start: int, size: int) -> np.uint64:
    """Return what `needles.quick_hash` returns."""
    value = np.uint64(size)
    place = start
    end = start + size
    while place < end:
        if place + 8 <= end:
            word = load_uint64(data, place)
        else:
            word = np.uint64(0)
            for index in range(end - place):
                word |= np.uint64(load_uint8(data, place + index)) << np.uint64(8 * index)
        value = (value ^ word) * _FACTOR
        value ^= value >> np.uint64(29)
        place += 8
    return value


@inlined
def has_needle(
    data: int,
    start: int,
    end: int,
    table: int,
    shift: np.uint64,
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    hashes: NDArray[np.uint64],
) -> bool:
    """Tell whether a needle is in the bytes."""
    place = start
    while place + 8 <= end:
        word = load_uint64(data, place)
        if load_uint8(table, np.int64((word * _FACTOR) >> shift)) != 0:  # type: ignore[arg-type]
            low = 0
            high = len(words)
            while low < high:
                middle = (low + high) >> 1
                if words[middle] < word:
                    low = middle + 1
                else:
                    high = middle
            while low < len(words) and words[low] == word:
                begin = place - offsets[low]
                if begin >= start and begin + sizes[low] <= end and hash_of(data, begin, sizes[low]) == hashes[low]:
                    return True
                low += 1
        place += 4
    return False


@inlined
def has_key(data: int, start: int, end: int, count: int, keys: int, bounds: NDArray[np.int64]) -> int:
    """Return 0 if `count` records fill the bytes and none has a key, 1 if one has one, 2 if they are not as they should be.

    The keys are one behind the other, with `bounds` around them.
    """
    position = start
    for _ in range(count):
        is_sound, _, _, _, _, key_start, size, _, record_end = read_record(data, position, end)
        if not is_sound:
            return 2
        for which in range(len(bounds) - 1):
            if size != bounds[which + 1] - bounds[which]:
                continue
            is_same = True
            for index in range(size):
                if load_uint8(data, key_start + index) != load_uint8(keys, bounds[which] + index):
                    is_same = False
                    break
            if is_same:
                return 1
        position = record_end
    return 0 if position == end else 2


@compiled
def search_rows(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    count: int,
    keys: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    table: NDArray[np.uint8],
    shift: int,
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    amounts: NDArray[np.int64],
) -> int:
    """Set STEP of the rows that have SEARCH to CLEAN or LOOK_AGAIN; return the records of the clean ones.

    `table` to `hashes` are those of `Needles.windows`. Compressed batches are in `unpacked`. `amounts`: int64[8, 3], to which
    batches, records and bytes of the clean rows are added, by codec.
    """
    chunk = address_of(data)
    other = address_of(unpacked)
    wanted = address_of(keys)
    marks = address_of(table)
    records = 0
    for row in range(count):
        if rows[STEP, row] != SEARCH:
            continue
        rows[STEP, row] = LOOK_AGAIN
        position = rows[POSITION, row]
        end = position + rows[SIZE, row]
        if crc32c_at(chunk, position + 21, end) != read_unsigned(chunk, position + 17, 4):
            continue
        source = other if rows[IS_UNPACKED, row] else chunk
        start = rows[PAYLOAD_START, row]
        payload_end = rows[PAYLOAD_END, row]
        if has_key(source, start, payload_end, rows[RECORD_COUNT, row], wanted, bounds) != 0:
            continue
        if len(words) > 0:
            if has_needle(chunk, position, end, marks, np.uint64(shift), words, offsets, sizes, hashes):
                continue
            if rows[IS_UNPACKED, row] and has_needle(
                other, start, payload_end, marks, np.uint64(shift), words, offsets, sizes, hashes
            ):
                continue
        rows[STEP, row] = CLEAN
        records += rows[RECORD_COUNT, row]
        codec = rows[ATTRIBUTES, row] & CODEC_MASK
        amounts[codec, 0] += 1
        amounts[codec, 1] += rows[RECORD_COUNT, row]
        amounts[codec, 2] += rows[SIZE, row]
    return records


def warm_up() -> None:
    """Compile the kernel, or load it from the cache."""
    data = np.zeros(1, np.uint8)
    words = np.zeros(0, np.uint64)
    numbers = np.zeros(0, np.int64)
    rows = np.zeros((FIELDS, 1), np.int64)
    keys = np.frombuffer(b"k", np.uint8)
    search_rows(
        data, data, rows, 0, keys, numbers, data, 48, words, numbers, numbers, words, np.zeros((8, 3), np.int64)
    )
