"""Record batches as whole units: the header, the checksum and the fields a broker patches in place.

All integers are big-endian. Magic 2, the only one written since Kafka 0.11:

    offset size
         0    8  base offset                not covered by the CRC
         8    4  batch length               bytes after this field, at least 49; not covered
        12    4  partition leader epoch     -1 none; not covered
        16    1  magic                      2; not covered
        17    4  CRC-32C                    unsigned, over bytes 21 to the end
        21    2  attributes                 bits 0-2 codec, 3 LogAppendTime, 4 transaction, 5 control, 6 delete horizon
        23    4  last offset delta          kept by compaction, so also the last sequence's delta
        27    8  base timestamp             ms, first record's; -1 when empty; the delete horizon when bit 6 is set
        35    8  max timestamp              ms, greatest record's, or the broker's time under LogAppendTime
        43    8  producer id                -1 none
        51    2  producer epoch             -1 none
        53    4  base sequence              -1 none
        57    4  record count               can be 0 after compaction
        61    .  records                    see records.py; one compressed blob when there is a codec

Magic 0 and 1 share the first 17 bytes except that 12..16 hold their CRC-32; see legacy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
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


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the magic 2 batch at `position`.

    Neither the CRC is checked nor that the whole batch is in the buffer. CorruptBatch when fewer than 61 bytes are
    there, when the magic is not 2, or when the length field is less than 49.
    """
    try:
        header = BatchHeader._make(HEADER_STRUCT.unpack_from(buffer, position))
    except struct_error:
        raise CorruptBatch(
            position, f"a batch header has {HEADER_SIZE} bytes, only {max(0, len(buffer) - position)} are there"
        ) from None
    if header.magic != CURRENT_MAGIC:
        raise CorruptBatch(position, f"magic is {header.magic}, expected {CURRENT_MAGIC}")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatch(position, f"batch length is {header.batch_length}, expected at least {MIN_BATCH_LENGTH}")
    return header


def crc_is_valid(buffer: Buffer, position: int, size: int) -> bool:
    """True if the entry of `size` bytes at `position` is complete and has the checksum it declares.

    Serves every magic: CRC-32C for 2, CRC-32 for 0 and 1.
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
    """Give the batch at `position` its offset and leader epoch, in place; the CRC does not cover them."""
    _OFFSET_STRUCT.pack_into(buffer, position + BASE_OFFSET, base_offset)
    _INT32_STRUCT.pack_into(buffer, position + PARTITION_LEADER_EPOCH, leader_epoch)


def set_timestamps(buffer: WritableBuffer, position: int, *, is_log_append_time: bool, max_timestamp: int) -> None:
    """Set the timestamp type and the max timestamp (ms) of the batch at `position`, in place, and update its CRC.

    The whole batch must be in the buffer. Base timestamp and deltas stay (`DefaultRecordBatch.setMaxTimestamp`).
    """
    attributes: int = _ATTRIBUTES_STRUCT.unpack_from(buffer, position + ATTRIBUTES)[0] & ~LOG_APPEND_TIME_FLAG
    if is_log_append_time:
        attributes |= LOG_APPEND_TIME_FLAG
    _ATTRIBUTES_STRUCT.pack_into(buffer, position + ATTRIBUTES, attributes)
    _OFFSET_STRUCT.pack_into(buffer, position + MAX_TIMESTAMP, max_timestamp)
    update_crc(buffer, position)


def update_crc(buffer: WritableBuffer, position: int) -> None:
    """Compute the CRC of the magic 2 batch at `position`, all of which must be in the buffer, and store it."""
    batch_length: int = _INT32_STRUCT.unpack_from(buffer, position + BATCH_LENGTH)[0]
    with memoryview(buffer) as view:
        crc = crc32c(view[position + ATTRIBUTES : position + LOG_OVERHEAD + batch_length])
    _UINT32_STRUCT.pack_into(buffer, position + CRC, crc)


def iter_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole entry from `position` up to `end` (default: the buffer's), of any magic.

    Ends without an error at a torn tail: fewer bytes than a prefix, or an entry that runs past the end. CorruptBatch
    at an entry whose length is less than its magic needs or whose magic is unknown, as zero padding is. CRCs are not
    checked, so a compressed magic 0 or 1 entry, which must be decompressed to learn its base offset, can be
    CorruptBatch as well. Source: `ByteBufferLogInputStream`, `FileLogInputStream`.
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
            # Not imported above: legacy.py needs BatchHeader, and hardly any log has such entries.
            from diamant.protocol.batches.legacy import parse_legacy_header

            yield position, parse_legacy_header(buffer, position)
        position = next_position
