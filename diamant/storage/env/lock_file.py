"""The `.lock` file of a log directory: POSIX record locks, as Java's `FileChannel.tryLock` takes them, so that Kafka sees ours.

The system drops such a lock when the process closes any descriptor of the file, and it does not exclude the process
itself. So a process has one descriptor of each file that it has locked, for all holders of the lock and for readers of
the file, as a scan of all files does (`held_here`). It is closed with its last user, even if the lock was given up
before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from weakref import WeakValueDictionary

from diamant.storage.errors import InUse


class LockFile:
    """One file and its descriptor; a user of the descriptor keeps this object."""

    __slots__ = ("__weakref__", "fd", "holders", "is_exclusive", "is_ours", "name")

    def __init__(self, name: str, fd: int, *, is_exclusive: bool, is_ours: bool = False) -> None:
        """Take over `fd`. With `is_ours` the file was made to be locked, and goes with its last holder."""
        self.name = name
        self.fd = fd
        self.is_exclusive = is_exclusive
        self.is_ours = is_ours
        self.holders = 0

    def close(self) -> None:
        """Give the descriptor back, and with it what the process has locked of the file. May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()

    def lock(self) -> bool:
        """Lock the file, and tell whether its name still leads to it: a lock on a removed file guards nothing.

        InUse if it is locked by another holder.
        """
        try:
            fcntl.lockf(self.fd, (fcntl.LOCK_EX if self.is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise InUse(f"{self.name}: in use by another process") from error
            # As on a file system without locks; the call names no file.
            raise OSError(error.errno, f"cannot be locked: {error.strerror}", self.name) from error
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.name))
        except FileNotFoundError:
            return False

    def try_lock(self) -> bool:
        """Do as `lock`, and close the descriptor if it fails: closed later, it would drop the lock of the next try."""
        is_locked = False
        try:
            is_locked = self.lock()
        finally:
            if not is_locked:
                self.close()
        return is_locked


_here: WeakValueDictionary[str, LockFile] = WeakValueDictionary()
"""The files that this process has locked, or has locked and still reads, by their real paths."""
_changing = threading.Lock()
"""Held while a lock is taken or given up."""


def held_here(path: str) -> LockFile | None:
    """Return the file at `path` if this process has it open for a lock: it must not be opened, and so closed, beside that.

    It may have another name, as in a copy by hard links.
    """
    for file in list(_here.values()):
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fd), os.stat(path)):
                return file
    return None


class ExclusiveLock:
    """A broker's exclusive lock. Made if the file is not locked, by another process or by this one, else InUse."""

    def __init__(self, path: str) -> None:
        name = os.path.realpath(path)
        with _changing:
            if name in _here:
                raise InUse(f"{path}: in use by this process already")
            while True:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                file = LockFile(name, fd, is_exclusive=True)
                if file.try_lock():
                    break  # else the one that released it has removed it
            file.holders = 1
            _here[name] = file
        self._file: LockFile | None = file

    def release(self) -> None:
        """Remove the file, as Kafka does, and give the lock up. May be called twice."""
        with _changing:
            file, self._file = self._file, None
            if file is not None:
                with suppress(FileNotFoundError):
                    os.unlink(file.name)
                _here.pop(file.name, None)
                fcntl.lockf(file.fd, fcntl.LOCK_UN)


class SharedLock:
    """A reader's shared lock: several at a time, of this process or of others. InUse if a broker holds the directory.

    FileNotFoundError if there is no file; with `create` it is made, and removed with the last reader.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        name = os.path.realpath(path)
        with _changing:
            file = _here.get(name)
            if file is not None and file.is_exclusive:
                raise InUse(f"{path}: in use by this process")
            if file is None or not file.lock():
                file = _open_shared(name, create=create)
                while not file.try_lock():  # the one that released it has removed it
                    file = _open_shared(name, create=create)
            file.holders += 1
            _here[name] = file
        self._file: LockFile | None = file

    def release(self) -> None:
        """Give the lock up. May be called twice."""
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
        return LockFile(name, os.open(name, os.O_RDONLY | os.O_CLOEXEC), is_exclusive=False)
    except FileNotFoundError:
        if not create:
            raise
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return LockFile(name, fd, is_exclusive=False, is_ours=True)


def _remove_unless_shared(file: LockFile) -> None:
    """Remove a file that was made for readers, unless another process reads still: its lock would guard nothing."""
    with suppress(OSError):
        fcntl.lockf(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(file.name)
