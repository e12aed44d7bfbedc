"""The operating system as storage sees it: files, directories, locks, the clock.

All disk access goes through an `Env`. `RealEnv` is the operating system; `MemoryEnv` in the tests is a model of it that can lose
unsynced data. Both guarantee:

* A file's content is durable after `File.sync`, and the entries of a directory (created, renamed, removed) after `sync_dir`.
  Neither implies the other.
* `rename` replaces atomically: after a loss of power the name refers to the old or to the new file, never to neither.
* Paths are strings with `/`; `list_dir` returns names, not paths.
* Failures raise the `OSError`s of the operating system.

Any thread may read a `File`. Only one owner at a time may write to it (append, pwrite, truncate). `sync` may run in a thread
other than the writer's; it covers at least all writes before the call.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, TypeAlias

from diamant.storage import names
from diamant.storage.env.clocks import Clock, ManualClock, SystemClock
from diamant.storage.env.lock_file import ExclusiveLock, LockFile, SharedLock, held_here
from diamant.storage.env.view import View, pread_all, view_of
from diamant.storage.input_file import open_regular

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in memory. A memoryview must be contiguous and have one-byte items."""

MAX_SMALL_FILE = 64 * 1024 * 1024
"""Default limit of `read_bytes`; enough for a checkpoint, which has one line for each partition."""
MAX_STATE_FILE = 256 * 1024 * 1024
"""Limit of `read_bytes` for producer snapshots, facts about segments, and intents."""
MAX_LOG_FILE = 0x7FFF_FFFF
"""Limit of `read_bytes` for segments and snapshots of the metadata log, and for indexes: all have 31-bit positions."""

_IOV_MAX = 1024
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_OF_PARTITION = re.compile(rf"\d{{20}}\.|({names.LEADER_EPOCH_CHECKPOINT}|{names.PARTITION_METADATA})(\.tmp)?$")


class ReadableFile(Protocol):
    """An open file for reading, possibly in an object store (`spark.environment.locations`)."""

    path: str
    """The file's path when it was opened; renaming does not change it."""

    def pread(self, count: int, position: int) -> bytes:
        """Read `count` bytes at `position`; fewer only at the end of the file."""
        ...

    def size(self) -> int:
        """Return the size in bytes without asking the system."""
        ...

    def fileno(self) -> int | None:
        """Return the descriptor, for sendfile and similar calls; None for a file in memory."""
        ...

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        ...


class File(ReadableFile, Protocol):
    """An open file.

    This object tracks `size` without asking the system. An append that fails half-way may leave bytes beyond `size`; the next
    append overwrites them, and `truncate(size())` removes them.
    """

    def try_pread(self, count: int, position: int) -> bytes | None:
        """Like `pread`, but return None immediately if the data are not in memory or cannot be read; `pread` raises the error."""
        ...

    def append(self, *buffers: Buffer) -> None:
        """Write all of `buffers` at the end, in order. If this raises OSError, `size` is unchanged."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write `data` at `position`, which overwrites or extends the file."""
        ...

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode; None for a file in memory."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Make the content durable. Blocks until the disk has written it."""
        ...


class Lock(Protocol):
    """A lock on a log directory."""

    def release(self) -> None:
        """Release the lock and remove its file, as Kafka does. May be called twice."""
        ...


class ReadLock(Protocol):
    """A lock that readers of a log directory share."""

    def release(self) -> None:
        """Release the lock; its file stays, unless it was created for this lock. May be called twice."""
        ...


