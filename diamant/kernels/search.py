"""The compiled look at a chunk of batches for the certifying scan.

It decides one thing only: of which batches nothing more needs to be known. Those have a checksum that fits, exactly as many
well-formed records as they declare, none with one of the keys, and no needle anywhere. All others are looked at again by
the plain reader, which says what they are.
"""

import cython
from cython.cimports.diamant.kernels.constants.fields import (
    ATTRIBUTES,
    CODEC_MASK,
    IS_UNPACKED,
    PAYLOAD_END,
    PAYLOAD_START,
    POSITION,
    RECORD_COUNT,
    SIZE,
    STEP,
)
from cython.cimports.diamant.kernels.constants.search import CLEAN, LOOK_AGAIN, MULTIPLIER, SEARCH
from cython.cimports.diamant.kernels.processor import crc32c_of, load_big32, load_little64, prepare_crc32c
from cython.cimports.diamant.kernels.records import Record, read_record
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memset

input_bytes = cython.typedef(cython.pointer(cython.const[uint8_t]))
integers = cython.typedef(cython.pointer(cython.const[int64_t]))
words64 = cython.typedef(cython.pointer(cython.const[uint64_t]))

# The keys one behind the other, with `bounds` around them; and `Needles.windows`.
Wanted = cython.struct(
    keys=input_bytes,
    bounds=integers,
    key_count=int64_t,
    filter=input_bytes,
    shift=cython.int,
    words=words64,
    word_count=int64_t,
    offsets=integers,
    sizes=integers,
    hashes=words64,
)

prepare_crc32c()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hash_of(data: input_bytes, size: int64_t) -> uint64_t:
    """Return what `needles.quick_hash` returns."""
    value: uint64_t = cython.cast(uint64_t, size)
    word: uint64_t
    place: int64_t = 0
    index: int64_t
    while place < size:
        if place + 8 <= size:
            word = load_little64(data + place)
        else:
            word = 0
            for index in range(size - place):
                word |= cython.cast(uint64_t, data[place + index]) << (8 * index)
        value = (value ^ word) * MULTIPLIER
        value ^= value >> 29
        place += 8
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_needle(
    wanted: cython.pointer(Wanted), word: uint64_t, data: input_bytes, place: int64_t, end: int64_t
) -> cython.bint:
    """Tell whether a needle is in the `end` bytes that has `word` at `place` of them."""
    low: int64_t = 0
    high: int64_t = wanted.word_count
    middle: int64_t
    begin: int64_t
    while low < high:
        middle = (low + high) >> 1
        if wanted.words[middle] < word:
            low = middle + 1
        else:
            high = middle
    while low < wanted.word_count and wanted.words[low] == word:
        begin = place - wanted.offsets[low]
        if (
            begin >= 0
            and wanted.sizes[low] <= end - begin
            and hash_of(data + begin, wanted.sizes[low]) == wanted.hashes[low]
        ):
            return True
        low += 1
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_needle(wanted: cython.pointer(Wanted), data: input_bytes, end: int64_t) -> cython.bint:
    """Tell whether a needle is in the `end` bytes."""
    place: int64_t = 0
    index: int64_t
    word: uint64_t
    marks: input_bytes = wanted.filter
    shift: cython.int = wanted.shift
    mark: uint8_t
    while place + 8 <= end:
        if place + 36 <= end:
            # Eight windows together: hardly ever is one marked.
            mark = 0
            for index in range(8):
                mark |= marks[(load_little64(data + place + 4 * index) * MULTIPLIER) >> shift]
            if mark == 0:
                place += 32
                continue
        word = load_little64(data + place)
        if marks[(word * MULTIPLIER) >> shift] and is_needle(wanted, word, data, place, end):
            return True
        place += 4
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_no_key(wanted: cython.pointer(Wanted), data: input_bytes, end: int64_t, count: int64_t) -> cython.bint:
    """Tell whether `count` records fill the `end` bytes, and none has a key."""
    position: int64_t = 0
    which: int64_t
    record: Record
    while count > 0:
        record = read_record(data, position, end)
        if not record.is_valid:
            return False
        for which in range(wanted.key_count):
            if record.key_size == wanted.bounds[which + 1] - wanted.bounds[which] and (
                memcmp(data + record.key_start, wanted.keys + wanted.bounds[which], record.key_size) == 0
            ):
                return False
        position = record.end
        count -= 1
    return position == end


