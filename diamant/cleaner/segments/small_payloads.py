"""Decompresses and compresses small batches by the thousand, at little more than the cost of the codec itself.

It decompresses only the frames that Kafka's clients write for small batches: one gzip member, one snappy or lz4 block, one
zstd frame. `protocol.batches.compression` handles all other frames: it accepts everything that Kafka accepts, and its errors
say why a frame is invalid. Importing this module loads no codec.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TypeAlias

from diamant.cleaner.segments.rebuilt_batch import Buffer, compress_like_kafka, new_zstd
from diamant.protocol.batches import compression
from diamant.protocol.batches.compression import LZ4_END_MARK, LZ4_HEADER, LZ4_STORED, SNAPPY_HEADER

MAX_BYTES = 64 * 1024
"""Size limit of a batch's records, both compressed and decompressed."""

Unpack: TypeAlias = Callable[[bytes], "bytes | None"]

_SNAPPY = Struct(">16si")
_LZ4 = Struct("<7sI")


class SmallPayloads:
    """The codecs of one thread. Memory: `MAX_BYTES` for each codec in use, and zstd contexts after the first batch with zstd."""

    def __init__(self) -> None:
        self._by_codec: dict[int, Unpack] = {}
        self._pack_zstd: Callable[[Buffer], bytes] | None = None

    def unpack(self, codec: int, data: bytes) -> bytes | None:
        """Decompress `data` as `compression.decompress` does; return None if it is not small or simple enough."""
        return self.unpacker(codec)(data) if len(data) <= MAX_BYTES else None

    def unpacker(self, codec: int) -> Unpack:
        """Return `unpack` for one codec and at most `MAX_BYTES` of input. Using it in a loop saves two calls for each batch."""
        unpack = self._by_codec.get(codec)
        if unpack is None:
            unpack = self._by_codec[codec] = _CODECS.get(codec, _none)()
        return unpack

    def pack(self, codec: int, data: Buffer) -> bytes:
        """Compress records of any size, as `compress_like_kafka` does."""
        if codec != compression.ZSTD:
            return compress_like_kafka(codec, data)
        if self._pack_zstd is None:
            self._pack_zstd = new_zstd()
        return self._pack_zstd(data)


def _none() -> Unpack:
    def unpack(_data: bytes) -> None:
        return None

    return unpack


def _gzip() -> Unpack:
    new = zlib.decompressobj

    def unpack(data: bytes) -> bytes | None:
        member = new(31)
        try:
            plain = member.decompress(data, MAX_BYTES)
        except zlib.error:
            return None
        return plain if member.eof and not member.unused_data else None

    return unpack


def _snappy() -> Unpack:
    from cramjam import DecompressionError, snappy

    size_of, decompress = snappy.decompress_raw_len, snappy.decompress_raw

    def unpack(data: bytes) -> bytes | None:
        if len(data) <= _SNAPPY.size:
            return None
        header, size = _SNAPPY.unpack_from(data)
        if header != SNAPPY_HEADER or size + _SNAPPY.size != len(data):
            return None
        block = data[_SNAPPY.size :]
        try:
            return bytes(decompress(block)) if size_of(block) <= MAX_BYTES else None
        except DecompressionError:
            return None

    return unpack


def _lz4() -> Unpack:
    from cramjam import DecompressionError, lz4

    decompress = lz4.decompress_block_into
    room = bytearray(MAX_BYTES)
    view = memoryview(room)

    def unpack(data: bytes) -> bytes | None:
        if len(data) < _LZ4.size + len(LZ4_END_MARK):
            return None
        header, size = _LZ4.unpack_from(data)
        end = len(data) - len(LZ4_END_MARK)
        if header != LZ4_HEADER or (size & ~LZ4_STORED) + _LZ4.size != end or data[end:] != LZ4_END_MARK:
            return None
        block = data[_LZ4.size : end]
        if size & LZ4_STORED:
            return block
        try:
            return bytes(view[: decompress(block, room, output_len=MAX_BYTES)])
        except DecompressionError:
            return None

    return unpack


def _zstd() -> Unpack:
    from diamant.protocol.batches.zstd_frames import frame_reader

    return frame_reader(MAX_BYTES)


_CODECS: Mapping[int, Callable[[], Unpack]] = {
    compression.GZIP: _gzip,
    compression.SNAPPY: _snappy,
    compression.LZ4: _lz4,
    compression.ZSTD: _zstd,
}
