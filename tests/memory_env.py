"""A file system in memory that loses power on demand.

Every file has two contents, the current one and the synced one; every directory likewise has two sets of entries. `crash`
discards the current ones. A test can run some code, crash, reopen the directory and check what a machine would have kept:

    env = MemoryEnv()
    ...                                  the code under test, with env
    env.crash()                          strict: only what was synced is left
    env.crash(random.Random(seed))       realistic: any prefix of the unsynced data may have reached the disk
    env.crash(Loss(names=1, content=0))  uniform: here all names survive, and no unsynced content
    ...                                  open again with the same env

A strict crash keeps a file's content as of its last `sync`, under its name as of the last `sync_dir` of its directory and of all
parents up to the root. A synced file under an unsynced name is lost. An unsynced rename is undone: the old name and its old
content return.

A random crash may also keep unsynced data: of each directory, a prefix of its changes; of a file that was only appended to, a
prefix of the new bytes, perhaps with zeros for the rest (as on a file system that records the length before the data); of any
other changed file, either the old or the new content as a whole.

Files and locks opened before the crash are dead: every call on them raises EIO.

`power_off_after` stops the machine at the n-th change or sync, `fail` makes chosen calls fail, `before` runs a function before
chosen calls. Together they can produce every order of events that matters for durability. To examine all crash points in one
run, let `before_change` take a `copy` at each; a copy can lose power while the run continues.

Not modelled: permissions beyond read-only, symbolic links, time of access. Calls may come from several threads.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from diamant.storage.env.clocks import Clock, SettableClock
from diamant.storage.env.env import (
    MAX_LOG_FILE,
    MAX_SMALL_FILE,
    Buffer,
    File,
    Lock,
    ReadLock,
    check_size,
    replace_file,
    write_tail,
)
from diamant.storage.env.view import View
from diamant.storage.errors import InUse
from tests.injected_faults import InjectedFaults, Operation

CHANGES: frozenset[Operation] = frozenset(
    ("create", "append", "pwrite", "truncate", "rename", "link", "remove", "make_dirs")
)
SYNCS: frozenset[Operation] = frozenset(("sync", "sync_dir"))


class PowerOff(Exception):
    """The machine has stopped; all calls fail until `MemoryEnv.crash` restarts it."""


class Loss(NamedTuple):
    """Share of the unsynced data that survives, the same for every file and directory: from 0 (none) to 1 (all)."""

    names: float
    """Share of each directory's changes that survive, earliest first."""
    content: float
    """Share of each file's appended bytes that survive, first bytes first. Other changes survive from 0.5 on."""
    is_length_kept: bool = False
    """True if zeros replace the lost appended bytes."""


_Chance: TypeAlias = "random.Random | Loss | None"


