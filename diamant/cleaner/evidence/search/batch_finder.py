"""Finds record batches at any byte of any file, such as all or part of a segment under another name.

A batch is recognised by its header, by the beginning of its records or compressed data, and finally by its checksum. The header
must have a plausible magic, length, codec and, if the data is not compressed, record count; clients choose times, attributes and
producer ids freely. The checksum is computed only if the first two match, which hardly ever happens in random bytes. A compressed
batch that is cut off or damaged may contain anything, so it is a problem. So is a file with so many matching headers and wrong
checksums that checking them all would take too long (`FALSE_FACTOR`).

Batches of more than 256 MiB are not found, and neither are uncompressed messages in formats before 0.11 with keys of more than
`MAX_OLD_KEY_BYTES`; but the bytes of such messages are searched all the same.

Memory: a window of `WINDOW_BYTES`, and a few times that for comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from crc32c import crc32c

from diamant.cleaner.evidence.search.record_search import hole_bytes
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.finding import MAX_OLD_KEY_BYTES, MIN_OLD_SIZE, PAD_BYTES
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
    PARTITION_LEADER_EPOCH,
    RECORD_COUNT,
)
from diamant.storage.env.env import File

WINDOW_BYTES = 4 * 1024 * 1024
FALSE_FACTOR = 4
"""At most this multiple of the file's size, plus `FALSE_BYTES`, is checksummed without finding a batch."""
FALSE_BYTES = 64 * 1024 * 1024

_AHEAD = MAX_OLD_KEY_BYTES + 128
_MAY_BE_MAGIC = re.compile(rb"(?s)(?<=[\0-\x10].{7})[\0-\2]")
"""Matches a byte that may be a magic, because the length before it may be at most `MAX_BATCH_BYTES`."""
_OLD_HEADS = 18, 26
"""Position of the key's length, by magic."""
_MIN_RECORD_BYTES = 7
_HEAD_BYTES = 64
"""Number of bytes that suffices for the fields of a record before its key."""
_SNAPPY_MAX_RATIO = 22
_CUT_OFF = "a batch begins here, but the file ends before the batch does"
_DAMAGED = "a compressed batch begins here, but its checksum is wrong"
_TOO_MANY = "too many places look like batch headers to check them all"

