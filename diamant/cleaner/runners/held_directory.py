"""The directory of a partition, held by a descriptor: files are renamed in this one, whatever its path leads to by now.

Another process may be deleting the partition, and a new one may have its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class HeldDirectory:
    """See `storage.log.moves.MovesDirectory`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of that name."""
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file; no error if there is none."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def sync(self) -> None:
        """Make the entries durable."""
        os.fsync(self._fd)


@contextmanager
def held(path: str) -> Iterator[HeldDirectory]:
    """Hold a directory. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield HeldDirectory(fd)
    finally:
        os.close(fd)
