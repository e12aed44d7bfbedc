"""The directory of a partition, held by a descriptor: renames apply to this directory, even if its path has changed.

At the same time another process may delete the partition and create a new one of that name.
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
        """Return whether a file of that name exists."""
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def sync(self) -> None:
        """Make the entries durable."""
        os.fsync(self._fd)


@contextmanager
def held(path: str) -> Iterator[HeldDirectory]:
    """Hold a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield HeldDirectory(fd)
    finally:
        os.close(fd)
