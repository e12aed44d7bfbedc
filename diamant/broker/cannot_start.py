"""What keeps a broker from its address or its directory, as an error that says what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class CannotStart(OSError):
    """The operating system has refused an address or a directory; `filename` is which, `strerror` why."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}{_HINTS.get(self.errno or 0, '')}"


_HINTS = {
    errno.EADDRINUSE: '. Is another broker running there? BrokerConfig(listen="127.0.0.1:0") takes a free port',
    errno.EEXIST: ". Expected a directory, or a name that is free: BrokerConfig(data_dir=...) says where the data is",
    errno.ENOTDIR: ". Expected a directory, or a name that is free: BrokerConfig(data_dir=...) says where the data is",
    errno.EACCES: ". The broker needs to read and write there, and ports below 1024 may be the administrator's",
}


@contextmanager
def told(where: str) -> Iterator[None]:
    """Turn an error of the operating system into one that says where it was: the file that it names, or `where`."""
    try:
        yield
    except OSError as error:
        raise CannotStart(error.errno, error.strerror or str(error), error.filename or where) from error
