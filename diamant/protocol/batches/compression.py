"""The four compression codecs of record batches. They process whole payloads, and limit the decompressed size.

    id  codec   bytes on the wire
     1  gzip    RFC 1952 members; bytes after the last member are ignored, as in Java
     2  snappy  header 82 'SNAPPY' 00, int32 version 1, int32 compatible version 1, then blocks of
                int32 compressed length + raw snappy (from at most 32 KiB of input); a single raw
                block without header and length is accepted, too
     3  lz4     one LZ4 frame with independent blocks: 04224d18, FLG, BD, [content size], HC,
                blocks of uint32 size (top bit: stored) + bytes [+ xxh32], 0, [xxh32 of the content];
                as in Kafka, HC and the xxh32 of each block are verified, the content's size and xxh32
                are not, and bytes after the frame are ignored
     4  zstd    frames of RFC 8878; skippable frames are skipped

Integers are big-endian in snappy's framing, little-endian in lz4's and zstd's. `compress` writes the framing of Kafka's client,
for lz4 FLG 0x60 and BD 0x40 (64 KiB blocks, no checksums), hence HC 0x82.

Bounds: `decompress` returns at most `max_bytes`. Besides input and output it holds one lz4 block (at most 4 MiB) or zstd's window
(at most 128 MiB). Before it allocates memory for a declared size, it checks that the compressed data can yield that size. Codecs
are imported on first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NoReturn, TypeAlias

from diamant.protocol.errors import CorruptBatch, DecompressionBomb

Buffer: TypeAlias = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Default limit on the decompressed size of one batch."""

DEFAULT_GZIP_LEVEL = -1
DEFAULT_LZ4_LEVEL = 9
DEFAULT_ZSTD_LEVEL = 3

_GZIP_START = b"\x1f\x8b\x08"
_GZIP_FLAGS = 3
"""Position of the flags in a gzip header."""
_GZIP_SKIPPED = 0x1C
"""Flags of the header fields with arbitrary content: extra field, name and comment."""
_GZIP_LEAST = 19
"""With fewer bytes after a member, Java does not look for another member (`GZIPInputStream.readTrailer`)."""

_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
SNAPPY_HEADER = _SNAPPY_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_SNAPPY_BLOCK_SIZE = 32 * 1024
# The densest element is a copy: three bytes that yield up to 64.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
"""The frame header that Kafka's clients write: independent blocks of at most 64 KiB."""
_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
LZ4_STORED = 0x80000000
"""Flag in a block's size field: the block is not compressed."""
LZ4_END_MARK = b"\x00\x00\x00\x00"

_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # follows a byte from 50 to 5f
_ZSTD_MAX_BLOCK = 128 * 1024