class Env(Protocol):
    """Files, directories, locks and the clock. The module docstring describes the guarantees of durability."""

    clock: Clock

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file. If it is missing, create it if `create` is True; otherwise raise FileNotFoundError."""
        ...

    def create_new(self, path: str) -> File:
        """Create and open a file. Raises FileExistsError if it exists."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if the path is a file or directory."""
        ...

    def is_dir(self, path: str) -> bool:
        """Return True if the path is a directory."""
        ...

    def is_link(self, path: str) -> bool:
        """Return True if the path is a symbolic link, whatever its target."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; no error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file at `new` atomically."""
        ...

    def renamed_elsewhere(self, renames: Mapping[str, str]) -> AbstractContextManager[None]:
        """Return a context in which another process renames files (old path to new), and readers may use either path."""
        ...

    def link(self, path: str, new: str) -> None:
        """Create a hard link at the unused path `new`. Raises OSError if the file system does not support it."""
        ...

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents; no error if it is missing.

        If `path` is a symbolic link, only the files of a partition are removed from its target.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make the entries of a directory durable; no error if the directory no longer exists."""
        ...

    def sync_file(self, path: str) -> None:
        """Sync the content of a file that is not open."""
        ...

    def file_size(self, path: str) -> int:
        """Return a file's size in bytes."""
        ...

    def mtime_ms(self, path: str) -> int:
        """Return the file's modification time."""
        ...

    def changed_ms(self, path: str) -> int:
        """Return when the content, name or attributes of a file or directory last changed. Programs cannot set this time."""
        ...

    def birth_ms(self, path: str) -> int | None:
        """Return the file's creation time; None if unknown. Renaming and `set_mtime_ms` do not change it."""
        ...

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set the file's modification time."""
        ...

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        """Return a file's content. Raises OSError (EFBIG) before any read if it has more than `most` bytes."""
        ...

    def view_file(self, path: str) -> View:
        """Return a view of a file that is no longer being written.

        A limited number of views is cached. Opening the file for writing, renaming or removing it drops its view from the cache.
        """
        ...

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Return `(total, free)` bytes of the file system that holds `path`; free means available to ordinary users."""
        ...

    def set_read_only(self, path: str) -> None:
        """Make the file read-only, as Kafka does with metadata snapshots (mode 0400)."""
        ...

    def write_tail(self, path: str, data: Buffer, position: int = 0) -> None:
        """Write `data` at `position` of a file, and truncate the file after it. A missing file is created. Does not sync."""
        ...

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file; a reader sees the old content or the new one, even after a loss of power.

        Writes `path`.tmp, syncs it, renames it over `path` and syncs the directory. Without `sync` only the
        rename is atomic: after a loss of power the file may be old, new or empty.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Lock a directory with its `.lock` file. Raises StorageError if another process or this one holds the lock."""
        ...

    def lock_for_reading(self, path: str, *, create: bool = False) -> ReadLock | None:
        """Lock a directory with its `.lock` file against brokers, but not against other readers.

        If the file is missing, no lock is taken by default, so that a broker may start, and None is returned. With `create`, a
        missing file is created, and removed when the lock is released. Raises StorageError if a broker holds the directory, and
        OSError if the file cannot be created.
        """
        ...


def latest_write_ms(env: Env, path: str) -> int:
    """Return the latest time, on the clock of `env`, at which a file may have been written. Raises OSError.

    The file times of the operating system do not follow a manual clock. With such a clock, this is the current time.
    """
    modified_ms = env.mtime_ms(path)
    return env.clock.now_ms() if isinstance(env.clock, ManualClock) else modified_ms


def check_size(path: str, size: int, most: int) -> None:
    """Raise OSError (EFBIG) if a file to be read has more than `most` bytes."""
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes or more, the limit is {most:,}", path)


def parent(path: str) -> str:
    """Return the directory part of a path."""
    return os.path.dirname(path) or "."


