"""Reads plain batches into columns, so that rounds in ordinary Python can clean thousands of small batches.

A batch of magic 2 is *plain* if its CRC is valid and its records have keys and are encoded as clients encode them: with
the shortest lengths, ascending offsets, and no bytes before or after them. It is not a marker and has no delete horizon. It may
be compressed or transactional, and may contain tombstones. All other batches are left to the code for batches of any format,
which also reports errors.

Records are not objects: two lists hold the keys and offsets of a whole run of batches. When a batch is rebuilt, the original
bytes of the kept records are copied, because only their timestamps can change.

Source: Kafka's DefaultRecordBatch, DefaultRecord, and MemoryRecords.buildRetainedRecordsInto.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import TypeAlias

from crc32c import crc32c

from diamant.cleaner.segments.rebuilt_batch import with_codec
from diamant.cleaner.segments.small_payloads import MAX_BYTES, SmallPayloads
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import update_crc
from diamant.protocol.batches.header import (
    ATTRIBUTES,
    CODEC_MASK,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    parse_header,
)
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.varint import read_varint, read_varlong, varint_size, write_varint

RECORD_BYTES = 100
"""Memory of a record in the columns, without its key, in bytes."""
BATCH_BYTES = 400
"""Memory of a batch, without its records, in bytes."""

TRANSACTIONAL = TRANSACTIONAL_FLAG
"""Batch flag: the batch is part of a transaction."""
LOG_APPEND_TIME = LOG_APPEND_TIME_FLAG
"""Batch flag: the timestamp of all records is the batch's max timestamp; their deltas are ignored."""
TOMBSTONES = 1 << 16
"""Batch flag: at least one record has no value."""

_HEADER = Struct(">qi4xbIhiqqq6xi").unpack_from
"""Like `HEADER_STRUCT`, but without leader epoch, producer epoch and sequence."""
_SPECIAL = ~(CODEC_MASK | LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG)
"""Attribute bits that no plain batch has set."""
_MAX_VARINT_BYTES = 5
"""Length of the longest integer in a plain record. Timestamps in a plain batch can therefore span at most half a year."""
_MAX_TIMESTAMP = 1 << 62
"""Timestamps below this one do not overflow 64 bits when a delta of `_MAX_VARINT_BYTES` is added."""
_MAX_OFFSET = 1 << 62
"""Batches at or above this offset are not plain, because the offsets of their records may exceed 64 bits."""

PlainBatch: TypeAlias = "tuple[int, int, int, int, int, int, int, int, int, bytes | None]"
"""Start and end in the chunk; start and end of its records in the columns; last offset, max timestamp, producer id, flags;
the size of its records, as counted in statistics of removed bytes; and its decompressed records, if they are needed again."""


class _NotPlainError(Exception):
    """The batch is not plain, or is damaged."""


class PlainRun:
    """Adjacent plain batches."""

    __slots__ = ("batches", "end", "flags", "keys", "memory_bytes", "offsets")

    def __init__(self, at: int) -> None:
        self.end = at
        """Position in the chunk at which the last batch ends."""
        self.batches: list[PlainBatch] = []
        self.keys: list[bytes] = []
        """Keys of all records."""
        self.offsets: list[int] = []
        """Offsets of all records, ascending."""
        self.flags = 0
        """Union of the batches' flags."""
        self.memory_bytes = 0
        """Memory of the run, in bytes."""


