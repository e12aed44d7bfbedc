"""Searches a chunk of batches for the certifying scan.

The search only identifies clean batches: batches with a valid checksum, exactly the declared number of well-formed records, none
of the keys, and no needle anywhere. The plain reader examines all other batches again.

`next_header` finds possible batch headers at any byte of a file of any format.
"""

import cython
from cython.cimports.diamant.kernels.constants import fields, finding, search
from cython.cimports.diamant.kernels.processor import (
    COMPARED_BYTES,
    contains,
    crc32c_of,
    has_escape,
    load_big32,
    load_little64,
    next_candidate,
    prepare_crc32c,
)
from cython.cimports.diamant.kernels.records import Record, input_bytes, read_int32, read_record
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memset

input_integers = cython.typedef(cython.pointer(cython.const[int64_t]))
input_words = cython.typedef(cython.pointer(cython.const[uint64_t]))

# The concatenated keys, delimited by `bounds`, and the contents of `Needles.windows`.
Needles = cython.struct(
    keys=input_bytes,
    bounds=input_integers,
    key_count=int64_t,
    filter=input_bytes,
    shift=cython.int,
    words=input_words,
    word_count=int64_t,
    offsets=input_integers,
    sizes=input_integers,
    hashes=input_words,
)

prepare_crc32c()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def quick_hash(data: input_bytes, size: int64_t) -> uint64_t:
    """Compute `needles.quick_hash`."""
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
        value = (value ^ word) * search.MULTIPLIER
        value ^= value >> 29
        place += 8
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_needle(
    wanted: cython.pointer(Needles), word: uint64_t, data: input_bytes, place: int64_t, end: int64_t
) -> cython.bint:
    """Tell whether the first `end` bytes of `data` contain a needle with its window `word` at `place` of `data`."""
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
            and quick_hash(data + begin, wanted.sizes[low]) == wanted.hashes[low]
        ):
            return True
        low += 1
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mark(wanted: cython.pointer(Needles), at: input_bytes) -> uint8_t:
    """Return the filter's mark for a window; 0 if the window is in no needle."""
    return wanted.filter[(load_little64(at) * search.MULTIPLIER) >> wanted.shift]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def marks(wanted: cython.pointer(Needles), at: input_bytes) -> uint8_t:
    """Return the combined marks of eight windows; they are tested together because matches are rare."""
    return (
        mark(wanted, at)
        | mark(wanted, at + 4)
        | mark(wanted, at + 8)
        | mark(wanted, at + 12)
        | mark(wanted, at + 16)
        | mark(wanted, at + 20)
        | mark(wanted, at + 24)
        | mark(wanted, at + 28)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_needle(wanted: cython.pointer(Needles), data: input_bytes, end: int64_t) -> cython.bint:
    """Tell whether the first `end` bytes of `data` contain a needle."""
    place: int64_t = 0
    compared: int64_t = 0
    while place + 8 <= end:
        if wanted.word_count == search.STRIDE and place >= compared:
            # The windows of a single needle are compared directly, which is three times as fast as the filter.
            place = next_candidate(data, place, end, wanted.words)
            compared = place + COMPARED_BYTES
            continue
        if place + 36 <= end and not marks(wanted, data + place):
            place += 32
            continue
        if mark(wanted, data + place) and is_needle(wanted, load_little64(data + place), data, place, end):
            return True
        place += 4
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_no_key(wanted: cython.pointer(Needles), data: input_bytes, end: int64_t, count: int64_t) -> cython.bint:
    """Tell whether `count` records fill the first `end` bytes of `data` exactly, and none has a wanted key."""
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
    return position == end and count == 0


def count_windows(data: cython.const[uint8_t][::1], counts: uint32_t[::1], shift: cython.int) -> cython.void:
    """Count the 8-byte windows in `data` by their hashes, (window * MULTIPLIER) >> shift."""
    place: int64_t
    with cython.nogil:
        for place in range(data.shape[0] - 7):
            counts[
                (load_little64(cython.address(data[place])) * cython.cast(uint64_t, search.MULTIPLIER)) >> shift
            ] += 1


def rarest_span(data: cython.const[uint8_t][::1], counts: cython.const[uint32_t][::1], shift: cython.int) -> int64_t:
    """Return the first start of four consecutive windows with the lowest total in `counts`; 0 if `data` is too short."""
    place: int64_t
    rarest: int64_t = 0
    least: uint64_t = 0xFFFFFFFFFFFFFFFF
    total: uint64_t = 0
    index: int64_t
    with cython.nogil:
        for place in range(data.shape[0] - 10):
            total = 0
            for index in range(4):
                total += counts[
                    (load_little64(cython.address(data[place + index])) * cython.cast(uint64_t, search.MULTIPLIER))
                    >> shift
                ]
            if total < least:
                rarest, least = place, total
    return rarest


def next_window(
    data: cython.const[uint8_t][::1],
    place: int64_t,
    end: int64_t,
    table: cython.const[uint8_t][::1],
    shift: cython.int,
    words: cython.const[uint64_t][::1],
) -> int64_t:
    """Return the first of the positions `place`, `place` + 4, ... at which one of `Needles.windows` is before `end`; else -1."""
    found: int64_t = -1
    word: uint64_t
    low: int64_t
    high: int64_t
    middle: int64_t
    with cython.nogil:
        while place + 8 <= end:
            word = load_little64(cython.address(data[place]))
            if table[(word * cython.cast(uint64_t, search.MULTIPLIER)) >> shift]:
                low, high = 0, words.shape[0]
                while low < high:
                    middle = (low + high) >> 1
                    if words[middle] < word:
                        low = middle + 1
                    else:
                        high = middle
                if low < words.shape[0] and words[low] == word:
                    found = place
                    break
            place += 4
    return found


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
    """Set the STEP of rows with SEARCH to CLEAN or LOOK_AGAIN; return (number of clean rows, number of their records).

    `table` to `hashes` come from `Needles.windows`. Decompressed records are in `unpacked`. Batches, records and bytes of the
    clean rows are added to `amounts`, int64[8, 3], by codec. The arguments from `data` to `table` must not be empty.
    """
    wanted = cython.declare(Needles)
    memset(cython.address(wanted), 0, cython.sizeof(Needles))
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
            if rows[fields.STEP, row] != search.SEARCH:
                continue
            rows[fields.STEP, row] = search.LOOK_AGAIN
            size = rows[fields.SIZE, row]
            batch = cython.address(data[0]) + rows[fields.POSITION, row]
            if crc32c_of(batch + 21, size - 21) != load_big32(batch + 17):
                continue
            is_unpacked = rows[fields.IS_UNPACKED, row] != 0
            payload = cython.address(unpacked[0]) if is_unpacked else cython.address(data[0])
            payload += rows[fields.PAYLOAD_START, row]
            payload_size = rows[fields.PAYLOAD_END, row] - rows[fields.PAYLOAD_START, row]
            if not has_no_key(cython.address(wanted), payload, payload_size, rows[fields.RECORD_COUNT, row]):
                continue
            if wanted.word_count > 0:
                if has_needle(cython.address(wanted), batch, size):
                    continue
                if is_unpacked and has_needle(cython.address(wanted), payload, payload_size):
                    continue
            rows[fields.STEP, row] = search.CLEAN
            batches += 1
            records += rows[fields.RECORD_COUNT, row]
            codec = rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK
            amounts[codec, 0] += 1
            amounts[codec, 1] += rows[fields.RECORD_COUNT, row]
            amounts[codec, 2] += size
    return batches, records


Found = cython.struct(size=int64_t, is_framed=cython.bint)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_framed(at: input_bytes, codec: cython.int) -> cython.bint:
    """Tell whether the 8 bytes at `at` begin data compressed with `codec`; never for raw snappy, which has no magic bytes."""
    if codec == finding.GZIP:
        return at[0] == 0x1F and at[1] == 0x8B and at[2] == 0x08
    if codec == finding.SNAPPY:
        return memcmp(at, b"\x82SNAPPY", 7) == 0
    if codec in (finding.LZ4, finding.ZSTD):
        # Frames that decompressors skip count, too; they are the same in lz4 and zstd.
        return load_big32(at) == (0x04224D18 if codec == finding.LZ4 else 0x28B52FFD) or (
            at[0] >> 4 == 5 and load_big32(at) & 0xFFFFFF == 0x2A4D18
        )
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def current(at: input_bytes, length: int64_t, left: int64_t) -> Found:
    """Find a header of magic 2 at `at`; the size is 0 if there is none. `length` bytes follow in memory, `left` in the file."""
    found = cython.declare(Found)
    codec: cython.int
    found.size = 0
    found.is_framed = False
    if length < fields.HEADER_BYTES or at[8] > finding.MAX_SIZE >> 24:
        return found
    size: int64_t = read_int32(at + 8) + fields.LOG_OVERHEAD
    if size <= fields.HEADER_BYTES or size > finding.MAX_SIZE:
        return found
    codec = at[22] & fields.CODEC_MASK
    found.is_framed = is_framed(at + fields.HEADER_BYTES, codec)
    if found.is_framed or (
        (codec == finding.SNAPPY or (codec == 0 and size <= left)) and at[23] <= 0x7F and read_int32(at + 57) > 0
    ):
        found.size = size
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def old(at: input_bytes, length: int64_t, left: int64_t) -> Found:
    """Find a header of magic 0 or 1, like `current`. Its checksum must not be 0; its attributes must be a codec and one bit."""
    found = cython.declare(Found)
    codec: cython.int = at[17] & fields.CODEC_MASK
    found.size = 0
    found.is_framed = False
    if at[17] > finding.LZ4 + 8 or codec > finding.LZ4 or at[8] > finding.MAX_SIZE >> 24 or load_big32(at + 12) == 0:
        return found
    size: int64_t = read_int32(at + 8) + fields.LOG_OVERHEAD
    if size < finding.MIN_OLD_SIZE or size > finding.MAX_SIZE:
        return found
    place: int64_t = 26 if at[16] == 1 else 18
    key_size: int64_t = read_int32(at + place)
    if key_size < -1 or key_size > finding.MAX_OLD_KEY_BYTES:
        return found
    place += 4 + max(key_size, 0)
    if place + 4 > length:
        return found
    value_size: int64_t = read_int32(at + place)
    if value_size < -1 or place + 4 + max(value_size, 0) != size:
        return found
    # Consistent lengths are as strong evidence as a frame.
    found.is_framed = is_framed(at + place + 4, codec) or (codec == finding.SNAPPY and value_size > 0)
    if found.is_framed or size <= left:
        found.size = size
    return found


def next_header(
    data: cython.const[uint8_t][::1], place: int64_t, stop: int64_t, left: int64_t
) -> tuple[int64_t, int64_t, cython.bint]:
    """Return (place, size, is framed) of the first header at or after `place` and before `stop`; (-1, 0, False) if none.

    `data` must end with PAD_BYTES additional zeros. `left`: the number of bytes in the file from the start of `data` on.
    """
    length: int64_t = data.shape[0] - finding.PAD_BYTES
    found = cython.declare(Found)
    at: input_bytes
    found.size = 0
    found.is_framed = False
    stop = min(stop, length)
    with cython.nogil:
        while place < stop:
            at = cython.address(data[place])
            if at[16] == 2:
                found = current(at, length - place, left - place)
            elif at[16] < 2:
                found = old(at, length - place, left - place)
            if found.size > 0:
                break
            place += 1
    if found.size == 0:
        place = -1
    return place, found.size, found.is_framed


def has_text(data: bytes, texts: tuple, flags: bytes) -> cython.bint:
    """Tell whether `data` contains one of `texts`, or a backslash followed by a byte whose entry in the 256 `flags` is set.

    A backslash followed by two octal digits counts, too. A zero may follow each of these bytes, as in UTF-16.
    """
    start: input_bytes = data
    size: int64_t = len(data)
    text: bytes
    for text in texts:
        if contains(start, size, text, len(text)):
            return True
    return has_escape(start, size, flags)