class RealFile:
    """A file of the operating system.

    A reader that holds the object may continue reading after the file is renamed or removed. The object owns `fd`. If `close` is
    not called, dropping the last reference closes the descriptor; segments that still have readers are released this way.
    """

    __slots__ = ("_fd", "_size", "identity", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        status = os.fstat(fd)
        self._size = status.st_size
        self.identity: tuple[int, int] | None = (status.st_dev, status.st_ino)

    def pread(self, count: int, position: int) -> bytes:
        data = os.pread(self._fd, count, position)
        if len(data) == count or position + len(data) >= self._size:
            return data
        return data + pread_all(self._fd, count - len(data), position + len(data))

    def try_pread(self, count: int, position: int) -> bytes | None:
        count = min(count, self._size - position)
        if count <= 0:
            return b""
        if not _RWF_NOWAIT:
            return None
        buffer = bytearray(count)
        try:
            got = os.preadv(self._fd, (buffer,), position, _RWF_NOWAIT)
        except OSError:
            return None
        return bytes(buffer) if got == count else None

    def append(self, *buffers: Buffer) -> None:
        position = self._size
        try:
            if len(buffers) == 1:
                data = buffers[0]
                size = len(data)
                written = os.pwrite(self._fd, data, position)
            else:
                size = sum(map(len, buffers))
                written = os.pwritev(self._fd, buffers[:_IOV_MAX], position) if size else 0
            if written != size:
                self._write_rest(buffers, written)
        except OSError as error:
            error.filename = self.path  # errors of calls with descriptors do not name the file
            raise
        self._size = position + size

    def _write_rest(self, buffers: tuple[Buffer, ...], written: int) -> None:
        """Write the rest after a short write, skipping the first `written` bytes of `buffers`."""
        position = self._size + written
        for buffer in buffers:
            size = len(buffer)
            if written >= size:
                written -= size
                continue
            rest = memoryview(buffer)[written:]
            written = 0
            _write_all(self._fd, rest, position)
            position += len(rest)

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            _write_all(self._fd, data, position)
        except OSError as error:
            error.filename = self.path
            raise
        self._size = max(self._size, position + len(data))

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            error.filename = self.path
            raise
        self._size = size

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def fileno(self) -> int | None:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


class _HeldFile(RealFile):
    """A lock file that this process holds. It shares the lock's descriptor, since closing another one would drop the lock."""

    __slots__ = ("_held",)

    def __init__(self, path: str, held: LockFile) -> None:
        super().__init__(path, held.fd)
        self._held: LockFile | None = held

    def close(self) -> None:
        self._fd = -1
        self._held = None


class RealEnv:
    """The operating system."""

    def __init__(self, clock: Clock | None = None, *, max_cached_views: int = 256) -> None:
        """Cache at most `max_cached_views` views of finished files; each takes a descriptor or up to `view.MAX_COPIED_BYTES`."""
        self.clock: Clock = SystemClock() if clock is None else clock
        self._max_cached_views = max_cached_views
        self._views: OrderedDict[str, View] = OrderedDict()
        self._view_counts: dict[str, int] = {}
        """Number of views below each directory, so that renaming a file, the usual case, needs no search for views."""
        self._forgotten = 0
        """Incremented whenever a file's view becomes invalid, even if it is not cached: a thread may be about to cache it."""
        self._views_lock = threading.Lock()
        self._renamed_elsewhere: dict[str, str] = {}

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if read_only:
            held = held_here(path) if path.endswith(names.LOCK) else None
            if held is not None:
                return _HeldFile(path, held)
            return RealFile(path, self._open(path, os.O_RDONLY)[0])
        self._forget_view(path)
        if create:
            return RealFile(path, open_regular(path, os.O_RDWR | os.O_CREAT)[0])
        return RealFile(path, self._open(path, os.O_RDWR)[0])

    def _open(self, path: str, flags: int) -> tuple[int, os.stat_result]:
        try:
            return open_regular(path, flags)
        except FileNotFoundError:
            return open_regular(self._new_path(path), flags)

    def create_new(self, path: str) -> File:
        self._forget_view(path)
        return RealFile(path, open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)[0])

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)
        self._forget_view(old)
        self._forget_view(new)

    @contextmanager
    def renamed_elsewhere(self, renames: Mapping[str, str]) -> Iterator[None]:
        self._renamed_elsewhere.update(renames)
        try:
            yield
        finally:
            for old, new in renames.items():
                del self._renamed_elsewhere[old]
                self._forget_view(old)
                self._forget_view(new)

    def _new_path(self, path: str) -> str:
        """Return the path to which another process has renamed the file at `path`. Raises FileNotFoundError if there is none."""
        new = self._renamed_elsewhere.get(path)
        if new is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return new

    def link(self, path: str, new: str) -> None:
        os.link(path, new)

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise
        finally:
            self._forget_view(path)

    def remove_tree(self, path: str) -> None:
        import shutil  # slow: it imports every compressor of the standard library

        if os.path.islink(path):
            self._forget_view(path)
            _remove_linked(path)
            return
        while True:
            try:
                shutil.rmtree(path)
                break
            except FileNotFoundError:
                # Another process is also removing the directory and removed this file first; the rest still exists.
                if not os.path.isdir(path):
                    break
        self._forget_view(path)

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file(self, path: str) -> None:
        fd, _ = self._open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def file_size(self, path: str) -> int:
        return self._stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return self._stat(path).st_mtime_ns // 1_000_000

    def changed_ms(self, path: str) -> int:
        return self._stat(path).st_ctime_ns // 1_000_000

    def _stat(self, path: str) -> os.stat_result:
        try:
            return os.stat(path)
        except FileNotFoundError:
            return os.stat(self._new_path(path))

    def birth_ms(self, path: str) -> int | None:
        # Imported here because it loads ctypes, which few processes need.
        from diamant.storage.env.linux import birth_ms

        return birth_ms(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        # Plain system calls: `open()` takes several times as long, and a starting broker reads thousands of small files.
        fd, status = self._open(path, os.O_RDONLY)
        try:
            size = status.st_size
            check_size(path, size, most)
            data = os.read(fd, size + 1)
            if len(data) == size:
                return data
            parts, got = [data], len(data)
            while data := os.read(fd, 1 << 20):
                parts.append(data)
                got += len(data)
                check_size(path, got, most)
            return b"".join(parts)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)

    def view_file(self, path: str) -> View:
        views = self._views
        with self._views_lock:
            view = views.get(path)
            if view is not None:
                views.move_to_end(path)
                return view
            forgotten = self._forgotten
        view = view_of(self._open(path, os.O_RDONLY)[0])
        with self._views_lock:
            if self._forgotten != forgotten:
                return view  # not cached: another file may have taken the name since the open
            if path not in views:
                self._count_view(path, 1)
            views[path] = view
            while len(views) > self._max_cached_views:
                self._count_view(views.popitem(last=False)[0], -1)
        return view

    def _forget_view(self, path: str) -> None:
        """Drop the view of a file, or all views below a directory."""
        with self._views_lock:
            self._forgotten += 1
            if self._views.pop(path, None) is not None:
                self._count_view(path, -1)
            elif path in self._view_counts:
                below = path + "/"
                for name in [name for name in self._views if name.startswith(below)]:
                    del self._views[name]
                    self._count_view(name, -1)

    def _count_view(self, path: str, change: int) -> None:
        counts = self._view_counts
        while path := path.rpartition("/")[0]:
            counts[path] = counts.get(path, 0) + change
            if not counts[path]:
                del counts[path]

    def disk_usage(self, path: str) -> tuple[int, int]:
        stats = os.statvfs(path)
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    def set_read_only(self, path: str) -> None:
        os.chmod(path, 0o400)

    def write_tail(self, path: str, data: Buffer, position: int = 0) -> None:
        self._forget_view(path)
        fd, status = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            if status.st_size != position:
                os.ftruncate(fd, position)
            _write_all(fd, data, position)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        replace_file(self, path, data, sync=sync)

    def lock(self, path: str) -> Lock:
        return ExclusiveLock(path)

    def lock_for_reading(self, path: str, *, create: bool = False) -> ReadLock | None:
        try:
            return SharedLock(path, create=create)
        except FileNotFoundError:
            return None


def _write_all(fd: int, data: Buffer, position: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def _remove_linked(path: str) -> None:
    with suppress(FileNotFoundError):
        for name in os.listdir(path):
            if _OF_PARTITION.match(name):
                os.unlink(f"{path}/{name}")
        with suppress(OSError):
            os.rmdir(os.path.realpath(path))
    with suppress(FileNotFoundError):
        os.unlink(path)


def write_tail(env: Env, path: str, data: Buffer, position: int) -> None:
    """Implement `Env.write_tail` with other methods of `env`."""
    file = env.open(path, create=True)
    try:
        if file.size() != position:
            file.truncate(position)
        if data:
            file.append(data)
    finally:
        file.close()


def replace_file(env: Env, path: str, data: bytes, *, sync: bool) -> None:
    """Implement `Env.write_atomically` with other methods of `env`."""
    temporary = path + ".tmp"
    try:
        file = env.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append(data)
            if sync:
                file.sync()
        finally:
            file.close()
        env.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            env.remove(temporary, missing_ok=True)
        raise
    if sync:
        env.sync_dir(parent(path))
