"""Walks over a segment's batch headers to the next batch with a producer."""

import cython
from cython.cimports.diamant.kernels.constants import fields
from cython.cimports.diamant.kernels.processor import load_big32, load_big64
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t
from cython.cimports.posix.unistd import pread

WINDOW_BYTES = cython.declare(cython.int, 4096)


def skip_without_producer(fd: cython.int, position: int64_t, end: int64_t, end_offset: int64_t) -> int:
    """Skip whole batches of magic 2 without a producer, beginning at `position`; return the position after them.

    The result is `end`, or the position of a batch that has a producer or another magic, is torn, damaged or unreadable, or
    begins at or above `end_offset`.
    """
    window = cython.declare(uint8_t[4096])
    start: int64_t = position
    size: int64_t = 0
    length: int64_t = 0
    header: cython.pointer(uint8_t)
    with cython.nogil:
        while position < end:
            if position + fields.HEADER_BYTES > start + size:
                start = position
                # After a large batch, read one header; after a small batch, read the headers of many batches.
                size = pread(fd, window, fields.HEADER_BYTES if length > WINDOW_BYTES else WINDOW_BYTES, position)
                if size < fields.HEADER_BYTES:
                    break
            header = window + (position - start)
            length = 12 + cython.cast(int64_t, cython.cast(int32_t, load_big32(header + 8)))
            if (
                header[16] != 2
                or length < fields.HEADER_BYTES
                or length > end - position
                or cython.cast(int64_t, load_big64(header)) >= end_offset
                or cython.cast(int64_t, load_big64(header + 43)) >= 0
            ):
                break
            position += length
    return position
