"""Linux features that Python lacks: birth times of files (statx(2)), early write-back, removed files that are still open.

    offset  size  fields of struct statx used here
         0     4  mask of the fields that are filled in, of which STATX_BTIME is 0x800
        80     8  seconds of the birth time
        88     4  nanoseconds

The birth time belongs to the inode: renaming, writing and setting the modification time do not change it, but a copy has its own.
"""

from __future__ import annotations

import os
import sys
from ctypes import CDLL, c_char_p, c_int, c_int64, c_uint, create_string_buffer
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Statx = Callable[..., int]
    SyncFileRange = Callable[[int, int, int, int], int]

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_BUFFER_BYTES = 256
_MASK = Struct("=I")
_BIRTH = Struct("=qI")
_BIRTH_AT = 80


@cache
def load_statx() -> Statx | None:
    """Return the C library's statx(2), or None if it has none."""
    if sys.platform != "linux":
        return None
    try:
        function = CDLL(None).statx
    except (OSError, AttributeError):
        return None  # a C library without it
    function.argtypes = [c_int, c_char_p, c_int, c_uint, c_char_p]
    function.restype = c_int
    return function


def birth_ms(path: str, load: Callable[[], Statx | None] = load_statx) -> int | None:
    """Return the creation time in ms since the epoch; None if the system or file system does not record it.

    Raises the same OSErrors as `os.stat`.
    """
    os.stat(path)  # called only for its errors
    statx = load()
    if statx is None:
        return None
    buffer = create_string_buffer(_BUFFER_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BIRTH.unpack_from(buffer, _BIRTH_AT)
    return int(seconds) * 1000 + int(nanoseconds) // 1_000_000


_WRITE = 2
_TO_THE_END = 0


@cache
def load_sync_file_range() -> SyncFileRange | None:
    """Return the C library's sync_file_range(2), or None if it has none."""
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
    """Start writing a growing file's dirty pages to the disk. Waits only for space in the disk's queue; any thread may call this.

    Otherwise, the disk would be idle until the sync at the end of a large file. This does not replace the sync: it may write only
    some of the pages, and it writes neither the file's size nor its block allocation.

    Does nothing if there is no descriptor or the system does not support it. The next sync reports disk errors.
    """
    begin = load()
    if fd is not None and begin is not None:
        begin(fd, 0, _TO_THE_END, _WRITE)


_DESCRIPTORS = "/proc/self/fd"
_REMOVED = " (deleted)"
"""Suffix that Linux appends in /proc to the last name of a removed file."""


def removed_but_open(directory: str) -> list[str]:
    """Return the last paths of files below a directory that were removed but are still open; sorted, relative to the directory.

    Follows links to directories. Blocks for about 2 us per descriptor of the process. Returns an empty list on systems without
    /proc, such as macOS.
    """
    prefixes = {f"{os.path.realpath(directory)}/": ""}
    # Links to partition directories that were moved to other places.
    links = [name for name in os.listdir(directory) if os.path.islink(f"{directory}/{name}")]
    prefixes |= {f"{os.path.realpath(f'{directory}/{link}')}/": f"{link}/" for link in links}
    try:
        descriptors = os.listdir(_DESCRIPTORS)
    except FileNotFoundError:
        return []
    paths = set()
    for descriptor in descriptors:
        try:
            name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
        except OSError:
            continue  # the descriptor of the listing itself, or one that has been closed since
        if name.endswith(_REMOVED):
            paths |= {
                shown + name[len(prefix) : -len(_REMOVED)]
                for prefix, shown in prefixes.items()
                if name.startswith(prefix)
            }
    return sorted(paths)