def read_run(
    data: bytes, at: int, payloads: SmallPayloads, room: int, max_record_bytes: int = NO_RECORD_LIMIT
) -> PlainRun:
    """Return the run of plain batches, possibly none, that begins at `at` and fits into `room` bytes of memory.

    Batches larger than `small_payloads.MAX_BYTES` are also decompressed, if the result fits into the rest of `room`. Batches that
    decompress to more than `max_record_bytes` count as not plain, because a record in them may exceed that limit.
    """
    run = PlainRun(at)
    keys, offsets, batches = run.keys, run.offsets, run.batches
    add_key, add_offset = keys.append, offsets.append
    view = memoryview(data)
    first, taken, all_flags, previous = 0, 0, 0, -1
    unpacks = compression.NONE
    unpack = payloads.unpacker(unpacks)
    with suppress(IndexError, _NotPlainError):
        while at + HEADER_SIZE < len(data):
            offset, length, magic, crc, attributes, deltas, timestamp, max_timestamp, producer_id, count = _HEADER(
                data, at
            )
            next_at = at + LOG_OVERHEAD + length
            if (
                magic != CURRENT_MAGIC
                or attributes & _SPECIAL
                or not at + HEADER_SIZE < next_at <= len(data)
                or not -1 <= timestamp < _MAX_TIMESTAMP
                or count < 1
                or not previous < offset < _MAX_OFFSET
                or crc32c(view[at + ATTRIBUTES : next_at]) != crc
            ):
                raise _NotPlainError
            payload, place, end = data, at + HEADER_SIZE, next_at
            codec = attributes & CODEC_MASK
            if codec:
                packed = data[place:end]
                if codec != unpacks:
                    unpack, unpacks = payloads.unpacker(codec), codec
                payload = (end - place <= MAX_BYTES and unpack(packed)) or _unpack_large(codec, packed, room - taken)
                place, end = 0, len(payload)
                if end > max_record_bytes:
                    raise _NotPlainError
            start = place
            memory_bytes = BATCH_BYTES + RECORD_BYTES * count + (end - start << 1 if codec else end - start)
            if taken + memory_bytes > room:
                raise _NotPlainError
            flags = attributes & ~CODEC_MASK
            last_offset = offset + deltas
            previous = offset - 1
            # The hot loop. Nearly all lengths and deltas have one or two bytes, which are parsed inline.
            for _ in range(count):
                size = payload[place]
                place += 1
                if size > 0x7F:
                    if 0 < payload[place] < 0x80:
                        size = size & 0x7F | payload[place] << 7
                        place += 1
                    else:
                        size, place = _long(payload, place - 1)
                record_end = place + (size >> 1)
                if size & 1 or payload[place]:
                    raise _NotPlainError
                place += 2
                if payload[place - 1] > 0x7F:
                    _, place = _long(payload, place - 1)
                delta = payload[place]
                place += 1
                if delta > 0x7F:
                    if 0 < payload[place] < 0x80:
                        delta = delta & 0x7F | payload[place] << 7
                        place += 1
                    else:
                        delta, place = _long(payload, place - 1)
                record_offset = offset + (delta >> 1)
                if delta & 1 or record_offset <= previous:
                    raise _NotPlainError
                previous = record_offset
                size = payload[place]
                place += 1
                if size > 0x7F:
                    if 0 < payload[place] < 0x80:
                        size = size & 0x7F | payload[place] << 7
                        place += 1
                    else:
                        size, place = _long(payload, place - 1)
                if size & 1:
                    raise _NotPlainError
                add_key(payload[place : place + (size >> 1)])
                add_offset(record_offset)
                place += size >> 1
                size = payload[place]
                place += 1
                if size > 0x7F:
                    if 0 < payload[place] < 0x80:
                        size = size & 0x7F | payload[place] << 7
                        place += 1
                    else:
                        size, place = _long(payload, place - 1)
                if not size & 1:
                    place += size >> 1
                elif size == 1:
                    flags |= TOMBSTONES
                else:
                    raise _NotPlainError
                if (place + 1 if payload[place] == 0 else _headers_end(payload, place)) != record_end:
                    raise _NotPlainError
                place = record_end
            if place != end or previous > last_offset:
                raise _NotPlainError
            counted = end - start
            if flags & LOG_APPEND_TIME:
                counted = _size_with_delta(payload, start, end, max_timestamp - timestamp)
            last = first + count
            unpacked = payload if codec and count > 1 else None
            batches.append(
                (at, next_at, first, last, last_offset, max_timestamp, producer_id, flags, counted, unpacked)
            )
            first, at, previous = last, next_at, last_offset
            taken += memory_bytes
            all_flags |= flags
    # Drop the records of the batch that turned out not to be plain.
    del keys[first:], offsets[first:]
    run.end, run.flags, run.memory_bytes = at, all_flags, taken
    return run


