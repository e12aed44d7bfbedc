"""The `.lock` file of a log directory, locked with POSIX record locks like those of Java's `FileChannel.tryLock` in Kafka.

The system drops such a lock when the process closes any descriptor of the file, and the lock does not exclude its own process.
Therefore a process keeps a single descriptor for each locked file, which the holders of the lock share with readers of the file,
such as a scan of all files (`held_here`). The last user closes it, even if the lock was released before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from weakref import WeakValueDictionary

from diamant.storage.errors import InUse
from diamant.storage.input_file import open_regular


class LockFile:
    """One file and its descriptor. Each user of the descriptor holds a reference to this object."""

    __slots__ = ("__weakref__", "fd", "holders", "is_exclusive", "is_ours", "name")

    def __init__(self, name: str, fd: int, *, is_exclusive: bool, is_ours: bool = False) -> None:
        """Take ownership of `fd`. If `is_ours`, the file was created for the lock, and the last holder removes it."""
        self.name = name
        self.fd = fd
        self.is_exclusive = is_exclusive
        self.is_ours = is_ours
        self.holders = 0

    def close(self) -> None:
        """Close the descriptor, which drops the process's locks on the file. May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()

    def lock(self) -> bool:
        """Lock the file. Return False if its name no longer refers to it, since a lock on a removed file protects nothing.

        Raises InUse if another process holds the lock.
        """
        try:
            fcntl.lockf(self.fd, (fcntl.LOCK_EX if self.is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise InUse(f"{self.name}: in use by another process") from error
            # For example, the file system has no locks. The system's error does not name the file.
            raise OSError(error.errno, f"cannot be locked: {error.strerror}", self.name) from error
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.name))
        except FileNotFoundError:
            return False

    def try_lock(self) -> bool:
        """Like `lock`, but close the descriptor on failure, since closing it later would drop the lock of the next attempt."""
        is_locked = False
        try:
            is_locked = self.lock()
        finally:
            if not is_locked:
                self.close()
        return is_locked


_here: WeakValueDictionary[str, LockFile] = WeakValueDictionary()
"""The files, by real path, that this process has locked, or still reads after it has released the lock."""
_changing = threading.Lock()
"""Held while a lock is taken or released."""


def held_here(path: str) -> LockFile | None:
    """Return the lock file at `path` if this process has it open; otherwise None.

    The caller must use its descriptor, since opening and closing the file again would drop the lock. A file is also found under
    another name, such as that of a hard link in a copy of the directory.
    """
    for file in list(_here.values()):
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fd), os.stat(path)):
                return file
    return None


class ExclusiveLock:
    """A broker's exclusive lock. Raises InUse if another process or this one has locked the file."""

    def __init__(self, path: str) -> None:
        name = os.path.realpath(path)
        with _changing:
            if name in _here:
                raise InUse(f"{path}: in use by this process already")
            while True:
                fd = open_regular(name, os.O_RDWR | os.O_CREAT)[0]
                file = LockFile(name, fd, is_exclusive=True)
                if file.try_lock():
                    break  # otherwise the last holder has removed the file, so try again
            file.holders = 1
            _here[name] = file
        self._file: LockFile | None = file

    def release(self) -> None:
        """Remove the file, as Kafka does, and release the lock. May be called twice."""
        with _changing:
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):  # if the file stays, the next lock uses it
                    os.unlink(file.name)
                _here.pop(file.name, None)
                fcntl.lockf(file.fd, fcntl.LOCK_UN)


class SharedLock:
    """A reader's shared lock; this process and others may hold several. Raises InUse if a broker holds the directory.

    Raises FileNotFoundError if the file is missing, unless `create` is True; then it is created, and the last reader removes it.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        name = os.path.realpath(path)
        with _changing:
            file = _here.get(name)
            if file is not None and file.is_exclusive:
                raise InUse(f"{path}: in use by this process")
            if file is None or not file.lock():
                file = _open_shared(name, create=create)
                while not file.try_lock():  # the last holder has removed the file
                    file = _open_shared(name, create=create)
            file.holders += 1
            _here[name] = file
        self._file: LockFile | None = file

    def release(self) -> None:
        """Release the lock. May be called twice."""
        with _changing:
            file, self._file = self._file, None
            if file is None:
                return
            file.holders -= 1
            if file.holders:
                return
            if file.is_ours:
                _remove_unless_shared(file)
            fcntl.lockf(file.fd, fcntl.LOCK_UN)


def _open_shared(name: str, *, create: bool) -> LockFile:
    try:
        return LockFile(name, open_regular(name)[0], is_exclusive=False)
    except FileNotFoundError:
        if not create:
            raise
    fd = open_regular(name, os.O_RDWR | os.O_CREAT)[0]
    return LockFile(name, fd, is_exclusive=False, is_ours=True)


def _remove_unless_shared(file: LockFile) -> None:
    """Remove a file that was created for readers, unless another process still reads: its lock would then protect nothing."""
    with suppress(OSError):
        fcntl.lockf(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(file.name)
