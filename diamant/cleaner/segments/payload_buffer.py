"""Decompresses the batches of a chunk into one buffer, and compresses rebuilt batches. Codecs are reused between batches.

Most batches are one small block, which a fast path decompresses. It omits the checks of `protocol.batches.compression` against
hostile input, because its output cannot be large. Batches that are larger, or at which it fails, are left to that module.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import cramjam

from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka, new_zstd
from diamant.kernels import numbers
from diamant.protocol.batches import compression
from diamant.protocol.batches.compression import LZ4_END_MARK, LZ4_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.cleaner.segments.rebuilt_batch import Buffer

SMALL_BYTES = 64 * 1024
"""Output limit of the fast path for lz4: the block size that Kafka's clients use."""
MAX_ZSTD_BYTES = 1024 * 1024
"""Output limit of the fast path for zstd."""

_LZ4_PREFIX = Struct("<7sI")
_LZ4_BLOCK = _LZ4_PREFIX.size
_LZ4_LEAST = _LZ4_BLOCK + 4
_INT32 = Struct("<i")


class Unpacker:
    """A buffer for payloads, owned by one thread. It grows so that it holds everything appended since the last `clear`."""

    def __init__(self) -> None:
        self.buffer = numbers("B", 4 * SMALL_BYTES)
        """The buffer, which kernels take as `unpacked`. A larger buffer replaces it when it is full."""
        self.at = 0
        """Number of bytes in use."""
        self._decompress_block_into = cramjam.lz4.decompress_block_into
        self._compress_block_into = cramjam.lz4.compress_block_into
        self._read_zstd: Callable[[bytes], bytes | None] | None = None
        self._pack_zstd: Callable[[Buffer], bytes] | None = None

    def clear(self) -> None:
        """Empty the buffer."""
        self.at = 0

    def append(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Append a copy of `data`; return its (start, end)."""
        start = self.at
        end = start + len(data)
        self.reserve(len(data))
        self.buffer[start:end] = data
        self.at = end
        return start, end

    def reserve(self, size: int) -> None:
        """Make room for `size` more bytes; the bytes in use are kept."""
        if self.at + size > len(self.buffer):
            larger = numbers("B", max(2 * len(self.buffer), self.at + size))
            larger[: self.at] = self.buffer[: self.at]
            self.buffer = larger

    def unpack(self, codec: int, data: memoryview, max_bytes: int, *, may_skip: bool = True) -> tuple[int, int]:
        """Append a batch's decompressed records; return their (start, end). Raises CorruptBatch like `compression.decompress`."""
        if max_bytes < MAX_ZSTD_BYTES:
            pass
        elif codec == compression.LZ4:
            size = self._unpack_lz4(data)
            if size >= 0:
                self.at += size
                return self.at - size, self.at
        elif codec == compression.ZSTD:
            plain = self._unpack_zstd(bytes(data))
            if plain is not None:
                return self.append(plain)
        return self.append(compression.decompress(codec, data, max_bytes=max_bytes, may_skip=may_skip))

    def _unpack_lz4(self, data: memoryview) -> int:
        """Decompress a frame of one compressed block, as Kafka's clients write; return the size, or -1 for other frames."""
        count = len(data)
        if count < _LZ4_LEAST:
            return -1
        header, size = _LZ4_PREFIX.unpack_from(data)
        if header != LZ4_HEADER or size + _LZ4_LEAST != count or _INT32.unpack_from(data, count - 4)[0]:
            return -1
        if self.at + SMALL_BYTES > len(self.buffer):
            self.reserve(SMALL_BYTES)
        try:
            return int(
                self._decompress_block_into(
                    data[_LZ4_BLOCK : count - 4],
                    self.buffer[self.at : self.at + SMALL_BYTES],
                    output_len=SMALL_BYTES,
                )
            )
        except cramjam.DecompressionError:
            return -1

    def _unpack_zstd(self, data: bytes) -> bytes | None:
        """Decompress a single frame with a small output; return None for anything else."""
        if self._read_zstd is None:
            from diamant.protocol.batches.zstd_frames import frame_reader

            self._read_zstd = frame_reader(MAX_ZSTD_BYTES)
        return self._read_zstd(data)

    def pack(self, codec: int, data: memoryview) -> tuple[int, int]:
        """Append records compressed as by `compress_like_kafka`; return their (start, end)."""
        if codec == compression.LZ4 and len(data) <= SMALL_BYTES:
            start = self.at
            self.reserve(2 * len(data) + _LZ4_LEAST + 64)
            size = self._compress_block_into(data, self.buffer[start + _LZ4_BLOCK :], store_size=False)
            if size < len(data):
                _LZ4_PREFIX.pack_into(self.buffer, start, LZ4_HEADER, size)
                end = self.at = start + _LZ4_LEAST + size
                self.buffer[end - 4 : end] = LZ4_END_MARK
                return start, end
        if codec != compression.ZSTD:
            return self.append(compress_like_kafka(codec, data))
        if self._pack_zstd is None:
            self._pack_zstd = new_zstd()
        return self.append(self._pack_zstd(data))
