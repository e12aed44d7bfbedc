"""A file system for one data directory, small enough to be full: mounted as root, where no other process sees it."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

CLONE_NEWNS, MS_REMOUNT, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 32, 0x4000, 1 << 18, 2
ROOM_BYTES = 1 << 30
_C = ctypes.CDLL(None, use_errno=True)


def leave_namespace() -> bool:
    """Leave the mounts of the machine: later ones are seen by this process and its children. False if that is not allowed."""
    return not (_C.unshare(CLONE_NEWNS) or _C.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


class SmallDisk:
    """A file system in memory, mounted at a new directory. OSError if that is not possible."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir()
        self._mount(0, ROOM_BYTES)

    def leave_free(self, count: int | None) -> None:
        """Leave so many bytes for new data; None: enough."""
        status = os.statvfs(self._place)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._mount(MS_REMOUNT, ROOM_BYTES if count is None else used + count)

    def unmount(self) -> None:
        """Take it away; what is on it stays where it was, for whoever has to look into a finding."""
        kept = self._place.with_name("kept")
        shutil.copytree(self._place, kept)
        _C.umount2(os.fsencode(self._place), MNT_DETACH)
        self._place.rmdir()
        kept.rename(self._place)

    def _mount(self, flags: int, size: int) -> None:
        if _C.mount(b"tmpfs", os.fsencode(self._place), b"tmpfs", flags, b"size=%d" % size):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self._place))