def count_windows(data: cython.const[uint8_t][::1], counts: uint32_t[::1], shift: cython.int) -> cython.void:
    """Count the windows of 8 bytes in `data` where their hashes lead: (window * MULTIPLIER) >> shift."""
    place: int64_t
    with cython.nogil:
        for place in range(data.shape[0] - 7):
            counts[(load_little64(cython.address(data[place])) * cython.cast(uint64_t, MULTIPLIER)) >> shift] += 1


def search_rows(
    data: cython.const[uint8_t][::1],
    unpacked: cython.const[uint8_t][::1],
    rows: int64_t[:, ::1],
    count: int64_t,
    keys: cython.const[uint8_t][::1],
    bounds: cython.const[int64_t][::1],
    table: cython.const[uint8_t][::1],
    shift: cython.int,
    words: cython.const[uint64_t][::1],
    offsets: cython.const[int64_t][::1],
    sizes: cython.const[int64_t][::1],
    hashes: cython.const[uint64_t][::1],
    amounts: int64_t[:, ::1],
) -> tuple[int64_t, int64_t]:
    """Set STEP of the rows that have SEARCH to CLEAN or LOOK_AGAIN; return (clean ones, their records).

    `table` to `hashes` are those of `Needles.windows`. Compressed batches are in `unpacked`. `amounts`: int64[8, 3], to which
    batches, records and bytes of the clean rows are added, by codec. `data` to `table` are not empty.
    """
    wanted = cython.declare(Wanted)
    memset(cython.address(wanted), 0, cython.sizeof(Wanted))
    wanted.keys = cython.address(keys[0])
    wanted.bounds = cython.address(bounds[0])
    wanted.key_count = bounds.shape[0] - 1
    wanted.filter = cython.address(table[0])
    wanted.shift = shift
    wanted.word_count = words.shape[0]
    if words.shape[0] > 0:
        wanted.words = cython.address(words[0])
        wanted.offsets = cython.address(offsets[0])
        wanted.sizes = cython.address(sizes[0])
        wanted.hashes = cython.address(hashes[0])
    batches: int64_t = 0
    records: int64_t = 0
    row: int64_t
    codec: int64_t
    size: int64_t
    payload_size: int64_t
    batch: input_bytes
    payload: input_bytes
    is_unpacked: cython.bint
    with cython.nogil:
        for row in range(count):
            if rows[STEP, row] != SEARCH:
                continue
            rows[STEP, row] = LOOK_AGAIN
            size = rows[SIZE, row]
            batch = cython.address(data[0]) + rows[POSITION, row]
            if crc32c_of(batch + 21, size - 21) != load_big32(batch + 17):
                continue
            is_unpacked = rows[IS_UNPACKED, row] != 0
            payload = cython.address(unpacked[0]) if is_unpacked else cython.address(data[0])
            payload += rows[PAYLOAD_START, row]
            payload_size = rows[PAYLOAD_END, row] - rows[PAYLOAD_START, row]
            if not has_no_key(cython.address(wanted), payload, payload_size, rows[RECORD_COUNT, row]):
                continue
            if wanted.word_count > 0:
                if has_needle(cython.address(wanted), batch, size):
                    continue
                if is_unpacked and has_needle(cython.address(wanted), payload, payload_size):
                    continue
            rows[STEP, row] = CLEAN
            batches += 1
            records += rows[RECORD_COUNT, row]
            codec = rows[ATTRIBUTES, row] & CODEC_MASK
            amounts[codec, 0] += 1
            amounts[codec, 1] += rows[RECORD_COUNT, row]
            amounts[codec, 2] += size
    return batches, records
