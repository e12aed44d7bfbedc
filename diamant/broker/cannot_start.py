"""Errors that keep a broker from starting. Each says where it happened and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from diamant.storage.config_key import ConfigError
from diamant.storage.errors import InUse, StorageError


class CannotStart(Exception):
    """A broker could not start. It holds no resources.

    `reason` says where and why; the message also says what to do. `__cause__` is an OSError about an address or a file, a
    StorageError about the directory, or a ConfigError. `errno` is as in OSError, EBUSY if the directory is in use, or None.
    """

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(f"{reason}{_HINTS.get(number, '')}")
        self.reason = reason
        self.errno = number


_NOT_A_DIRECTORY = ". Expected a directory or an unused name: BrokerConfig(data_dir=...) sets the data directory"

_HINTS: dict[int | None, str] = {
    errno.EBUSY: ". Is another broker running on it? BrokerConfig(data_dir=...) takes another directory",
    errno.EADDRINUSE: '. Is another broker running there? BrokerConfig(listen="127.0.0.1:0") takes a free port',
    errno.EEXIST: _NOT_A_DIRECTORY,
    errno.ENOTDIR: _NOT_A_DIRECTORY,
    errno.EACCES: ". The broker needs to read and write there, and ports below 1024 may be reserved for the administrator",
}


@contextmanager
def as_cannot_start(where: str) -> Iterator[None]:
    """Turn an OSError, StorageError or ConfigError into CannotStart. `where` is reported for an OSError without a file name."""
    try:
        yield
    except StorageError as error:
        raise CannotStart(str(error), errno.EBUSY if isinstance(error, InUse) else None) from error
    except ConfigError as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        reason = f"{error.filename or where}: {error.strerror or error}"
        raise CannotStart(reason, error.errno) from error
