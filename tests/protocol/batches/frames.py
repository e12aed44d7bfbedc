"""Compressed records in frames that clients rarely write, and what Kafka 4.3.1 answers to a Produce of each.

The answers were recorded from a running broker: a batch of the one record in `RECORDS`, under a right CRC.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import cramjam
import lz4.block
import zstandard
from xxhash import xxh32_intdigest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import GZIP, LZ4, SNAPPY, SNAPPY_HEADER, ZSTD
from diamant.protocol.batches.header import HEADER_SIZE, Record
from diamant.protocol.errors import ErrorCode
from tests.builder import TIMESTAMP

OK, UNREADABLE, INVALID = ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD
BATCH = build_batch([Record(0, TIMESTAMP, b"key", b"value" * 30)])
RECORDS = bytes(BATCH[HEADER_SIZE:])
FRONT, BACK = RECORDS[:80], RECORDS[80:]
LZ4_MAGIC = b"\x04\x22\x4d\x18"
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


class Frame(NamedTuple):
    """One way to write `RECORDS`, or not quite."""

    codec: int
    data: bytes
    answer: ErrorCode
    """Kafka's error code."""
    skipped: bool = False
    """True if readers skip bytes in it that could hold anything."""


def lz4_frame(
    records: bytes = RECORDS,
    flags: int = 0x60,
    descriptor: int = 0x40,
    *,
    header_sum: int | None = None,
    block_sum: int | None = None,
    size: int = len(RECORDS),
    end: bytes = bytes(4),
    content_sum: bytes = b"any4",
    is_stored: bool = False,
) -> bytes:
    """Return an lz4 frame of one block. Bits of `flags`: 4 content checksum, 8 content size, 0x10 block checksums."""
    header = bytes((flags, descriptor)) + (struct.pack("<Q", size) if flags & 8 else b"")
    checksum = xxh32_intdigest(header) >> 8 & 0xFF if header_sum is None else header_sum
    block = records if is_stored else lz4.block.compress(records, store_size=False)
    out = LZ4_MAGIC + header + bytes((checksum,)) + struct.pack("<I", len(block) | is_stored << 31) + block
    if flags & 0x10:
        out += struct.pack("<I", xxh32_intdigest(block) if block_sum is None else block_sum)
    return out + end + (content_sum if flags & 4 else b"")


