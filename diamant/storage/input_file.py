"""Opens only regular files, without waiting, and reads them only up to a limit.

A path may name a pipe, which can block forever when it is opened or read, an endless device, or a sparse file of any size.
"""

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


def open_regular(path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> tuple[int, os.stat_result]:
    """Open a file without waiting; return its descriptor and status. Raises OSError if it is not a regular file.

    `flags` are those of `os.open`; O_CLOEXEC is always added. O_TRUNC empties only a regular file.
    """
    # Without O_NONBLOCK, opening a pipe would block. The flag has no effect on regular files.
    fd = os.open(path, (flags & ~os.O_TRUNC) | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    try:
        status = os.fstat(fd)
        for is_kind, what in _KINDS:
            if is_kind(status.st_mode):
                raise OSError(errno.EINVAL, f"it is {what}, expected a file", path)
        if flags & os.O_TRUNC and status.st_size:
            os.ftruncate(fd, 0)
            status = os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def read_input(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return a file's contents. Raises OSError unless it is a regular file of at most `max_bytes`; does not read more."""
    return read_input_mode(path, max_bytes)[0]


def read_input_mode(path: str | os.PathLike[str], max_bytes: int) -> tuple[bytes, int]:
    """Like `read_input`, but return the file's contents and its permissions."""
    name = os.fspath(path)
    fd, status = open_regular(name)
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            content = b"" if status.st_size > max_bytes else file.read(max_bytes + 1)
        if max(status.st_size, len(content)) > max_bytes:
            size = max(status.st_size, len(content))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes or more, the limit is {max_bytes:,}", name)
        return content, stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)
