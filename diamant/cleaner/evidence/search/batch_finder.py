"""Finds record batches in a file of any kind, at any byte of it: segments under other names, whole or in part.

A batch is told by its header (magic, length, codec, count of records; times, attributes and producers' numbers are what a client
has written, and may be anything), by how its records or compressed data begin, and then by its checksum. Only what is left after
the first two is summed up: of random bytes hardly anything. What begins like a compressed batch, and is cut off or damaged, may
hold anything, so it is a problem. So is a file with so many headers that fit and checksums that do not that finding out would
take too long (`FALSE_FACTOR`).

Not found are batches of more than 256 MiB, and uncompressed messages of the formats before 0.11 with keys of more than
`MAX_OLD_KEY_BYTES`: the bytes of the latter are searched all the same.

Memory: a window of `WINDOW_BYTES`, and a few times that for what is compared in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c

from diamant.cleaner.evidence.search.record_search import hole_bytes
from diamant.protocol.batches.compression import GZIP, LZ4, MAX_BATCH_BYTES, NONE, SNAPPY, ZSTD
from diamant.protocol.batches.header import (
    ATTRIBUTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MAGIC,
    MIN_ENTRY_LENGTH,
    PARTITION_LEADER_EPOCH,
    RECORD_COUNT,
)
from diamant.storage.env.env import File

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Octets = NDArray[np.uint8]
    Places = NDArray[np.int64]

WINDOW_BYTES = 4 * 1024 * 1024
MAX_OLD_KEY_BYTES = 64 * 1024
FALSE_FACTOR = 4
"""So many times its own size of a file may be checksummed without finding a batch, and `FALSE_BYTES` besides."""
FALSE_BYTES = 64 * 1024 * 1024

_AHEAD = MAX_OLD_KEY_BYTES + 128
_PAD = bytes(128)
_MANY = 16
"""If more than one byte in so many may be a magic, more is asked before places are listed."""
_OLD_HEADS = 18, 26
"""Position of the length of the key, by magic."""
_MIN_RECORD_BYTES = 7
_HEAD_BYTES = 64
"""Enough for a record's fields before its key."""
_SNAPPY_MAX_RATIO = 22
_CUT_OFF = "a batch begins here, and the file ends before it does"
_DAMAGED = "a compressed batch begins here, and its checksum is wrong"
_TOO_MANY = "so much of it looks like headers of batches that it cannot be told which are"

