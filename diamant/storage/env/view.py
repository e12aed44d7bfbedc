"""Views of files that are finished: the bytes of small ones, and large ones read in place."""

from __future__ import annotations

import os
from typing import TypeAlias

MAX_COPIED_BYTES = 16 * 1024
"""A view of a file up to this size is a copy of it: quicker, and it holds no descriptor."""


class ReadInPlace:
    """A file of which is read what is asked for; its descriptor goes with its last reference.

    Not mapped: should another program cut the file off, to touch the map would end this process (SIGBUS).
    """

    __slots__ = ("_fd", "_size")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or less: if there are no more, or have not been since another program cut the file off."""
        return os.pread(self._fd, size, position)

    def __del__(self) -> None:
        os.close(self._fd)


View: TypeAlias = bytes | ReadInPlace
"""The caller does not close it: it goes with its last reference."""


def view_of(fd: int) -> View:
    """Return a view of an open file, and close it or have the view do so."""
    size = os.fstat(fd).st_size
    if size > MAX_COPIED_BYTES:
        return ReadInPlace(fd, size)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def content_of(view: View) -> bytes:
    """Return all bytes of a view."""
    return part_of(view, 0, len(view))


def part_of(view: View, position: int, size: int) -> bytes:
    """Return so many bytes of a view, or less if there are no more."""
    return view[position : position + size] if isinstance(view, bytes) else view.read(position, size)
