"""Reads files named by a user: only regular files of a bounded size."""

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_input(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return a file's contents. OSError before any read unless it is a regular file of at most `max_bytes`."""
    return read_input_mode(path, max_bytes)[0]


def read_input_mode(path: str | os.PathLike[str], max_bytes: int) -> tuple[bytes, int]:
    """Return a file's contents, as `read_input` does, and its permissions."""
    name = os.fspath(path)
    # O_NONBLOCK: opening a pipe would otherwise block.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        for is_kind, what in _KINDS:
            if is_kind(status.st_mode):
                raise OSError(errno.EINVAL, f"it is {what}, expected a file", name)
        with os.fdopen(os.dup(fd), "rb") as file:
            content = b"" if status.st_size > max_bytes else file.read(max_bytes + 1)
        if max(status.st_size, len(content)) > max_bytes:
            size = max(status.st_size, len(content))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes or more, the limit is {max_bytes:,}", name)
        return content, stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)