_FRAMES = {GZIP: b"\x1f\x8b\x08", SNAPPY: b"\x82SNAPPY", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
"""First bytes of compressed data. Raw snappy has none."""
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Behind one byte from 50 to 5f."""


class _Candidate(NamedTuple):
    at: int
    """In the window."""
    magic: int
    size: int
    is_framed: bool
    """True if it begins as compressed data do: then it is a batch, or was one."""


def find_batches(
    file: File,
    end: int,
    fail: Callable[[int, str], object],
    check: Callable[[], object] = bool,
    *,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[tuple[int, int]]:
    """Yield from where to where there are batches, one behind the other, up to byte `end` of a file; ascending. Blocks; OSError.

    `fail` is told of positions whose contents cannot be told. `check` is called for each window.
    """
    position = run_start = run_end = wasted = 0
    while position < end:
        check()
        position += hole_bytes(file, position, end, window_bytes, window_bytes + _AHEAD)
        data = file.pread(min(window_bytes + _AHEAD, end - position), position)
        if not data:
            break
        for one in _candidates(data, min(window_bytes, len(data)), end - position):
            start = position + one.at
            if start < run_end or not (one.is_framed or _may_begin(data, one)):
                continue
            is_compressed = one.is_framed or _begins_as_raw_snappy(data, one)
            if start + one.size > end:
                if is_compressed:
                    fail(start, _CUT_OFF)
            elif _has_checksum(file, start, one):
                if start != run_end and run_end:
                    yield run_start, run_end
                run_start = run_start if start == run_end and run_end else start
                run_end = start + one.size
            else:
                wasted += one.size
                if is_compressed:
                    fail(start, _DAMAGED)
                if wasted > FALSE_FACTOR * end + FALSE_BYTES:
                    fail(start, _TOO_MANY)
                    position = end
                    break
        position = max(position + window_bytes, run_end)
    if run_end:
        yield run_start, run_end


def _candidates(data: bytes, stop: int, left: int) -> list[_Candidate]:
    """Return what may be batches, by their headers, that begin before byte `stop`; `left`: so much is there from the first."""
    octets = np.frombuffer(data + _PAD, np.uint8)
    if not octets.any():
        return []
    magics = octets[MAGIC : MAGIC + stop]
    may_be = magics <= CURRENT_MAGIC
    if np.count_nonzero(may_be) * _MANY > stop:
        # Indexes, and files with much room: small numbers, and zeros.
        may_be &= octets[BATCH_LENGTH : BATCH_LENGTH + stop] <= MAX_BATCH_BYTES >> 24
        may_be &= _any_set(octets, BATCH_LENGTH + 1, 3, stop)
        # Of the old formats the checksum is there, which is not zero, and no attribute besides the codec and one bit.
        may_be_old = octets[MAGIC + 1 : MAGIC + 1 + stop] <= LZ4 + 8
        may_be_old &= _any_set(octets, PARTITION_LEADER_EPOCH, 4, stop)
        may_be &= may_be_old | (magics == CURRENT_MAGIC)
    places = np.flatnonzero(may_be).astype(np.int64)
    is_current = octets[places + MAGIC] == CURRENT_MAGIC
    found = [
        *_current(octets, places[is_current], len(data), left),
        *_old(octets, places[~is_current], len(data), left),
    ]
    return sorted(found)


def _any_set(octets: Octets, first: int, count: int, stop: int) -> Flags:
    """Tell for each place whether one of the bytes that are so far behind it is not zero."""
    joined = octets[first : first + stop].copy()
    for shift in range(1, count):
        joined |= octets[first + shift : first + shift + stop]
    found: Flags = joined != 0
    return found


def _current(octets: Octets, places: Places, length: int, left: int) -> list[_Candidate]:
    places = places[places + HEADER_SIZE <= length]
    places = places[octets[places + BATCH_LENGTH] <= MAX_BATCH_BYTES >> 24]
    for at in (LAST_OFFSET_DELTA, RECORD_COUNT):
        places = places[octets[places + at] < 0x80]
    sizes = _int32(octets, places + BATCH_LENGTH) + LOG_OVERHEAD
    is_sound = (sizes > HEADER_SIZE) & (sizes <= MAX_BATCH_BYTES)
    places, sizes = places[is_sound], sizes[is_sound]
    codecs = octets[places + ATTRIBUTES + 1] & CODEC_MASK
    framed = _is_framed(octets, places + HEADER_SIZE, codecs)
    others = (
        ((codecs == NONE) | (codecs == SNAPPY))
        & (_int32(octets, places + RECORD_COUNT) > 0)
        & ((sizes <= left - places) | (codecs == SNAPPY))
    )
    return _listed(octets, places, sizes, framed, framed | others)


def _old(octets: Octets, places: Places, length: int, left: int) -> list[_Candidate]:
    codecs = octets[places + MAGIC + 1]
    places = places[(codecs <= LZ4 + 8) & (codecs & CODEC_MASK <= LZ4)]
    places = places[octets[places + BATCH_LENGTH] <= MAX_BATCH_BYTES >> 24]
    sizes = _int32(octets, places + BATCH_LENGTH) + LOG_OVERHEAD
    is_sound = (sizes >= LOG_OVERHEAD + MIN_ENTRY_LENGTH) & (sizes <= MAX_BATCH_BYTES)
    places, sizes = places[is_sound], sizes[is_sound]
    keys = places + np.where(octets[places + MAGIC] == 1, _OLD_HEADS[1], _OLD_HEADS[0])
    key_sizes = _int32(octets, keys)
    values = keys + 4 + np.maximum(key_sizes, 0)
    is_sound = (key_sizes >= -1) & (key_sizes <= MAX_OLD_KEY_BYTES) & (values + 4 <= length)
    places, sizes, values = places[is_sound], sizes[is_sound], values[is_sound]
    value_sizes = _int32(octets, values)
    is_sound = (value_sizes >= -1) & (values + 4 + np.maximum(value_sizes, 0) == places + sizes)
    places, sizes, values = places[is_sound], sizes[is_sound], values[is_sound]
    kept = octets[places + MAGIC + 1] & CODEC_MASK
    # Its lengths have to fit one another, which is as telling as a frame.
    framed = _is_framed(octets, values + 4, kept) | ((kept == SNAPPY) & (value_sizes[is_sound] > 0))
    return _listed(octets, places, sizes, framed, framed | (sizes <= left - places))


def _listed(octets: Octets, places: Places, sizes: Places, framed: Flags, wanted: Flags) -> list[_Candidate]:
    fields = (places, octets[places + MAGIC], sizes, framed)
    return [_Candidate(*row) for row in zip(*(one[wanted].tolist() for one in fields), strict=True)]


def _int32(octets: Octets, places: Places) -> Places:
    value = np.zeros(len(places), np.int64)
    for shift in range(4):
        value = value << 8 | octets[places + shift]
    return value - (value >> 31 << 32)


def _is_framed(octets: Octets, places: Places, codecs: NDArray[Any]) -> Flags:
    found = np.zeros(len(places), np.bool_)
    places = np.minimum(places, len(octets) - 8)
    for codec, frame in _FRAMES.items():
        is_one = codecs == codec
        for index, octet in enumerate(frame):
            is_one = is_one & (octets[places + index] == octet)
        found |= is_one
    is_skippable = (codecs == ZSTD) & (octets[places] >> 4 == 5)
    for index, octet in enumerate(_ZSTD_SKIPPABLE, start=1):
        is_skippable &= octets[places + index] == octet
    found |= is_skippable
    return found


def _may_begin(data: bytes, one: _Candidate) -> bool:
    """Tell whether records, or raw snappy, may begin behind a header of which nothing else tells that it is one."""
    if one.magic != CURRENT_MAGIC:
        return True
    room = one.size - HEADER_SIZE
    head = data[one.at + HEADER_SIZE : one.at + HEADER_SIZE + _HEAD_BYTES]
    least = _MIN_RECORD_BYTES * int.from_bytes(data[one.at + RECORD_COUNT : one.at + HEADER_SIZE], "big")
    if data[one.at + ATTRIBUTES + 1] & CODEC_MASK == SNAPPY:
        size, at = _varint(head, 0)
        return at > 0 and least <= size <= _SNAPPY_MAX_RATIO * room
    return least <= room and _may_be_record(head, room)


def _begins_as_raw_snappy(data: bytes, one: _Candidate) -> bool:
    """Tell whether what may be raw snappy, which has no frame, begins with a record once it is decompressed."""
    if one.magic != CURRENT_MAGIC or data[one.at + ATTRIBUTES + 1] & CODEC_MASK != SNAPPY:
        return False
    head = data[one.at + HEADER_SIZE : one.at + HEADER_SIZE + 4 * _HEAD_BYTES]
    size, at = _varint(head, 0)
    found = bytearray()
    while len(found) < min(size, _HEAD_BYTES) and at < len(head):
        # The first block is a literal: behind it are all that the head of a record needs, or short copies of it.
        tag, at = head[at], at + 1
        kind, count = tag & 3, (tag >> 2) + 1
        if kind == 0:
            wide = max(0, count - 60)
            if wide:
                count = int.from_bytes(head[at : at + wide], "little") + 1
            at += wide
            found += head[at : at + count]
            at += count
            continue
        if kind == 1:
            count, back, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | int.from_bytes(head[at : at + 1], "little"), at + 1
        else:
            width = 2 * kind - 2
            back, at = int.from_bytes(head[at : at + width], "little"), at + width
        if not 0 < back <= len(found):
            return False
        for _ in range(count):
            found.append(found[-back])
    return len(found) > 1 and _may_be_record(bytes(found[:_HEAD_BYTES]), size)


def _may_be_record(head: bytes, room: int) -> bool:
    length, at = _varint(head, 0)
    length = length >> 1 ^ -(length & 1)
    if not at or not _MIN_RECORD_BYTES - 1 <= length <= room - at:
        return False
    at += 1
    for _ in range(2):  # deltas of time and offset
        _, at = _varint(head, at)
        if not at:
            return False
    key_size, at = _varint(head, at)
    return bool(at) and -1 <= (key_size >> 1 ^ -(key_size & 1)) <= length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint, and where it ends; 0 if it does not."""
    value = 0
    for index, octet in enumerate(data[at : at + 10]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, at + index + 1
    return 0, 0


def _has_checksum(file: File, start: int, one: _Candidate) -> bool:
    """Tell whether a batch has the checksum that it declares. Reads it piece by piece."""
    at = CRC if one.magic == CURRENT_MAGIC else PARTITION_LEADER_EPOCH
    declared = int.from_bytes(file.pread(4, start + at), "big")
    position, end = start + (ATTRIBUTES if one.magic == CURRENT_MAGIC else MAGIC), start + one.size
    found = 0
    while position < end:
        data = file.pread(min(WINDOW_BYTES, end - position), position)
        if not data:
            return False
        found = crc32c(data, found) if one.magic == CURRENT_MAGIC else crc32(data, found)
        position += len(data)
    return found == declared
