"""Encodes batches that the cleaner cannot copy, because records are removed or a delete horizon must be set.

Kept from the original header: base offset, last offset delta (so also the last sequence), leader epoch, producer id, epoch
and base sequence, timestamp type, transactional and control bits. New: CRC, length, count, the max timestamp of the remaining
records (CreateTime), the base timestamp (the delete horizon if there is one, else the first record's), and the attributes'
horizon bit. A rebuilt batch uses the original codec at its default level; a batch without records uses no codec.

Batches of magic 0 and 1 become magic 2, without leader epoch and producer. They begin and end with a remaining record.

Source: Kafka's MemoryRecords.buildRetainedRecordsInto and DefaultRecordBatch.writeEmptyHeader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import update_crc
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, HEADER_STRUCT, LOG_OVERHEAD, BatchHeader, Record, parse_header

Buffer: TypeAlias = bytes | bytearray | memoryview
Compress: TypeAlias = Callable[[int, Buffer], bytes]
"""A function that takes a codec and uncompressed records, and returns the compressed records."""

_GZIP_OS_BYTE = 9
_GZIP_OS_UNKNOWN = 0xFF


def rebuilt_batch(header: BatchHeader, records: Sequence[Record], delete_horizon_ms: int | None) -> bytearray:
    """Rebuild the batch that had `header` from its remaining `records`, of which there must be at least one.

    The result has the delete horizon `delete_horizon_ms`, if given, unless the batch already had one, which is kept.
    """
    if header.has_delete_horizon:
        delete_horizon_ms = header.base_timestamp
    is_legacy = header.magic < 2
    batch = build_batch(
        records,
        base_offset=records[0].offset if is_legacy else header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon_ms=delete_horizon_ms,
        last_offset_delta=None if is_legacy else header.last_offset_delta,
    )
    return with_codec(batch, header.codec)


def emptied_batch(header: BatchHeader) -> bytearray:
    """Return an empty batch with the offsets and sequences of `header`, to replace a batch of which no records remain."""
    return build_batch(
        (),
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp,
    )


def with_codec(batch: bytearray, codec: int, compress: Compress | None = None) -> bytearray:
    """Compress the records of an uncompressed batch; return the batch itself if `codec` is none.

    `compress` is `compress_like_kafka` or a faster equivalent.
    """
    if codec == compression.NONE:
        return batch
    header = parse_header(batch)
    out = batch[:HEADER_SIZE]
    with memoryview(batch) as view:
        out += (compress or compress_like_kafka)(codec, view[HEADER_SIZE:])
    HEADER_STRUCT.pack_into(
        out, 0, *header._replace(batch_length=len(out) - LOG_OVERHEAD, attributes=header.attributes | codec)
    )
    update_crc(out, 0)
    return out


def compress_like_kafka(codec: int, data: Buffer) -> bytes:
    """Compress `data` at the codec's default level, like Kafka's Java libraries.

    For gzip and zstd, the output equals Kafka's if both use the same compressor version; for lz4 and snappy, it may differ.
    """
    if codec == compression.GZIP:
        compressor = zlib.compressobj(compression.DEFAULT_GZIP_LEVEL, zlib.DEFLATED, 31)
        out = bytearray(compressor.compress(data))
        out += compressor.flush()
        # Java 16 and later write "unknown" for the operating system.
        out[_GZIP_OS_BYTE] = _GZIP_OS_UNKNOWN
        return bytes(out)
    if codec == compression.ZSTD:
        return new_zstd()(data)
    return compression.compress(codec, data)


def new_zstd() -> Callable[[Buffer], bytes]:
    """Return a function, for one thread, that compresses like `compress_like_kafka` with zstd, and can be reused.

    Reuse saves time: for small batches, most of it goes into creating the compressor. Memory: about 4 MiB.
    """
    from diamant.protocol.batches.zstd_frames import zstd

    stream = zstd.ZstdCompressor(compression.DEFAULT_ZSTD_LEVEL)

    def compress(data: Buffer) -> bytes:
        # Kafka's builder flushes the stream before it closes it, and does not know the size in advance.
        return stream.compress(data) + stream.flush(stream.FLUSH_BLOCK) + stream.flush()

    return compress