_FRAMES = {GZIP: b"\x1f\x8b\x08", SNAPPY: b"\x82SNAPPY", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
"""First bytes of compressed data, by codec. Raw snappy has no such bytes."""
_SKIPPABLE = b"\x2a\x4d\x18"
"""Beginning of a frame that lz4 and zstd skip, after a first byte from 0x50 to 0x5f."""


class _Candidate(NamedTuple):
    at: int
    """Position in the window."""
    magic: int
    size: int
    is_framed: bool
    """True if the payload begins like compressed data, so that this is a batch, or was one."""


def find_batches(
    file: File,
    end: int,
    fail: Callable[[int, str], object],
    check: Callable[[], object] = bool,
    *,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of adjacent batches up to byte `end` of a file, in ascending order.

    `fail` is called with each position whose content cannot be determined, and the reason. `check` is called for each window.
    Does blocking I/O; raises OSError.
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


def _candidates(data: bytes, stop: int, left: int) -> Iterator[_Candidate]:
    """Yield possible batches, judged by their headers, that begin before `stop`. `left`: bytes of the file from `data` on."""
    if data.count(0) < len(data):
        yield from (_compiled if ARE_COMPILED else _plain)(data + bytes(PAD_BYTES), stop, left)


def _compiled(octets: bytes, stop: int, left: int) -> Iterator[_Candidate]:
    from diamant.kernels.search import next_header

    place = 0
    while True:
        place, size, is_framed = next_header(octets, place, stop, left)
        if place < 0:
            return
        yield _Candidate(place, octets[place + MAGIC], size, is_framed)
        place += 1


def _plain(octets: bytes, stop: int, left: int) -> Iterator[_Candidate]:
    """Do the same as `_compiled`, without kernels."""
    length = len(octets) - PAD_BYTES
    for match in _MAY_BE_MAGIC.finditer(octets, MAGIC, min(stop, length) + MAGIC):
        place = match.start() - MAGIC
        size = _int32(octets, place + BATCH_LENGTH) + LOG_OVERHEAD
        is_current = octets[place + MAGIC] == CURRENT_MAGIC
        if size <= MAX_BATCH_BYTES:
            found = (_current if is_current else _old)(octets, place, size, length, left)
            if found is not None:
                yield _Candidate(place, octets[place + MAGIC], size, found)


def _current(octets: bytes, place: int, size: int, length: int, left: int) -> bool | None:
    """Tell whether a possible batch with magic 2 is framed; None if this cannot be a header."""
    if place + HEADER_SIZE > length or size <= HEADER_SIZE:
        return None
    codec = octets[place + ATTRIBUTES + 1] & CODEC_MASK
    if _is_framed(octets, place + HEADER_SIZE, codec):
        return True
    may_be = codec == SNAPPY or (codec == NONE and size <= left - place)
    may_be &= octets[place + LAST_OFFSET_DELTA] <= 0x7F and _int32(octets, place + RECORD_COUNT) > 0
    return False if may_be else None


def _old(octets: bytes, place: int, size: int, length: int, left: int) -> bool | None:
    """Do the same for magic 0 and 1. The checksum must not be zero; the attributes may have a codec and one more bit."""
    attributes = octets[place + MAGIC + 1]
    codec = attributes & CODEC_MASK
    if attributes > LZ4 + 8 or codec > LZ4 or size < MIN_OLD_SIZE or not _int32(octets, place + LOG_OVERHEAD):
        return None
    key = place + _OLD_HEADS[octets[place + MAGIC]]
    key_size = _int32(octets, key)
    value = key + 4 + max(key_size, 0)
    if not -1 <= key_size <= MAX_OLD_KEY_BYTES or value + 4 > length:
        return None
    value_size = _int32(octets, value)
    if value_size < -1 or value + 4 + max(value_size, 0) != place + size:
        return None
    # The lengths are consistent, which is as strong a sign as a frame.
    if _is_framed(octets, value + 4, codec) or (codec == SNAPPY and value_size > 0):
        return True
    return False if size <= left - place else None


def _int32(octets: bytes, at: int) -> int:
    return int.from_bytes(octets[at : at + 4], "big", signed=True)


def _is_framed(octets: bytes, at: int, codec: int) -> bool:
    frame = _FRAMES.get(codec)
    if frame is not None and octets.startswith(frame, at):
        return True
    return codec in (LZ4, ZSTD) and octets[at] >> 4 == 5 and octets.startswith(_SKIPPABLE, at + 1)


def _may_begin(data: bytes, one: _Candidate) -> bool:
    """Tell whether the bytes after an unframed header may be the beginning of records, or of raw snappy."""
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
    """Tell whether the payload begins with a record if it is decompressed as raw snappy, which has no frame."""
    if one.magic != CURRENT_MAGIC or data[one.at + ATTRIBUTES + 1] & CODEC_MASK != SNAPPY:
        return False
    head = data[one.at + HEADER_SIZE : one.at + HEADER_SIZE + 4 * _HEAD_BYTES]
    size, at = _varint(head, 0)
    found = bytearray()
    while len(found) < min(size, _HEAD_BYTES) and at < len(head):
        # The first block is a literal. The rest of the record's head follows, as a literal or as copies of earlier bytes.
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
    for _ in range(2):  # timestamp delta and offset delta
        _, at = _varint(head, at)
        if not at:
            return False
    key_size, at = _varint(head, at)
    return bool(at) and -1 <= (key_size >> 1 ^ -(key_size & 1)) <= length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it, which is 0 if the varint is cut off."""
    value = 0
    for index, octet in enumerate(data[at : at + 10]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, at + index + 1
    return 0, 0


def _has_checksum(file: File, start: int, one: _Candidate) -> bool:
    """Tell whether a batch has the checksum that it declares. Reads the batch in pieces."""
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