@dataclass(slots=True, eq=False)
class _Content:
    """A file, independent of its names."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    clean_bytes: int = 0
    """Number of leading bytes that both contents share."""
    mtime_ms: int = 0
    birth_ms: int | None = None
    is_read_only: bool = False

    def sync(self) -> None:
        self.synced[self.clean_bytes :] = self.data[self.clean_bytes :]
        self.clean_bytes = len(self.synced)

    def crash(self, chance: _Chance) -> None:
        if chance is not None and self.clean_bytes == len(self.synced):
            unsynced = self.data[self.clean_bytes :]
            if isinstance(chance, Loss):
                kept = unsynced[: int(len(unsynced) * chance.content)]
                has_zeros = chance.is_length_kept
            else:
                kept = unsynced[: chance.randint(0, len(unsynced))]
                has_zeros = chance.random() < 0.25
            self.synced += kept + (bytes(len(unsynced) - len(kept)) if has_zeros else b"")
        elif chance is not None and (chance.content >= 0.5 if isinstance(chance, Loss) else chance.random() < 0.5):
            self.synced = self.data
        self.data = bytearray(self.synced)
        self.clean_bytes = len(self.data)

    def copy(self, copied: _Copied) -> _Content:
        again = copied.get(id(self))
        if again is None:
            again = copied[id(self)] = _Content(
                bytearray(self.data), bytearray(self.synced), self.clean_bytes, self.mtime_ms, self.birth_ms,
                self.is_read_only,
            )  # fmt: skip
        assert isinstance(again, _Content)
        return again


Tree: TypeAlias = "tuple[tuple[str, bytes | Tree], ...]"
"""Entries of a directory by name: the bytes of a file, or the entries of a directory."""
_Change: TypeAlias = "list[tuple[str, _Content | _Directory | None]]"
_Copied: TypeAlias = "dict[int, _Content | _Directory]"
"""Copies by the id of the original: a file with several names or changes stays one file."""


@dataclass(slots=True, eq=False)
class _Directory:
    """A directory, independent of its name."""

    entries: dict[str, _Content | _Directory] = field(default_factory=dict)
    synced: dict[str, _Content | _Directory] = field(default_factory=dict)
    unsynced: list[_Change] = field(default_factory=list)
    """Changes since the last sync; a crash keeps or loses each as a whole."""

    def change(self, *names: tuple[str, _Content | _Directory | None]) -> None:
        _apply(self.entries, list(names))
        self.unsynced.append(list(names))

    def contents(self) -> set[_Content]:
        """Return the files below the directory, each once, even with several names."""
        files: set[_Content] = set()
        for node in self.entries.values():
            files |= node.contents() if isinstance(node, _Directory) else {node}
        return files

    def tree(self) -> Tree:
        """Contents of the directory; see `tree_of`."""
        return tuple(
            (name, node.tree() if isinstance(node, _Directory) else bytes(node.data))
            for name, node in sorted(self.entries.items())
        )

    def remove_all(self) -> None:
        """Remove the entries one by one: a crash in the middle leaves some of them."""
        for name, node in list(self.entries.items()):
            if isinstance(node, _Directory):
                node.remove_all()
            self.change((name, None))

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.unsynced.clear()

    def crash(self, chance: _Chance) -> None:
        if chance is not None:
            total = len(self.unsynced)
            kept = int(total * chance.names) if isinstance(chance, Loss) else chance.randint(0, total)
            for change in self.unsynced[:kept]:
                _apply(self.synced, change)
        self.unsynced.clear()
        self.entries = dict(self.synced)
        for node in self.entries.values():
            node.crash(chance)

    def copy(self, copied: _Copied) -> _Directory:
        again = copied.get(id(self))
        if again is None:
            again = copied[id(self)] = _Directory()
            again.entries = {name: node.copy(copied) for name, node in self.entries.items()}
            again.synced = {name: node.copy(copied) for name, node in self.synced.items()}
            again.unsynced = [[(name, node and node.copy(copied)) for name, node in change] for change in self.unsynced]
        assert isinstance(again, _Directory)
        return again


def _apply(entries: dict[str, _Content | _Directory], change: _Change) -> None:
    for name, node in change:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class MemoryFile:
    """An open file in memory; see `env.File`."""

    __slots__ = ("_content", "_env", "_is_open", "_is_read_only", "_power_cycle", "_size", "path")

    def __init__(self, env: MemoryEnv, path: str, content: _Content, is_read_only: bool) -> None:
        self.path = path
        self._env = env
        self._content = content
        self._is_read_only = is_read_only
        self._is_open = True
        self._power_cycle = env.power_cycles
        self._size = len(content.data)

    @property
    def identity(self) -> tuple[int, int] | None:
        return None

    def _begin(self, operation: Operation) -> None:
        if not self._is_open:
            raise OSError(errno.EBADF, "file is closed", self.path)
        if self._power_cycle != self._env.power_cycles:
            raise OSError(errno.EIO, "file was opened before the crash", self.path)
        if self._is_read_only and operation in CHANGES:
            raise OSError(errno.EBADF, "file is open for reading only", self.path)
        self._env._begin(operation, self.path)

    def pread(self, count: int, position: int) -> bytes:
        self._begin("pread")
        return bytes(memoryview(self._content.data)[position : position + count])

    def try_pread(self, count: int, position: int) -> bytes | None:
        return self.pread(count, position)

    def append(self, *buffers: Buffer) -> None:
        data = b"".join(buffers)
        try:
            self._begin("append")
        except OSError as error:
            partial = getattr(error, "partial_bytes", 0)
            if partial:
                self._write(data[:partial], self._size)
            raise
        self._env._check_space(self._content, self._size + len(data), self.path)
        self._write(data, self._size)
        self._size += len(data)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._begin("pwrite")
        self._env._check_space(self._content, position + len(data), self.path)
        self._write(data, position)
        self._size = max(self._size, position + len(data))

    def _write(self, data: Buffer, position: int) -> None:
        with self._env._lock:
            content = self._content
            content.clean_bytes = min(content.clean_bytes, position)
            if len(content.data) < position:
                content.data += bytes(position - len(content.data))
            content.data[position : position + len(data)] = data
            content.mtime_ms = self._env.clock.now_ms()

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        with self._env._lock:
            content = self._content
            content.clean_bytes = min(content.clean_bytes, size)
            if size < len(content.data):
                del content.data[size:]
            else:
                content.data += bytes(size - len(content.data))
            content.mtime_ms = self._env.clock.now_ms()
            self._size = size

    def sync(self) -> None:
        self._begin("sync")
        with self._env._lock:
            self._content.sync()

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self._is_open = False


class MemoryEnv:
    """The file system; see the module.

    The root directory `/` exists and is durable. Writes beyond `capacity_bytes`, if given, fail with ENOSPC.
    """

    def __init__(self, clock: Clock | None = None, *, capacity_bytes: int | None = None) -> None:
        self.clock: Clock = SettableClock() if clock is None else clock
        self.capacity_bytes = capacity_bytes
        self.knows_births = True
        """True if new files get a birth time; some file systems record none."""
        self.power_cycles = 0
        """Number of calls of `crash`."""
        self.change_count = 0
        """Number of calls that changed a file or directory."""
        self.sync_count = 0
        """Number of calls that made something durable: the points where a crash makes a difference."""
        self.before_change: Callable[[], None] | None = None
        """Called before each changing or syncing call has any effect."""
        self._root = _Directory()
        self._locked: set[str] = set()
        self._read_locked: list[str] = []
        self._made_for_readers: set[str] = set()
        self._lock = threading.RLock()
        self._faults = InjectedFaults()
        self.fail, self.before = self._faults.fail, self._faults.before
        self._is_off = False
        self._changes_left: int | None = None
        self._syncs_left: int | None = None

    def copy(self, clock: Clock | None = None) -> MemoryEnv:
        """Return another machine with the same files and the same unsynced state, but no open files, locks or faults."""
        env = MemoryEnv(clock, capacity_bytes=self.capacity_bytes)
        env.knows_births = self.knows_births
        with self._lock:
            env._root = self._root.copy({})
        return env

    # -- faults ----------------------------------------------------------------------------------------------------

    def crash(self, chance: random.Random | Loss | None = None) -> None:
        """Lose power and restart: strictly, or with `chance` choosing the unsynced data that survive."""
        with self._lock:
            self._root.crash(chance)
            self._locked.clear()
            self._read_locked.clear()
            self._made_for_readers.clear()
            self.power_cycles += 1
            self._is_off = False
            self._changes_left = self._syncs_left = None

    def power_off_after(self, *, changes: int | None = None, syncs: int | None = None) -> None:
        """Allow that many changes (or syncs); the next one and all later calls raise PowerOff. `crash` restarts the machine."""
        self._changes_left = changes
        self._syncs_left = syncs

    def _begin(self, operation: Operation, *paths: str) -> None:
        """Count a call, or fail it."""
        if self._is_off:
            raise PowerOff(f"{operation} {paths[0]}")
        self._faults.begin(operation, paths)
        if operation not in CHANGES and operation not in SYNCS:
            return
        with self._lock:
            if self.before_change is not None:
                self.before_change()
            if operation in CHANGES:
                self._changes_left = self._count_down(self._changes_left, operation, paths[0])
                self.change_count += 1
            else:
                self._syncs_left = self._count_down(self._syncs_left, operation, paths[0])
                self.sync_count += 1

    def _count_down(self, left: int | None, operation: str, path: str) -> int | None:
        if left == 0:
            self._is_off = True
            raise PowerOff(f"{operation} {path}")
        return None if left is None else left - 1

    def _check_space(self, content: _Content, size: int, path: str) -> None:
        if self.capacity_bytes is not None and size - len(content.data) > self.disk_usage("/")[1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # -- the file system -------------------------------------------------------------------------------------------

    def _node(self, path: str) -> _Content | _Directory | None:
        node: _Content | _Directory | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(name)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _file(self, path: str) -> _Content:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _split(self, path: str) -> tuple[_Directory, str]:
        parts = _parts(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self._directory("/".join(parts[:-1])), parts[-1]

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        with self._lock:
            self._begin("open", path)
            content = self._make_file(path) if create and self._node(path) is None else self._file(path)
            if content.is_read_only and not read_only:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return MemoryFile(self, path, content, read_only)

    def create_new(self, path: str) -> File:
        with self._lock:
            self._begin("open", path)
            if self._node(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return MemoryFile(self, path, self._make_file(path), False)

    def _make_file(self, path: str) -> _Content:
        directory, name = self._split(path)
        self._begin("create", path)
        now_ms = self.clock.now_ms()
        made = _Content(mtime_ms=now_ms, birth_ms=now_ms if self.knows_births else None)
        directory.change((name, made))
        return made

    def exists(self, path: str) -> bool:
        return self._node(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._node(path), _Directory)

    def is_link(self, path: str) -> bool:
        return False

    def list_dir(self, path: str) -> list[str]:
        with self._lock:
            return sorted(self._directory(path).entries)

    def make_dirs(self, path: str) -> None:
        with self._lock:
            self._begin("make_dirs", path)
            directory = self._root
            for name in _parts(path):
                node = directory.entries.get(name)
                if node is None:
                    node = _Directory()
                    directory.change((name, node))
                if not isinstance(node, _Directory):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                directory = node

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._begin("rename", old, new)
            node = self._node(old)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
            source, old_name = self._split(old)
            target, new_name = self._split(new)
            replaced = target.entries.get(new_name)
            if replaced is node:
                return
            if isinstance(replaced, _Directory) and (replaced.entries or not isinstance(node, _Directory)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
            if source is target:
                source.change((old_name, None), (new_name, node))
            else:
                target.change((new_name, node))
                source.change((old_name, None))

    def renamed_elsewhere(self, renames: Mapping[str, str]) -> AbstractContextManager[None]:
        return nullcontext()  # no other process has these files

    def link(self, path: str, new: str) -> None:
        with self._lock:
            self._begin("link", path, new)
            if self._node(new) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
            directory, name = self._split(new)
            directory.change((name, self._file(path)))

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        with self._lock:
            self._begin("remove", path)
            if missing_ok and self._node(path) is None:
                return
            self._file(path)
            directory, name = self._split(path)
            directory.change((name, None))

    def remove_tree(self, path: str) -> None:
        with self._lock:
            self._begin("remove", path)
            if self._node(path) is None:
                return
            self._directory(path).remove_all()
            directory, name = self._split(path)
            directory.change((name, None))

    def sync_dir(self, path: str) -> None:
        with self._lock:
            self._begin("sync_dir", path)
            with suppress(FileNotFoundError):
                self._directory(path).sync()

    def sync_file(self, path: str) -> None:
        self._begin("sync", path)
        with self._lock:
            self._file(path).sync()

    def file_size(self, path: str) -> int:
        return len(self._file(path).data)

    def mtime_ms(self, path: str) -> int:
        return self._file(path).mtime_ms

    def changed_ms(self, path: str) -> int:
        return 0 if self.is_dir(path) else self.mtime_ms(path)

    def birth_ms(self, path: str) -> int | None:
        return self._file(path).birth_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self._begin("set_mtime", path)
        self._file(path).mtime_ms = mtime_ms

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        with self._lock:
            self._begin("pread", path)
            check_size(path, self.file_size(path), most)
            return bytes(self._file(path).data)

    def view_file(self, path: str) -> View:
        return self.read_bytes(path, MAX_LOG_FILE)

    def disk_usage(self, path: str) -> tuple[int, int]:
        self._directory(path)
        total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return total, max(0, total - sum(len(content.data) for content in self._root.contents()))

    def set_read_only(self, path: str) -> None:
        self._file(path).is_read_only = True

    def write_tail(self, path: str, data: Buffer, position: int = 0) -> None:
        write_tail(self, path, data, position)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        replace_file(self, path, data, sync=sync)

    def lock(self, path: str) -> Lock:
        with self._lock:
            self._begin("lock", path)
            if path in self._locked or path in self._read_locked:
                raise InUse(f"{path}: in use by this process already")
            if self._node(path) is None:
                self._make_file(path)
            self._locked.add(path)
            return _MemoryLock(self, path)

    def lock_for_reading(self, path: str, *, create: bool = False) -> ReadLock | None:
        with self._lock:
            self._begin("lock", path)
            if path in self._locked:
                raise InUse(f"{path}: in use by this process")
            if self._node(path) is None:
                if not create:
                    return None
                self._make_file(path)
                self._made_for_readers.add(path)
            self._read_locked.append(path)
            return _MemoryReadLock(self, path, self.power_cycles)

    def release_read_lock(self, path: str, power_cycle: int) -> None:
        """Release a reader's lock taken in `power_cycle`; the last reader removes a file created for readers."""
        with self._lock:
            if power_cycle != self.power_cycles or path not in self._read_locked:
                return
            self._read_locked.remove(path)
            if path not in self._read_locked and path in self._made_for_readers:
                self._made_for_readers.discard(path)
                self.remove(path, missing_ok=True)

    def release_lock(self, path: str, power_cycle: int) -> None:
        """Release a lock taken in `power_cycle`; a lock from before a crash no longer exists."""
        with self._lock:
            if power_cycle == self.power_cycles and path in self._locked:
                self._locked.discard(path)
                self.remove(path, missing_ok=True)


class _MemoryLock:
    """A lock in memory; see `env.Lock`."""

    __slots__ = ("_env", "_path", "_power_cycle")

    def __init__(self, env: MemoryEnv, path: str) -> None:
        self._env = env
        self._path = path
        self._power_cycle = env.power_cycles

    def release(self) -> None:
        self._env.release_lock(self._path, self._power_cycle)


class _MemoryReadLock:
    """A reader's lock in memory; see `env.ReadLock`."""

    __slots__ = ("_env", "_path", "_power_cycle")

    def __init__(self, env: MemoryEnv, path: str, power_cycle: int) -> None:
        self._env = env
        self._path = path
        self._power_cycle = power_cycle

    def release(self) -> None:
        self._env.release_read_lock(self._path, self._power_cycle)
        self._path = ""


@lru_cache(maxsize=1024)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part and part != ".")


def tree_of(env: MemoryEnv) -> Tree:
    """Return all names and contents; equal for equal file systems."""
    with env._lock:
        return env._root.tree()
