"""Whole record batches: checksums, fields that a broker patches in place, and iteration over entries of any magic."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

from crc32c import crc32c

from diamant.protocol.batches.header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    MIN_BATCH_LENGTH,
    MIN_ENTRY_LENGTH,
    PARTITION_LEADER_EPOCH,
    BatchHeader,
    Buffer,
    WritableBuffer,
)
from diamant.protocol.errors import CorruptBatch

_PREFIX_STRUCT = Struct(">qiib")
_OFFSET_STRUCT = Struct(">q")
_INT32_STRUCT = Struct(">i")
_UINT32_STRUCT = Struct(">I")
_ATTRIBUTES_STRUCT = Struct(">h")


def crc_is_valid(buffer: Buffer, position: int, size: int) -> bool:
    """Return True if the entry of `size` bytes at `position` is complete and its checksum is correct.

    The checksum is CRC-32C in magic 2, and CRC-32 in magic 0 and 1.
    """
    end = position + size
    if size < LOG_OVERHEAD + MIN_ENTRY_LENGTH or end > len(buffer):
        return False
    with memoryview(buffer) as view:
        if view[position + MAGIC] != CURRENT_MAGIC:
            declared: int = _UINT32_STRUCT.unpack_from(view, position + LOG_OVERHEAD)[0]
            return crc32(view[position + MAGIC : end]) == declared
        if size < HEADER_SIZE:
            return False
        declared = _UINT32_STRUCT.unpack_from(view, position + CRC)[0]
        return crc32c(view[position + ATTRIBUTES : end]) == declared


def set_base_offset(buffer: WritableBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of the batch at `position` in place. The CRC covers neither."""
    _OFFSET_STRUCT.pack_into(buffer, position + BASE_OFFSET, base_offset)
    _INT32_STRUCT.pack_into(buffer, position + PARTITION_LEADER_EPOCH, leader_epoch)


def set_timestamps(buffer: WritableBuffer, position: int, *, is_log_append_time: bool, max_timestamp: int) -> None:
    """Set the timestamp type and the max timestamp (ms) of the batch at `position` in place, and update its CRC.

    The buffer must contain the whole batch. The base timestamp and the deltas do not change
    (`DefaultRecordBatch.setMaxTimestamp`).
    """
    attributes: int = _ATTRIBUTES_STRUCT.unpack_from(buffer, position + ATTRIBUTES)[0] & ~LOG_APPEND_TIME_FLAG
    if is_log_append_time:
        attributes |= LOG_APPEND_TIME_FLAG
    _ATTRIBUTES_STRUCT.pack_into(buffer, position + ATTRIBUTES, attributes)
    _OFFSET_STRUCT.pack_into(buffer, position + MAX_TIMESTAMP, max_timestamp)
    update_crc(buffer, position)


def update_crc(buffer: WritableBuffer, position: int) -> None:
    """Compute and store the CRC of the magic 2 batch at `position`. The buffer must contain the whole batch."""
    batch_length: int = _INT32_STRUCT.unpack_from(buffer, position + BATCH_LENGTH)[0]
    with memoryview(buffer) as view:
        crc = crc32c(view[position + ATTRIBUTES : position + LOG_OVERHEAD + batch_length])
    _UINT32_STRUCT.pack_into(buffer, position + CRC, crc)


def iter_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole entry of any magic from `position` to `end` (default: the end of the buffer).

    Stops without an error at a torn tail: too few bytes for the fields up to the magic, or an entry that extends past `end`.
    Raises CorruptBatch at an entry that is too short for its magic or has an unknown magic, and also at zero padding. CRCs
    are not checked. Compressed entries of magic 0 or 1 are decompressed for their base offset, which can raise CorruptBatch, too.
    Source: `ByteBufferLogInputStream`, `FileLogInputStream`.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    unpack_prefix = _PREFIX_STRUCT.unpack_from
    unpack_header = HEADER_STRUCT.unpack_from
    make = BatchHeader._make
    while position + HEADER_SIZE_UP_TO_MAGIC <= end:
        _, length, _, magic = unpack_prefix(buffer, position)
        if length < MIN_ENTRY_LENGTH:
            raise CorruptBatch(position, f"entry length is {length}, expected at least {MIN_ENTRY_LENGTH}")
        if not 0 <= magic <= CURRENT_MAGIC:
            raise CorruptBatch(position, f"magic is {magic}, expected 0 to {CURRENT_MAGIC}")
        next_position = position + LOG_OVERHEAD + length
        if next_position > end:
            return
        if magic == CURRENT_MAGIC:
            if length < MIN_BATCH_LENGTH:
                raise CorruptBatch(position, f"batch length is {length}, expected at least {MIN_BATCH_LENGTH}")
            yield position, make(unpack_header(buffer, position))
        else:
            # Imported here because few logs have entries of the old formats.
            from diamant.protocol.batches.legacy import parse_legacy_header

            yield position, parse_legacy_header(buffer, position)
        position = next_position
