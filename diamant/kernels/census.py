"""Counts a segment's batches, records and bytes from its batch headers, independently of the scan's kernels."""

import cython
from cython.cimports.diamant.kernels.processor import load_big32
from cython.cimports.libc.errno import errno
from cython.cimports.libc.stdint import int8_t, int32_t, int64_t, uint8_t
from cython.cimports.posix.unistd import pread


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def fill(fd: cython.int, window: cython.pointer(uint8_t), count: int64_t, position: int64_t) -> int64_t:
    """Read up to `count` bytes at `position`; return their number, or -1 if an error occurs."""
    found: int64_t = 0
    got: int64_t = 0
    while found < count:
        got = pread(fd, window + found, count - found, position + found)
        if got <= 0:
            break
        found += got
    return -1 if got < 0 else found


def count_headers(
    fd: cython.int, end: int64_t, max_batch_bytes: int64_t, amounts: int64_t[:, ::1]
) -> tuple[int64_t, cython.int]:
    """Add up the amounts that the batch headers of a file declare, up to byte `end`; return (position, errno).

    `amounts`: int64[16, 3] of batches, records and bytes by codec; rows from 8 on are for magic 0 and 1. `position` is `end`, or
    the first position at which no whole batch of at most `max_batch_bytes` begins. errno is 0 if no error occurred.
    """
    window = cython.declare(uint8_t[4096])
    start: int64_t = 0
    size: int64_t = 0
    position: int64_t = 0
    left: int64_t
    length: int64_t = 0
    magic: int64_t
    row: int64_t
    header: cython.pointer(uint8_t)
    with cython.nogil:
        while position < end:
            if position + 61 > start + size:
                start = position
                # After a large batch, read one header; after a small batch, read the headers of many batches.
                size = fill(fd, window, min(64 if length > 1024 else 4096, end - position), position)
                if size < 0:
                    break
            left = start + size - position
            if left < 26:
                break
            header = window + (position - start)
            length = cython.cast(int64_t, cython.cast(int32_t, load_big32(header + 8))) + 12
            magic = cython.cast(int8_t, header[16])
            if magic < 0 or magic > 2 or length > end - position or length > max_batch_bytes:
                break
            if length < (61 if magic == 2 else 26) or (magic == 2 and left < 61):
                break
            row = (header[22] & 7) if magic == 2 else 8 + (header[17] & 7)
            amounts[row, 0] += 1
            if magic == 2:
                amounts[row, 1] += cython.cast(int32_t, load_big32(header + 57))
            amounts[row, 2] += length
            position += length
    return position, errno if size < 0 else 0
