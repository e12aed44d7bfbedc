"""Kernels of key filters (`cleaner/facts/key_filter.py`): select batches, sort the hashes of keys, write and query filters."""

import cython
from cython.cimports.diamant.kernels.constants import fields
from cython.cimports.diamant.kernels.constants.tuples import EMPTY, MAP, SKIP
from cython.cimports.diamant.kernels.processor import load_little32, store_little32
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy, memset

output_words = cython.typedef(cython.pointer(uint64_t))

_FINGERPRINT_BITS = cython.declare(cython.int, 32)
# A word of 64 bits is sorted by six digits.
_DIGIT_BITS = cython.declare(cython.int, 11)
_PASSES = cython.declare(cython.int, 6)


def choose_data(rows: int64_t[:, ::1], count: int64_t) -> cython.void:
    """Set the STEP of each row: MAP for data batches of magic 2, SKIP for all others."""
    row: int64_t
    with cython.nogil:
        for row in range(count):
            rows[fields.STEP, row] = (
                MAP if rows[fields.MAGIC, row] == 2 and rows[fields.ATTRIBUTES, row] & fields.CONTROL == 0 else SKIP
            )


def find_special(
    rows: cython.const[int64_t][:, ::1], count: int64_t, found: int64_t[::1]
) -> tuple[int64_t, int64_t, cython.bint]:
    """Write the rows that need individual examination to `found`.

    The batches of these rows are not data, have no records, belong to a transaction, or may have a tombstone with a horizon.
    Returns (number of these rows, number of data records, True if there may be a tombstone without a horizon).
    """
    special: int64_t = 0
    records: int64_t = 0
    has_unstamped: cython.bint = False
    attributes: int64_t
    # A batch without a note may have a tombstone.
    is_noted: cython.bint
    row: int64_t
    with cython.nogil:
        for row in range(count):
            attributes = rows[fields.ATTRIBUTES, row]
            if rows[fields.STEP, row] != MAP or rows[fields.RECORD_COUNT, row] == 0:
                found[special] = row
                special += 1
                continue
            records += rows[fields.RECORD_COUNT, row]
            is_noted = rows[fields.NOTE, row] != 0
            if not is_noted and attributes & fields.DELETE_HORIZON == 0:
                has_unstamped = True
            if attributes & fields.TRANSACTIONAL != 0 or (not is_noted and attributes & fields.DELETE_HORIZON != 0):
                found[special] = row
                special += 1
    return special, records, has_unstamped


def take_hashes(tuples: cython.const[uint64_t][:, ::1], hashes: uint64_t[::1]) -> cython.void:
    """Write the first halves of the tuples' hashes to `hashes`, as many as fit."""
    index: int64_t
    with cython.nogil:
        for index in range(hashes.shape[0]):
            hashes[index] = tuples[index, 0]


def take_table(table: cython.const[uint64_t][:, ::1], hashes: uint64_t[::1]) -> int64_t:
    """Write the first halves of the hashes in a table, given enough room; return their number."""
    count: int64_t = 0
    slot: int64_t
    with cython.nogil:
        for slot in range(table.shape[0]):
            if table[slot, 2] != EMPTY:
                hashes[count] = table[slot, 0]
                count += 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def digit_of(word: uint64_t, step: cython.int) -> cython.int:
    """Return a word's digit for a sorting pass, as an index into the table of all passes."""
    return step << _DIGIT_BITS | cython.cast(cython.int, word >> (step * _DIGIT_BITS) & ((1 << _DIGIT_BITS) - 1))


def sort_words(words: uint64_t[::1], other: uint64_t[::1]) -> int64_t:
    """Sort up to 2^32 words; `other` must have the same size. Move distinct words to the front and return their number."""
    # For each pass and digit, first the number of words, later the position of the next word with this digit.
    places = cython.declare(uint32_t[12288])
    source: output_words = cython.NULL
    target: output_words = cython.NULL
    size: int64_t = words.shape[0]
    index: int64_t
    digit: cython.int
    step: cython.int
    total: uint32_t = 0
    count: uint32_t
    word: uint64_t
    differing: uint64_t = 0
    """The bits in which the words differ."""
    unique: int64_t = 0
    if size > 0:
        source = cython.address(words[0])
        target = cython.address(other[size - 1]) - (size - 1)
    with cython.nogil:
        memset(places, 0, cython.sizeof(places))
        for index in range(size):
            differing |= source[index] ^ source[0]
        for step in range(_PASSES):
            # Skip a pass in which all words have the same digit, such as the high digits of offsets of one log.
            if digit_of(differing, step) == digit_of(0, step):
                continue
            for index in range(size):
                places[digit_of(source[index], step)] += 1
            total = 0
            for digit in range(1 << _DIGIT_BITS):
                count = places[step << _DIGIT_BITS | digit]
                places[step << _DIGIT_BITS | digit] = total
                total += count
            for index in range(size):
                word = source[index]
                digit = digit_of(word, step)
                target[places[digit]] = word
                places[digit] += 1
            source, target = target, source
        if size > 0 and source != cython.address(words[0]):
            memcpy(target, source, size * 8)
            source = target
        for index in range(size):
            if index == 0 or source[index] != source[unique - 1]:
                source[unique] = source[index]
                unique += 1
    return unique


def write_filter(hashes: cython.const[uint64_t][::1], bits: cython.int, data: uint8_t[::1]) -> cython.void:
    """Write a filter with 2**bits buckets for ascending hashes to `data`, which must have the exact size of the filter."""
    buckets: int64_t = cython.cast(int64_t, 1) << bits
    count: int64_t = hashes.shape[0]
    shift: cython.int = 64 - _FINGERPRINT_BITS - bits
    leading: uint64_t
    bucket: int64_t
    index: int64_t
    following: int64_t = 0
    """The first bucket whose start is not written yet."""
    with cython.nogil:
        for index in range(count):
            leading = hashes[index] >> shift
            bucket = cython.cast(int64_t, leading >> _FINGERPRINT_BITS)
            while following <= bucket:
                store_little32(cython.address(data[4 * following]), cython.cast(uint32_t, index))
                following += 1
            store_little32(cython.address(data[4 * (buckets + 1 + index)]), cython.cast(uint32_t, leading))
        while following <= buckets:
            store_little32(cython.address(data[4 * following]), cython.cast(uint32_t, count))
            following += 1


def may_have_any(
    data: cython.const[uint8_t][::1], bits: cython.int, hashes: cython.const[uint64_t][::1]
) -> cython.bint:
    """Tell whether a filter with 2**bits buckets contains any of the hashes."""
    buckets: int64_t = cython.cast(int64_t, 1) << bits
    count: int64_t = data.shape[0] // 4 - buckets - 1
    shift: cython.int = 64 - _FINGERPRINT_BITS - bits
    leading: uint64_t
    bucket: int64_t
    index: int64_t
    place: int64_t
    end: int64_t
    is_found: cython.bint = False
    with cython.nogil:
        for index in range(hashes.shape[0]):
            leading = hashes[index] >> shift
            bucket = cython.cast(int64_t, leading >> _FINGERPRINT_BITS)
            place = load_little32(cython.address(data[4 * bucket]))
            end = load_little32(cython.address(data[4 * bucket + 4]))
            # A corrupt filter must not cause reads beyond its end.
            if end > count:
                end = count
            while place < end:
                if load_little32(cython.address(data[4 * (buckets + 1 + place)])) == cython.cast(uint32_t, leading):
                    is_found = True
                    break
                place += 1
            if is_found:
                break
    return is_found
