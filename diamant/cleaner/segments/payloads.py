"""Decompresses and compresses small batches, for whoever has thousands of them: with next to nothing but the codec's own work.

Decompressed are only frames as Kafka's clients write them for so little: one member of gzip, one block of snappy or lz4, one
frame of zstd. Whatever else there is, or is wrong, is left to `protocol.compression`, which takes all that Kafka takes, and whose
errors say why it does not. Importing this loads no codec.

Decompresses the batches of a chunk into one buffer, and compresses rebuilt ones, with codecs that are kept between batches.

Most batches are one small block. Those are decompressed without the checks by which `protocol.compression` bounds what
hostile bytes can do, because their output cannot be large; whatever does not fit or fails is left to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import cramjam
import numpy as np

from diamant.cleaner.segments.rebuilt_batch import Buffer, compress_like_kafka, new_zstd
from diamant.protocol.batches import compression
from diamant.protocol.batches.compression import LZ4_END_MARK, LZ4_HEADER, LZ4_STORED, SNAPPY_HEADER, ZSTD_MAX_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from zstandard import ZstdDecompressor

    from diamant.cleaner.segments.rebuilt_batch import Buffer

MAX_BYTES = 64 * 1024
"""Of records, compressed or not."""

Unpack: TypeAlias = Callable[[bytes], "bytes | None"]

_SNAPPY = Struct(">16si")
_LZ4 = Struct("<7sI")
_ZSTD_WINDOW_DESCRIPTOR = (27 - 10) << 3
"""Of `ZSTD_MAX_WINDOW`."""
_ZSTD_RUN = 1
"""A kind of block: one byte, repeated."""
_ZSTD_ROOMS = (1024, MAX_BYTES)
"""A buffer of the one size is quick to get, the other is for what does not fit."""


class SmallPayloads:
    """Owned by one thread. Memory: `MAX_BYTES`, and contexts of zstd once there was a batch with that codec."""

    def __init__(self) -> None:
        self._by_codec: dict[int, Unpack] = {}
        self._pack_zstd: Callable[[Buffer], bytes] | None = None

    def unpack(self, codec: int, data: bytes) -> bytes | None:
        """Return what `data` holds, as `compression.decompress` does; None if it is not as small or as simple as that."""
        if len(data) > MAX_BYTES:
            return None
        unpack = self._by_codec.get(codec)
        if unpack is None:
            new = _CODECS.get(codec)
            if new is None:
                return None
            unpack = self._by_codec[codec] = new()
        return unpack(data)

    def pack(self, codec: int, data: Buffer) -> bytes:
        """Return records compressed as `compress_like_kafka` does it; they may be large."""
        if codec != compression.ZSTD:
            return compress_like_kafka(codec, data)
        if self._pack_zstd is None:
            self._pack_zstd = new_zstd()
        return self._pack_zstd(data)


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
    import zstandard

    decompress = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW).decompress
    size_of, error = zstandard.frame_content_size, zstandard.ZstdError

    def unpack(data: bytes) -> bytes | None:
        if not is_one_zstd_frame(data):
            return None
        for room in _ZSTD_ROOMS:
            try:
                # A size that the frame declares is allocated, however much it is.
                if size_of(data) > MAX_BYTES:
                    return None
                return decompress(data, max_output_size=room, allow_extra_data=False)
            except error:
                continue
        return None

    return unpack


def is_one_zstd_frame(data: bytes | memoryview) -> bool:
    """Tell whether there is nothing behind a frame, and no reader refuses its window; of bytes that are no frame anything.

    zstandard itself passes over what is behind a frame that does not declare its size, whatever it is told.
    """
    try:
        descriptor = data[4]
        is_single_segment = descriptor >> 5 & 1
        if not is_single_segment and data[5] > _ZSTD_WINDOW_DESCRIPTOR:
            return False
        at = 6 - is_single_segment + (0, 1, 2, 4)[descriptor & 3] + (is_single_segment, 2, 4, 8)[descriptor >> 6]
        is_last = 0
        while not is_last:
            block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            is_last = block & 1
            at += 4 if block >> 1 & 3 == _ZSTD_RUN else 3 + (block >> 3)
        return at + (descriptor & 4) == len(data)
    except IndexError:
        return False


_CODECS: Mapping[int, Callable[[], Unpack]] = {
    compression.GZIP: _gzip,
    compression.SNAPPY: _snappy,
    compression.LZ4: _lz4,
    compression.ZSTD: _zstd,
}


SMALL_BYTES = 64 * 1024
"""The greatest output of the short way for lz4, whose blocks of that size Kafka's clients write, and at first for zstd."""
MAX_ZSTD_ROOM = 1024 * 1024
"""The greatest output of the short way for zstd, once there were larger ones than `SMALL_BYTES`."""

