"""Early write-back of a file that still grows, by sync_file_range(2), which Python lacks.

Without it the disk is idle until the sync at the end of a large file, which then waits for all data. Write-back is not a sync: it
may be incomplete, and it does not write the file's size or block allocation.
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
    """Start writing a file's dirty pages to the disk. Any thread; waits only for room in the disk's queue.

    Best effort: does nothing without a descriptor or system support. The next sync reports disk errors.
    """
    begin = load()
    if fd is not None and begin is not None:
        begin(fd, 0, _TO_THE_END, _WRITE)
