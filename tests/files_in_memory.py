"""Temporary files in memory for the tests of a quick run, where Linux offers enough of it.

They make and remove tens of thousands of small files. On a disk that takes a tenth of a quick run, and more while something else
writes. `make test`, and pytest without options, use the disk.
"""

from __future__ import annotations

import os
from typing import Any

PLACE = "/dev/shm"
ENOUGH_BYTES = 1 << 30
"""A quick run holds a few dozen megabytes at any time; a container has 64 MB in all by default."""

_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_read = os.preadv


def use() -> None:
    """Make pytest's temporary directories in memory, unless a place was chosen for them."""
    if os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _place()) == PLACE:
        os.preadv = _preadv


def _place() -> str:
    try:
        room = os.statvfs(PLACE)
    except OSError:
        return ""
    has_room = room.f_bavail * room.f_frsize >= ENOUGH_BYTES
    return PLACE if has_room and os.access(PLACE, os.W_OK | os.X_OK) else ""


def _preadv(fd: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
    """`os.preadv`, to which this file system does not let one say that it must not wait (RWF_NOWAIT): here it never does."""
    return _read(fd, buffers, offset, flags & ~_RWF_NOWAIT)
