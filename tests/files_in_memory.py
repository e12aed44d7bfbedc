"""Temporary files in memory, where Linux offers enough of it.

Tests make and remove tens of thousands of small files. On a disk that takes a third of the processor's time of tests that run a
broker, and more while something else writes. What may depend on the file system stays on the disk: the folders of `ON_DISK`, but
for those in a quick run.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

PLACE = "/dev/shm"
ENOUGH_BYTES = 2 << 30
"""A run holds some hundred megabytes at any time; a container has 64 MB in all by default."""
DISK = tempfile.gettempdir()
"""Where temporary files are made without this module."""
TESTS = Path(__file__).parent
ON_DISK = tuple(
    TESTS / folder
    for folder in (
        *("storage", "cleaner/runners", "cleaner/parallel"),
        *("broker/handlers/data", "broker/network", "broker/node", "broker/snapshots"),
    )
)
"""The parts that read, write, send, sync and rename files, the processes that do, and what survives when they are killed."""

_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_read = os.preadv


def use() -> None:
    """Make pytest's temporary directories in memory, unless a place was chosen for them."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _place())
    if are_used():
        os.preadv = _preadv


def are_used() -> bool:
    """True if pytest's temporary directories are in memory."""
    return os.environ["PYTEST_DEBUG_TEMPROOT"] == PLACE


def belongs_on_disk(test: Path) -> bool:
    """True for a test module of `ON_DISK`."""
    return any(test.is_relative_to(folder) for folder in ON_DISK)


def _place() -> str:
    try:
        room = os.statvfs(PLACE)
    except OSError:
        return ""
    has_room = room.f_bavail * room.f_frsize >= ENOUGH_BYTES
    return PLACE if has_room and os.access(PLACE, os.W_OK | os.X_OK) else ""


def _preadv(fd: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
    """`os.preadv`, where a file system in memory does not let one say that it must not wait (RWF_NOWAIT): it never does."""
    try:
        return _read(fd, buffers, offset, flags)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or not flags & _RWF_NOWAIT:
            raise
    return _read(fd, buffers, offset, flags & ~_RWF_NOWAIT)