_LZ4_PREFIX = Struct("<7sI")
_LZ4_BLOCK = _LZ4_PREFIX.size
_LZ4_LEAST = _LZ4_BLOCK + 4
_INT32 = Struct("<i")


class Unpacker:
    """Owned by one thread. The buffer grows to hold what is asked for between two calls of `clear`."""

    def __init__(self) -> None:
        self.buffer = np.empty(4 * SMALL_BYTES, np.uint8)
        """The kernels' `unpacked`."""
        self.at = 0
        """Bytes in use."""
        self._view = self.buffer.data
        self._zstd_room = SMALL_BYTES
        self._decompress_block_into = cramjam.lz4.decompress_block_into
        self._compress_block = cramjam.lz4.compress_block
        self._zstd_decompressor: ZstdDecompressor | None = None
        self._pack_zstd: Callable[[Buffer], bytes] | None = None

    def clear(self) -> None:
        """Begin anew at the front of the buffer."""
        self.at = 0

    def append(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Copy bytes behind those in use; return (start, end)."""
        start = self.at
        end = start + len(data)
        self.reserve(len(data))
        self._view[start:end] = data
        self.at = end
        return start, end

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes behind those in use, which stay."""
        if self.at + size > len(self.buffer):
            larger = np.empty(max(2 * len(self.buffer), self.at + size), np.uint8)
            larger[: self.at] = self.buffer[: self.at]
            self.buffer = larger
            self._view = larger.data

    def unpack(self, codec: int, data: memoryview, max_bytes: int, *, ignores_rest: bool = True) -> tuple[int, int]:
        """Decompress a batch's records behind the bytes in use; return (start, end). CorruptBatch as `decompress` has it."""
        if max_bytes < MAX_ZSTD_ROOM:
            pass
        elif codec == compression.LZ4:
            size = self._unpack_lz4(data)
            if size >= 0:
                self.at += size
                return self.at - size, self.at
        elif codec == compression.ZSTD:
            plain = self._unpack_zstd(data)
            if plain is None:
                plain = compression.decompress(codec, data, max_bytes=max_bytes)
                while self._zstd_room < min(len(plain), MAX_ZSTD_ROOM):
                    self._zstd_room *= 2
            return self.append(plain)
        return self.append(compression.decompress(codec, data, max_bytes=max_bytes, ignores_rest=ignores_rest))

    def _unpack_lz4(self, data: memoryview) -> int:
        """Decompress a frame of one compressed block, as Kafka's clients write it; return the size, -1 if it is another."""
        count = len(data)
        if count < _LZ4_LEAST:
            return -1
        header, size = _LZ4_PREFIX.unpack_from(data)
        if header != LZ4_HEADER or size + _LZ4_LEAST != count or _INT32.unpack_from(data, count - 4)[0]:
            return -1
        self.reserve(SMALL_BYTES)
        try:
            return int(
                self._decompress_block_into(
                    data[_LZ4_BLOCK : count - 4],
                    self._view[self.at : self.at + SMALL_BYTES],
                    output_len=SMALL_BYTES,
                )
            )
        except cramjam.DecompressionError:
            return -1

    def _unpack_zstd(self, data: memoryview) -> bytes | None:
        """Decompress a single frame; None if it is anything else, or large."""
        import zstandard

        if self._zstd_decompressor is None:
            self._zstd_decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
        try:
            if zstandard.frame_content_size(data) > self._zstd_room or not is_one_zstd_frame(data):
                return None
            return self._zstd_decompressor.decompress(data, max_output_size=self._zstd_room, allow_extra_data=False)
        except zstandard.ZstdError:
            return None

    def pack(self, codec: int, data: memoryview) -> bytes:
        """Return records compressed as `compress_like_kafka` does."""
        if codec == compression.LZ4 and len(data) <= SMALL_BYTES:
            block = self._compress_block(data, store_size=False)
            if len(block) < len(data):
                return b"".join((_LZ4_PREFIX.pack(LZ4_HEADER, len(block)), block, LZ4_END_MARK))
        if codec != compression.ZSTD:
            return compress_like_kafka(codec, data)
        if self._pack_zstd is None:
            self._pack_zstd = new_zstd()
        return self._pack_zstd(data)
