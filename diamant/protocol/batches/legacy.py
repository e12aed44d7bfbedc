"""The message formats of Kafka before 0.11 (magic 0 and 1). We read them in old segments, but never write them to logs.

An entry is (integers big-endian)

    offset size
         0    8  offset
         8    4  length       bytes after this field, at least 14 (magic 0) or 22 (magic 1)
        12    4  CRC-32       unsigned, over bytes 16 to the end
        16    1  magic        0 or 1
        17    1  attributes   bits 0-2 codec (0 to 3), bit 3 LogAppendTime (magic 1)
       [18    8  timestamp    ms, -1 none; magic 1 only]
         .    4  key length   -1 null; key bytes
         .    4  value length -1 null; value bytes

A compressed entry is a wrapper: its value is the compressed concatenation of uncompressed entries, and its offset is that of the
last inner entry. In a wrapper of magic 0 the inner offsets are absolute; in a wrapper of magic 1 they count from the first inner
entry (0 to n-1). The timestamp of a magic 1 wrapper with LogAppendTime applies to all inner entries of magic 1. Inner entries may
have the other magic: the log cleaners of old brokers left such wrappers (KAFKA-4298).
Source: `AbstractLegacyRecordBatch`, `LegacyRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from diamant.protocol.batches import compression
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT, check_record_size
from diamant.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from diamant.protocol.batches.header import Record

Buffer: TypeAlias = bytes | bytearray | memoryview

MIN_LENGTHS = (14, 22)
"""Minimum of an entry's length field, by magic."""

_ENTRY = Struct(">qiIbb")  # offset, length, CRC, magic, attributes
_INT32 = Struct(">i")
_INT64 = Struct(">q")


class LegacyEntry(NamedTuple):
    """A parsed entry. `timestamp` is -1 in magic 0; the `value` of a wrapper is still compressed."""

    offset: int
    length: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """Size of the whole entry in bytes."""
        return self.length + LOG_OVERHEAD

    @property
    def codec(self) -> int:
        """The codec: 0 none, 1 gzip, 2 snappy, 3 lz4."""
        return self.attributes & CODEC_MASK


def parse_entry(buffer: Buffer, position: int = 0) -> LegacyEntry:
    """Parse the entry of magic 0 or 1 at `position`, without a CRC check. Raises CorruptBatch if its structure is invalid."""
    try:
        offset, length, crc, magic, attributes = _ENTRY.unpack_from(buffer, position)
    except struct_error:
        raise CorruptBatch(
            position, f"an entry has at least {_ENTRY.size} bytes, only {max(0, len(buffer) - position)} are left"
        ) from None
    if magic not in (0, 1):
        raise CorruptBatch(position, f"magic is {magic}, expected 0 or 1")
    if length < MIN_LENGTHS[magic]:
        raise CorruptBatch(position, f"entry length is {length}, magic {magic} needs at least {MIN_LENGTHS[magic]}")
    end = position + LOG_OVERHEAD + length
    if end > len(buffer):
        raise CorruptBatch(position, f"the entry has {end - position} bytes, only {len(buffer) - position} are left")
    at = position + _ENTRY.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        timestamp = _INT64.unpack_from(buffer, at)[0]
        at += _INT64.size
    key, at = _read_bytes(buffer, at, end, position, "key")
    value, at = _read_bytes(buffer, at, end, position, "value")
    if at != end:
        raise CorruptBatch(position, f"{end - at} bytes are left after the entry's value")
    return LegacyEntry(offset, length, crc, magic, attributes, timestamp, key, value)


def parse_legacy_header(buffer: Buffer, position: int = 0, *, max_bytes: int = MAX_BATCH_BYTES) -> BatchHeader:
    """Return a batch header for the entry at `position`; a wrapper is decompressed to find its first offset.

    Fields that the old formats lack are -1. Raises CorruptBatch if the entry is malformed, or if an inner entry is malformed or
    has a wrong CRC.
    """
    entry = parse_entry(buffer, position)
    base_offset = entry.offset
    count = 1
    if entry.codec != compression.NONE:
        inner = _unwrap(entry, position, max_bytes)
        base_offset = _offset_shift(entry, inner, position) + inner[0].offset
        count = len(inner)
    attributes = entry.attributes & CODEC_MASK
    if entry.magic == 1:
        attributes |= entry.attributes & LOG_APPEND_TIME_FLAG
    return BatchHeader(
        base_offset,
        entry.length,
        NO_PARTITION_LEADER_EPOCH,
        entry.magic,
        entry.crc,
        attributes,
        entry.offset - base_offset,
        NO_TIMESTAMP,
        entry.timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )


