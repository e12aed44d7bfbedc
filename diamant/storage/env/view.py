"""Views of finished files: small files as bytes in memory, large ones read in place."""

from __future__ import annotations

import os
from typing import TypeAlias

MAX_COPIED_BYTES = 16 * 1024
"""A view of a file up to this size is a copy in memory, which is faster and holds no descriptor."""


def pread_all(fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes of a file; fewer only at its end. A single read can return fewer, as on network file systems."""
    parts = []
    while size > 0 and (data := os.pread(fd, size, position)):
        parts.append(data)
        position += len(data)
        size -= len(data)
    return b"".join(parts)


class ReadInPlace:
    """A file read on demand. Dropping the last reference closes its descriptor.

    The file is not mapped into memory: if another program truncated it, an access would kill this process (SIGBUS).
    """

    __slots__ = ("_fd", "_size")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end of the file, which another program may have truncated."""
        return pread_all(self._fd, min(size, self._size - position), position)

    def __del__(self) -> None:
        os.close(self._fd)


View: TypeAlias = bytes | ReadInPlace
"""A view of a file. It need not be closed: dropping the last reference closes it."""


def view_of(fd: int) -> View:
    """Return a view of an open file; takes ownership of `fd`."""
    size = os.fstat(fd).st_size
    if size > MAX_COPIED_BYTES:
        return ReadInPlace(fd, size)
    try:
        return pread_all(fd, size, 0)
    finally:
        os.close(fd)


def content_of(view: View) -> bytes:
    """Return all bytes of a view."""
    return part_of(view, 0, len(view))


def part_of(view: View, position: int, size: int) -> bytes:
    """Return up to `size` bytes of a view; fewer at its end."""
    return view[position : position + size] if isinstance(view, bytes) else view.read(position, size)