def gzip_member(
    records: bytes = RECORDS, flags: int = 0, fields: bytes = b"", *, method: int = 8, crc: int = 0, size: int = 0
) -> bytes:
    """Return a gzip member. Bits of `flags`: 2 header CRC, 4 extra field, 8 name, 16 comment; `crc`, `size`: their errors."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(records) + packer.flush()
    trailer = struct.pack("<II", zlib.crc32(records) ^ crc, len(records) + size)
    return b"\x1f\x8b" + bytes((method, flags)) + bytes(6) + fields + body + trailer


def zstd_frame(records: bytes = RECORDS, *, has_checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=has_checksum).compress(records)


def snappy_block(records: bytes = RECORDS) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(records))
    return struct.pack(">i", len(block)) + block


def snappy_header(version: bytes) -> bytes:
    return SNAPPY_HEADER[:8] + version


def flipped(data: bytes, at: int) -> bytes:
    """Return the data with one bit of a byte changed."""
    out = bytearray(data)
    out[at] ^= 1
    return bytes(out)


HEADER_CRC = struct.pack("<H", zlib.crc32(b"\x1f\x8b\x08\x02" + bytes(6)) & 0xFFFF)
CHECKED_ZSTD = zstd_frame(has_checksum=True)
RAW_SNAPPY = snappy_block()[4:]

FRAMES = {
    "lz4": Frame(LZ4, lz4_frame(), OK),
    "lz4 header checksum": Frame(LZ4, lz4_frame(header_sum=0x83), UNREADABLE),
    # As computed by the clients of magic 0.
    "lz4 header checksum with magic": Frame(
        LZ4, lz4_frame(header_sum=xxh32_intdigest(LZ4_MAGIC + b"\x60\x40") >> 8 & 0xFF), UNREADABLE
    ),
    "lz4 block checksums": Frame(LZ4, lz4_frame(flags=0x70), OK),
    "lz4 block checksums, stored": Frame(LZ4, lz4_frame(flags=0x70, is_stored=True), OK),
    "lz4 block checksum": Frame(LZ4, lz4_frame(flags=0x70, block_sum=1), UNREADABLE),
    "lz4 block checksum, stored": Frame(LZ4, lz4_frame(flags=0x70, block_sum=1, is_stored=True), UNREADABLE),
    "lz4 block checksum cut off": Frame(LZ4, lz4_frame(flags=0x70)[:-6], UNREADABLE),
    "lz4 content checksum": Frame(LZ4, lz4_frame(flags=0x64), OK),
    "lz4 content checksum missing": Frame(LZ4, lz4_frame(flags=0x64, content_sum=b""), UNREADABLE),
    "lz4 content checksum cut off": Frame(LZ4, lz4_frame(flags=0x64, content_sum=b"ab"), UNREADABLE),
    "lz4 content size": Frame(LZ4, lz4_frame(flags=0x68), OK),
    "lz4 another content size": Frame(LZ4, lz4_frame(flags=0x68, size=7), OK),
    "lz4 content size, header checksum": Frame(LZ4, flipped(lz4_frame(flags=0x68), 14), UNREADABLE),
    "lz4 end mark missing": Frame(LZ4, lz4_frame(end=b""), UNREADABLE),
    "lz4 end mark of a stored block": Frame(LZ4, lz4_frame(end=b"\0\0\0\x80"), OK),
    "lz4 stored": Frame(LZ4, lz4_frame(is_stored=True), OK),
    "lz4 version 0": Frame(LZ4, lz4_frame(flags=0x20), UNREADABLE),
    "lz4 dictionary": Frame(LZ4, lz4_frame(flags=0x61), UNREADABLE),
    "lz4 dependent blocks": Frame(LZ4, lz4_frame(flags=0x40), UNREADABLE),
    "lz4 reserved bit": Frame(LZ4, lz4_frame(descriptor=0x41), UNREADABLE),
    "lz4 block size": Frame(LZ4, lz4_frame(descriptor=0x30), UNREADABLE),
    "lz4 skippable frame first": Frame(LZ4, SKIPPABLE + lz4_frame(), UNREADABLE),
    "lz4 skippable frame last": Frame(LZ4, lz4_frame() + SKIPPABLE, OK, skipped=True),
    "lz4 two frames": Frame(LZ4, lz4_frame(FRONT) + lz4_frame(BACK), INVALID),
    "lz4 rest": Frame(LZ4, lz4_frame() + b"rest", OK, skipped=True),
    "lz4 nothing": Frame(LZ4, b"", UNREADABLE),
    "lz4 header alone": Frame(LZ4, lz4_frame()[:7], UNREADABLE),
    "gzip": Frame(GZIP, gzip_member(), OK),
    "gzip checksum": Frame(GZIP, gzip_member(crc=1), UNREADABLE),
    "gzip size": Frame(GZIP, gzip_member(size=1), UNREADABLE),
    "gzip cut off": Frame(GZIP, gzip_member()[:-3], UNREADABLE),
    "gzip extra field": Frame(GZIP, gzip_member(flags=4, fields=b"\5\0hello"), OK, skipped=True),
    "gzip name": Frame(GZIP, gzip_member(flags=8, fields=b"hello\0"), OK, skipped=True),
    "gzip comment": Frame(GZIP, gzip_member(flags=16, fields=b"hello\0"), OK, skipped=True),
    "gzip name in a later member": Frame(GZIP, gzip_member(FRONT) + gzip_member(BACK, 8, b"hello\0"), OK, skipped=True),
    "gzip header checksum": Frame(GZIP, gzip_member(flags=2, fields=HEADER_CRC), OK),
    "gzip another header checksum": Frame(GZIP, gzip_member(flags=2, fields=flipped(HEADER_CRC, 0)), UNREADABLE),
    "gzip method 7": Frame(GZIP, gzip_member(method=7), UNREADABLE),
    "gzip two members": Frame(GZIP, gzip_member(FRONT) + gzip_member(BACK), OK),
    "gzip two members, checksum": Frame(GZIP, gzip_member(FRONT) + gzip_member(BACK, crc=1), UNREADABLE),
    "gzip empty member": Frame(GZIP, gzip_member() + gzip_member(b""), OK),
    "gzip rest": Frame(GZIP, gzip_member() + b"rest" * 5, OK, skipped=True),
    "gzip rest like a member": Frame(GZIP, gzip_member() + b"\x1f\x8b", OK, skipped=True),
    "gzip rest like a damaged member": Frame(GZIP, gzip_member() + b"\x1f\x8b\x08" + bytes(30), UNREADABLE),
    "gzip zeros": Frame(GZIP, gzip_member() + bytes(40), OK, skipped=True),
    "gzip without a header": Frame(GZIP, zlib.compress(RECORDS), UNREADABLE),
    "gzip nothing": Frame(GZIP, b"", UNREADABLE),
    "zstd": Frame(ZSTD, zstd_frame(), OK),
    "zstd with checksum": Frame(ZSTD, CHECKED_ZSTD, OK),
    "zstd checksum": Frame(ZSTD, flipped(CHECKED_ZSTD, -1), UNREADABLE),
    "zstd checksum cut off": Frame(ZSTD, CHECKED_ZSTD[:-2], UNREADABLE),
    "zstd skippable frame first": Frame(ZSTD, SKIPPABLE + zstd_frame(), OK, skipped=True),
    "zstd skippable frame last": Frame(ZSTD, zstd_frame() + SKIPPABLE, OK, skipped=True),
    "zstd skippable frame alone": Frame(ZSTD, SKIPPABLE, INVALID, skipped=True),
    "zstd two frames": Frame(ZSTD, zstd_frame(FRONT) + zstd_frame(BACK), OK),
    "zstd rest": Frame(ZSTD, zstd_frame() + b"rest", UNREADABLE),
    "zstd cut off": Frame(ZSTD, zstd_frame()[:-3], UNREADABLE),
    "zstd content size": Frame(ZSTD, flipped(zstd_frame(), 5), UNREADABLE),
    "zstd nothing": Frame(ZSTD, b"", INVALID),
    "snappy": Frame(SNAPPY, SNAPPY_HEADER + snappy_block(), OK),
    "snappy raw": Frame(SNAPPY, RAW_SNAPPY, OK),
    "snappy version 0": Frame(SNAPPY, snappy_header(bytes(8)) + snappy_block(), OK, skipped=True),
    "snappy text as version": Frame(SNAPPY, snappy_header(b"anything") + snappy_block(), OK, skipped=True),
    "snappy two streams": Frame(SNAPPY, SNAPPY_HEADER + snappy_block(FRONT) + SNAPPY_HEADER + snappy_block(BACK), OK),
    "snappy two streams, text as version": Frame(
        SNAPPY,
        SNAPPY_HEADER + snappy_block(FRONT) + snappy_header(b"anything") + snappy_block(BACK),
        OK,
        skipped=True,
    ),
    "snappy rest": Frame(SNAPPY, SNAPPY_HEADER + snappy_block() + b"rest", UNREADABLE),
    "snappy rest of two bytes": Frame(SNAPPY, SNAPPY_HEADER + snappy_block() + b"re", OK, skipped=True),
    "snappy block of no bytes": Frame(SNAPPY, SNAPPY_HEADER + snappy_block() + bytes(4), UNREADABLE),
    "snappy block of -1 bytes": Frame(SNAPPY, SNAPPY_HEADER + snappy_block() + b"\xff" * 4, UNREADABLE),
    "snappy empty block": Frame(SNAPPY, SNAPPY_HEADER + snappy_block() + snappy_block(b""), OK),
    "snappy cut off": Frame(SNAPPY, SNAPPY_HEADER + snappy_block()[:-3], UNREADABLE),
    "snappy raw, rest": Frame(SNAPPY, RAW_SNAPPY + b"rest", UNREADABLE),
    "snappy header alone": Frame(SNAPPY, SNAPPY_HEADER, INVALID),
    "snappy header cut off": Frame(SNAPPY, SNAPPY_HEADER[:12], UNREADABLE),
    "snappy nothing": Frame(SNAPPY, b"", UNREADABLE),
}