def iter_legacy_records(
    buffer: Buffer,
    position: int = 0,
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    max_record_bytes: int = NO_RECORD_LIMIT,
) -> Iterator[Record]:
    """Yield the record of a plain entry at `position`, or the records of a wrapper, with absolute offsets.

    Raises CorruptBatch if the entry is malformed, or if an inner entry is malformed or has a wrong CRC, and OversizedRecord for
    an inner entry above `max_record_bytes`.
    """
    from diamant.protocol.batches.header import Record

    entry = parse_entry(buffer, position)
    if entry.codec == compression.NONE:
        return iter((Record(entry.offset, entry.timestamp, entry.key, entry.value),))
    inner = _unwrap(entry, position, max_bytes, max_record_bytes)
    shift = _offset_shift(entry, inner, position)
    is_log_append_time = entry.magic == 1 and entry.attributes & LOG_APPEND_TIME_FLAG
    return iter(
        [
            Record(
                inner_entry.offset + shift,
                entry.timestamp if is_log_append_time and inner_entry.magic == 1 else inner_entry.timestamp,
                inner_entry.key,
                inner_entry.value,
            )
            for inner_entry in inner
        ]
    )


def _read_bytes(buffer: Buffer, at: int, end: int, position: int, what: str) -> tuple[bytes | None, int]:
    if at + 4 > end:
        raise CorruptBatch(position, f"the entry ends before its {what}'s length")
    size: int = _INT32.unpack_from(buffer, at)[0]
    at += 4
    if size < 0:
        return None, at
    if size > end - at:
        raise CorruptBatch(position, f"the entry's {what} has {size} bytes, {end - at} are left")
    return bytes(buffer[at : at + size]), at + size


def _unwrap(
    wrapper: LegacyEntry, position: int, max_bytes: int, max_record_bytes: int = NO_RECORD_LIMIT
) -> list[LegacyEntry]:
    """Return the entries in `wrapper`, at least one. Raises DecompressionBomb if they have more than `max_bytes`."""
    if wrapper.value is None:
        raise CorruptBatch(position, "a compressed entry has no value")
    if wrapper.codec > compression.LZ4:
        raise CorruptBatch(position, f"compression codec is {wrapper.codec}, expected 1 to 3 in magic {wrapper.magic}")
    payload = compression.decompress(
        wrapper.codec, wrapper.value, max_bytes=max_bytes, checks_lz4_header=wrapper.magic > 0
    )
    inner: list[LegacyEntry] = []
    at = 0
    while at < len(payload):
        entry = parse_entry(payload, at)
        check_record_size(entry.size - LOG_OVERHEAD, max_record_bytes)
        if entry.codec != compression.NONE:
            raise CorruptBatch(at, "a compressed entry inside a compressed entry")
        if crc32(memoryview(payload)[at + 16 : at + entry.size]) != entry.crc:
            raise CorruptBatch(at, f"a wrapped entry's CRC is not the {entry.crc:#010x} it declares")
        inner.append(entry)
        at += entry.size
    if not inner:
        raise CorruptBatch(position, "a compressed entry holds no entries")
    return inner


def _offset_shift(wrapper: LegacyEntry, inner: Sequence[LegacyEntry], position: int) -> int:
    """Return the number to add to the inner offsets to make them absolute."""
    if wrapper.magic == 0:
        return 0
    last = inner[-1].offset
    if wrapper.offset == 0:
        # librdkafka wrote wrappers with offset 0, whose inner offsets are absolute and begin at 0.
        return 0
    if wrapper.offset < last:
        raise CorruptBatch(position, f"the wrapper's offset {wrapper.offset} is less than its last entry's {last}")
    return wrapper.offset - last
