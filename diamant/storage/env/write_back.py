"""Has the system write a file to the disk while more is appended to it: sync_file_range(2), which Python does not have.

A sync at the end of a large file waits for all of it, for until then the disk was idle. This is no sync: what has begun may not
have ended, and of the file's size and its places on the disk nothing is written.
"""

from __future__ import annotations

import sys
from ctypes import CDLL, c_int, c_int64, c_uint
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    SyncFileRange = Callable[[int, int, int, int], int]

_WRITE = 2
_TO_THE_END = 0


@cache
def load_sync_file_range() -> SyncFileRange | None:
    """Return sync_file_range(2) of the C library, if it has it."""
    if sys.platform != "linux":
        return None
    try:
        function = CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None  # a C library without it
    function.argtypes = [c_int, c_int64, c_int64, c_uint]
    function.restype = c_int
    return function


def begin_write_back(fd: int | None, load: Callable[[], SyncFileRange | None] = load_sync_file_range) -> None:
    """Have what was written to a file begin its way to the disk. Any thread; waits only for room in the disk's queue.

    Best effort: without a descriptor, or where the system cannot, nothing happens; errors of the disk are the next sync's.
    """
    begin = load()
    if fd is not None and begin is not None:
        begin(fd, 0, _TO_THE_END, _WRITE)