_INT32_BE = Struct(">i")
_UINT32_LE = Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` with `codec`, by default at the codec's default level. Raises ValueError unless `codec` is 0 to 4.

    The levels are Kafka's: gzip 1 to 9 or -1; lz4 1 to 17, where 9 selects the fast compressor and all others select the
    high-compression one (`Lz4Compression`); zstd -131072 to 22. The codecs none and snappy ignore the level.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        compressor = zlib.compressobj(DEFAULT_GZIP_LEVEL if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, DEFAULT_LZ4_LEVEL if level is None else level)
    if codec == ZSTD:
        from diamant.protocol.batches.zstd_frames import zstd

        return zstd.compress(data, DEFAULT_ZSTD_LEVEL if level is None else level)
    raise ValueError(f"codec is {codec}, expected 0 to 4")


def decompress(
    codec: int,
    data: Buffer,
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    may_skip: bool = True,
    checks_lz4_header: bool = True,
) -> bytes:
    """Decompress `data` with `codec` to at most `max_bytes` bytes.

    Raises CorruptBatch if the framing is invalid or cut off, if a checksum is wrong, or if `codec` is not 0 to 4, and
    DecompressionBomb if the result has more than `max_bytes`. The positions in both errors count from the start of `data`. If
    `may_skip` is False, also raises CorruptBatch for parts that readers usually skip: bytes after the end of gzip, snappy or lz4
    data; an extra field, name or comment in a gzip header; another version in a snappy header; zstd's skippable frames. Set
    `checks_lz4_header` to False for magic 0: Kafka ignores HC there, because clients computed it over the frame's magic, too.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            _too_large(0, max_bytes)
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, max_bytes, may_skip)
    if codec == SNAPPY:
        return _decompress_snappy(data, max_bytes, may_skip)
    if codec == LZ4:
        return _decompress_lz4(data, max_bytes, may_skip, checks_lz4_header)
    if codec == ZSTD:
        return _decompress_zstd(data, max_bytes, may_skip)
    raise CorruptBatch(0, f"compression codec is {codec}, expected 0 to {ZSTD}")


def _too_large(position: int, max_bytes: int) -> NoReturn:
    raise DecompressionBomb(position, f"records decompress to more than {max_bytes} bytes")


def _check_end(name: str, position: int, end: int, may_skip: bool) -> None:
    if position < end and not may_skip:
        raise CorruptBatch(position, f"{name}: {end - position} bytes are left after the end of the compressed data")


def _check_skipped(position: int, what: str, may_skip: bool) -> None:
    if not may_skip:
        raise CorruptBatch(position, f"{what}, which readers skip")


# -- gzip ------------------------------------------------------------------------------------------------------------


def _decompress_gzip(data: Buffer, max_bytes: int, may_skip: bool) -> bytes:
    pieces: list[bytes] = []
    total = 0
    rest: Buffer = data
    while True:
        position = len(data) - len(rest)
        if len(rest) > _GZIP_FLAGS and rest[_GZIP_FLAGS] & _GZIP_SKIPPED:
            _check_skipped(position, "gzip: the header has an extra field, a name or a comment", may_skip)
        member = zlib.decompressobj(31)
        try:
            # Ask for one byte more than allowed, to distinguish "full" from "too large".
            piece = member.decompress(rest, max_bytes - total + 1)
        except zlib.error as error:
            raise CorruptBatch(position, f"gzip: {error}") from None
        total += len(piece)
        if total > max_bytes:
            _too_large(position, max_bytes)
        if not member.eof:
            raise CorruptBatch(len(data), "gzip: the data is cut off")
        pieces.append(piece)
        rest = member.unused_data
        if rest[:3] != _GZIP_START or len(rest) < _GZIP_LEAST:
            _check_end("gzip", len(data) - len(rest), len(data), may_skip)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# -- snappy ----------------------------------------------------------------------------------------------------------


def _compress_snappy(data: Buffer) -> bytes:
    from cramjam import snappy

    out = bytearray(SNAPPY_HEADER)
    with memoryview(data) as view:
        for start in range(0, len(view), _SNAPPY_BLOCK_SIZE):
            block = bytes(snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_SIZE]))
            out += _INT32_BE.pack(len(block))
            out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, max_bytes: int, may_skip: bool) -> bytes:
    data = bytes(data)
    if not data.startswith(_SNAPPY_MAGIC):
        return _decompress_snappy_block(data, 0, max_bytes, max_bytes)
    pieces: list[bytes] = []
    total = 0
    position = 0
    if len(data) < len(SNAPPY_HEADER):
        raise CorruptBatch(0, f"snappy: a stream header has {len(SNAPPY_HEADER)} bytes, only {len(data)} are left")
    while position < len(data):
        # Several streams may be concatenated (snappy-java's SnappyInputStream).
        if data.startswith(_SNAPPY_MAGIC, position):
            if not data.startswith(SNAPPY_HEADER, position):
                _check_skipped(position, "snappy: a stream header declares another version", may_skip)
            position += len(SNAPPY_HEADER)
            continue
        start = position + 4
        if start > len(data):
            _check_end("snappy", position, len(data), may_skip)
            break
        size: int = _INT32_BE.unpack_from(data, position)[0]
        if not 0 < size <= len(data) - start:
            raise CorruptBatch(position, f"snappy: a block of {size} bytes, but {len(data) - start} are left")
        position = start + size
        piece = _decompress_snappy_block(data[start:position], start, max_bytes - total, max_bytes)
        total += len(piece)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress_snappy_block(block: bytes, position: int, room: int, max_bytes: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > len(block) * _SNAPPY_MAX_RATIO:
            raise CorruptBatch(position, f"snappy: a block of {len(block)} bytes cannot hold the declared {size} bytes")
        if size > room:
            _too_large(position, max_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(position, str(error)) from None


# -- lz4 -------------------------------------------------------------------------------------------------------------


def _compress_lz4(data: Buffer, level: int) -> bytes:
    from cramjam import lz4

    # The mode is given explicitly because the level applies only to high compression.
    options: dict[str, Any] = {} if level == DEFAULT_LZ4_LEVEL else {"mode": "high_compression", "compression": level}
    block_size = _LZ4_BLOCK_SIZES[4]
    out = bytearray(LZ4_HEADER)
    with memoryview(data) as view:
        for start in range(0, len(view), block_size):
            plain = view[start : start + block_size]
            block = bytes(lz4.compress_block(plain, store_size=False, **options))
            if len(block) < len(plain):
                out += _UINT32_LE.pack(len(block))
                out += block
            else:
                out += _UINT32_LE.pack(len(plain) | LZ4_STORED)
                out += plain
    out += LZ4_END_MARK
    return bytes(out)


def _decompress_lz4(data: Buffer, max_bytes: int, may_skip: bool, checks_header: bool) -> bytes:
    import cramjam

    data = bytes(data)
    position, block_size, checksum_size = _read_lz4_header(data, checks_header)
    scratch = bytearray(block_size)
    out = bytearray()
    view = memoryview(data)
    end = len(data)
    while True:
        if position + 4 > end:
            raise CorruptBatch(position, "lz4: the frame is cut off before its end mark")
        size: int = _UINT32_LE.unpack_from(data, position)[0]
        position += 4
        is_stored = size & LZ4_STORED
        size &= ~LZ4_STORED
        if size == 0:
            # A content checksum may follow. Like Kafka, skip it without checking it.
            position += data[4] & 0x04
            if position > end:
                raise CorruptBatch(position, "lz4: the frame is cut off before its content checksum")
            _check_end("lz4", position, end, may_skip)
            return bytes(out)
        checksum_end = position + size + checksum_size
        if size > block_size:
            raise CorruptBatch(position, f"lz4: a block of {size} bytes exceeds the frame's maximum of {block_size}")
        if checksum_end > end:
            raise CorruptBatch(position, f"lz4: a block of {size} bytes, but {end - position} are left")
        block = view[position : position + size]
        if checksum_size and _xxh32(block) != _UINT32_LE.unpack_from(data, position + size)[0]:
            raise CorruptBatch(position, f"lz4: the checksum of a block of {size} bytes is wrong")
        try:
            count = size if is_stored else cramjam.lz4.decompress_block_into(block, scratch, output_len=block_size)
        except cramjam.DecompressionError as error:
            raise CorruptBatch(position, f"lz4: {error}") from None
        if len(out) + count > max_bytes:
            _too_large(position, max_bytes)
        out += block if is_stored else memoryview(scratch)[:count]
        position = checksum_end


def _read_lz4_header(data: bytes, checks_header: bool) -> tuple[int, int, int]:
    """Return (position of the first block, maximum size of a block, size of each block's checksum).

    Source: `Lz4BlockInputStream.readHeader`.
    """
    if data.startswith(LZ4_HEADER):
        return len(LZ4_HEADER), _LZ4_BLOCK_SIZES[4], 0
    if len(data) < len(LZ4_HEADER):
        raise CorruptBatch(0, f"lz4: a frame header has at least {len(LZ4_HEADER)} bytes, only {len(data)} are left")
    if not data.startswith(_LZ4_MAGIC):
        raise CorruptBatch(0, f"lz4: the frame begins with {data[:4].hex()}, expected {_LZ4_MAGIC.hex()}")
    flags, descriptor = data[4], data[5]
    if flags >> 6 != 1:
        raise CorruptBatch(4, f"lz4: frame version is {flags >> 6}, expected 1")
    if flags & 0x03 or descriptor & 0x8F:
        raise CorruptBatch(4, f"lz4: reserved bits are set in FLG {flags:#04x}, BD {descriptor:#04x}")
    if not flags & 0x20:
        raise CorruptBatch(4, "lz4: blocks depend on each other, expected independent blocks")
    block_size = _LZ4_BLOCK_SIZES.get(descriptor >> 4)
    if block_size is None:
        raise CorruptBatch(5, f"lz4: block size id is {descriptor >> 4}, expected 4 to 7")
    end = len(LZ4_HEADER) + (8 if flags & 0x08 else 0)
    if len(data) < end:
        raise CorruptBatch(0, f"lz4: this frame header has {end} bytes, only {len(data)} are left")
    if checks_header and data[end - 1] != (checksum := _xxh32(data[4 : end - 1]) >> 8 & 0xFF):
        raise CorruptBatch(
            end - 1, f"lz4: the frame header's checksum is {data[end - 1]:#04x}, expected {checksum:#04x}"
        )
    return end, block_size, 4 if flags & 0x10 else 0


def _xxh32(data: Buffer) -> int:
    from xxhash import xxh32_intdigest

    return xxh32_intdigest(data)


# -- zstd ------------------------------------------------------------------------------------------------------------


def _decompress_zstd(data: Buffer, max_bytes: int, may_skip: bool) -> bytes:
    from diamant.protocol.batches.zstd_frames import read_declared, zstd

    data = bytes(data)
    pieces: list[bytes] = []
    total = 0
    for start, end, greatest in _iter_zstd_frames(data, may_skip):
        room = max_bytes - total
        frame = data if end - start == len(data) else data[start:end]
        try:
            declared = zstd.get_frame_info(frame).decompressed_size
            if declared is not None and declared > greatest:
                raise CorruptBatch(
                    start, f"zstd: a frame declares {declared} bytes, but its blocks hold at most {greatest}"
                )
            piece = None
            if declared is not None and declared <= room:
                piece = read_declared(frame, declared)
            if piece is None:  # If the frame is corrupt, this raises an error with the reason.
                piece = zstd.ZstdDecompressor().decompress(frame, room + 1)
        except zstd.ZstdError as error:
            raise CorruptBatch(start, f"zstd: {error}") from None
        total += len(piece)
        if total > max_bytes:
            _too_large(start, max_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _iter_zstd_frames(data: bytes, may_skip: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, maximum possible content size) of every data frame, reading only frame and block headers.

    Raises CorruptBatch if a frame is cut off; streaming readers mistake a truncated frame for the end of the data. With the
    maximum, a caller can decompress a frame in one call without trusting the size that it declares.
    """
    from diamant.protocol.batches.zstd_frames import ZSTD_MAGIC

    position = 0
    end = len(data)
    try:
        while position < end:
            start = position
            if data[start + 1 : start + 4] == _ZSTD_SKIPPABLE_MAGIC and data[start] >> 4 == 5:
                size: int = _UINT32_LE.unpack_from(data, start + 4)[0]
                position = start + 8 + size
                if position > end:
                    raise CorruptBatch(start, f"zstd: a skippable frame of {size} bytes is cut off")
                _check_skipped(start, f"zstd: a skippable frame of {size} bytes", may_skip)
                continue
            if not data.startswith(ZSTD_MAGIC, start):
                raise CorruptBatch(start, f"zstd: expected the start of a frame, got {data[start : start + 4].hex()}")
            descriptor = data[start + 4]
            is_single_segment = descriptor >> 5 & 1
            dictionary_id_size = (0, 1, 2, 4)[descriptor & 3]
            content_size_size = (is_single_segment, 2, 4, 8)[descriptor >> 6]
            position = start + 5 + (1 - is_single_segment) + dictionary_id_size + content_size_size
            greatest = 0
            is_last = 0
            while not is_last:
                block = data[position] | data[position + 1] << 8 | data[position + 2] << 16
                is_last = block & 1
                kind = block >> 1 & 3
                size = block >> 3
                if kind == 1:  # one byte, repeated
                    position += 4
                    greatest += size
                else:
                    position += 3 + size
                    greatest += size if kind == 0 else _ZSTD_MAX_BLOCK
            if descriptor & 4:
                position += 4
            if position > end:
                raise CorruptBatch(start, f"zstd: the frame is cut off after {end - start} bytes")
            yield start, position, greatest
    except (IndexError, struct_error):
        raise CorruptBatch(end, "zstd: the data is cut off") from None