def _unpack_large(codec: int, packed: bytes, room: int) -> bytes:
    """Decompress a large payload; return empty bytes if that fails or the result exceeds `room`."""
    try:
        return compression.decompress(codec, packed, max_bytes=max(0, room))
    except CorruptBatch:
        return b""


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint of two or more bytes at `at`, and its end.

    Raises IndexError if it is cut off, not the shortest encoding, or longer than `_MAX_VARINT_BYTES`.
    """
    value = data[at] & 0x7F
    for index in range(1, _MAX_VARINT_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte == 0:
                break
            return value, at + index + 1
    raise IndexError


def _headers_end(data: bytes, at: int) -> int:
    """Return the end of the record headers, whose number (1 to 63) is at `at`; -1 if they are not encoded as in a plain batch.

    Raises IndexError if the headers are cut off.
    """
    count = data[at]
    if count & 0x81:
        return -1
    at += 1
    for _ in range(count >> 1):
        for none in (-1, 1):
            # A key, then a value, which may be null.
            size = data[at]
            at += 1
            if size > 0x7F:
                if not 0 < data[at] < 0x80:
                    return -1
                size = size & 0x7F | data[at] << 7
                at += 1
            if size == none:
                continue
            if size & 1:
                return -1
            at += size >> 1
    return at


def _size_with_delta(data: bytes, at: int, end: int, delta_ms: int) -> int:
    """Return the size that plain records would have if each had the timestamp delta `delta_ms`, for statistics."""
    more, total = varint_size(delta_ms), 0
    while at < end:
        size, at = read_varint(data, at)
        delta_bytes = 1 if data[at + 1] < 0x80 else read_varlong(data, at + 1)[1] - at - 1
        new_size = size + more - delta_bytes
        total += new_size + varint_size(new_size)
        at += size
    return total


def rebuilt(
    data: bytes, batch: PlainBatch, stays: Sequence[bool], payloads: SmallPayloads
) -> tuple[bytearray, int, int]:
    """Rebuild a batch in `data` without its removed records. Return it, its max timestamp, and the number of bytes removed.

    `stays` has a flag for each record. At least one record must stay, at least one must not, and no tombstone may stay. The
    result equals that of `rebuilt_batch.rebuilt_batch`.
    """
    begin, *_, max_timestamp, _, flags, removed_bytes, unpacked = batch
    header = parse_header(data, begin)
    has_append_time = bool(flags & LOG_APPEND_TIME)
    payload, at = (data, begin + HEADER_SIZE) if unpacked is None else (unpacked, 0)
    out = bytearray(HEADER_SIZE)
    count, base_delta, max_delta = 0, 0, 0
    for is_kept in stays:
        start = at
        size, body = read_varint(payload, at)
        at = body + size
        if not is_kept:
            continue
        delta, after = read_varlong(payload, body + 1)
        if has_append_time:
            removed_bytes -= _size_with_delta(payload, start, at, max_timestamp - header.base_timestamp)
            new_delta = 0
        else:
            removed_bytes -= at - start
            if count == 0:
                base_delta = max_delta = delta
            max_delta = max(delta, max_delta)
            new_delta = delta - base_delta
        count += 1
        if new_delta == delta:
            out += payload[start:at]
            continue
        record = bytearray(1)  # attributes
        write_varint(record, new_delta)
        write_varint(out, len(record) + at - after)
        out += record
        out += payload[after:at]
    if has_append_time:
        base_timestamp = max_timestamp
    else:
        base_timestamp, max_timestamp = header.base_timestamp + base_delta, header.base_timestamp + max_delta
    new_header = header._replace(
        batch_length=len(out) - LOG_OVERHEAD,
        attributes=header.attributes & ~CODEC_MASK,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )
    HEADER_STRUCT.pack_into(out, 0, *new_header)
    update_crc(out, 0)
    return with_codec(out, header.codec, payloads.pack), max_timestamp, removed_bytes
