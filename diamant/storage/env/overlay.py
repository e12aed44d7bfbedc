"""An overlay `Env`: it reads the files of another `Env` and keeps all changes to itself.

    overlay = OverlayEnv(RealEnv(), RealEnv(), "/scratch", SettableClock(now_ms))
    overlay.add_directory("/data/t-0")             in its current state, under the same name
    ...                                            load it, clean it, roll it
    before = overlay.fork()                        both continue from here, independently

A file is a name for some content. Content of the lower `Env` is opened read-only. The first change copies it into the scratch
directory; so does the first change after a `fork`, since both forks then share the content. Scratch content without a name in
any fork is removed. Memory: a few hundred bytes per file; disk: the changed files.

Only added files and directories are visible. Nothing is synced, locks have no effect, and the caller owns the scratch
directory. An overlay and its forks may be used by one thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress

from diamant.storage.env.clocks import Clock
from diamant.storage.env.env import MAX_SMALL_FILE, Buffer, Env, File, Lock, ReadLock, parent, replace_file, write_tail
from diamant.storage.env.view import View

_COPY_BYTES = 4 * 1024 * 1024


class _Content:
    """The content of a lower file or of a scratch file, which is removed when this object is deleted."""

    __slots__ = ("env", "is_scratch", "path")

    def __init__(self, env: Env, path: str, *, is_scratch: bool) -> None:
        self.env = env
        self.path = path
        self.is_scratch = is_scratch

    def __del__(self) -> None:
        if self.is_scratch:
            with suppress(OSError):
                self.env.remove(self.path, missing_ok=True)


class _Entry:
    """The file that a name refers to."""

    __slots__ = ("birth_ms", "content", "is_shared", "mtime_ms")

    def __init__(
        self, content: _Content, *, mtime_ms: int | None = None, birth_ms: int | None = None, is_shared: bool = False
    ) -> None:
        self.content = content
        self.mtime_ms = mtime_ms
        """Modification time; None while it is the lower file's."""
        self.birth_ms = birth_ms
        self.is_shared = is_shared
        """True if a fork may share the scratch file."""


class OverlayEnv:
    """An overlay over the files of `lower`. It keeps changes in `scratch`, an empty directory of `upper`."""

    def __init__(self, lower: Env, upper: Env, scratch: str, clock: Clock) -> None:
        self.clock = clock
        self._lower = lower
        self._upper = upper
        self._scratch = scratch
        self._entries: dict[str, _Entry] = {}
        self._directories: set[str] = set()
        self._numbers: Iterator[int] = itertools.count()

    # -- initial content -----------------------------------------------------------------------------------------

    def add_directory(self, path: str) -> None:
        """Make a lower directory and its files visible, but not its subdirectories."""
        self._directories.add(path)
        for name in self._lower.list_dir(path):
            if not self._lower.is_dir(f"{path}/{name}"):
                self.add_file(f"{path}/{name}")

    def add_file(self, path: str) -> None:
        """Make a lower file visible."""
        self._directories.add(parent(path))
        self._entries[path] = _Entry(_Content(self._lower, path, is_scratch=False))

    def fork(self, clock: Clock | None = None) -> OverlayEnv:
        """Return an independent overlay with the same files."""
        fork = OverlayEnv(self._lower, self._upper, self._scratch, self.clock if clock is None else clock)
        fork._directories = set(self._directories)
        fork._numbers = self._numbers
        for path, entry in self._entries.items():
            entry.is_shared = True
            fork._entries[path] = _Entry(
                entry.content, mtime_ms=entry.mtime_ms, birth_ms=entry.birth_ms, is_shared=True
            )
        return fork

    def free_bytes(self) -> int:
        """Return the number of free bytes in the scratch directory's file system."""
        return self._upper.disk_usage(self._scratch)[1]

    @property
    def scratch(self) -> str:
        """Path of the scratch directory."""
        return self._scratch

    # -- files ---------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        entry = self._entries.get(path)
        if entry is None:
            if not create or read_only:
                raise FileNotFoundError(2, "No such file", path)
            entry = self._create(path)
        return _OverlayFile(self, path, entry, is_read_only=read_only)

    def create_new(self, path: str) -> File:
        if path in self._entries:
            raise FileExistsError(17, "File exists", path)
        return _OverlayFile(self, path, self._create(path), is_read_only=False)

    def _create(self, path: str) -> _Entry:
        if parent(path) not in self._directories:
            raise FileNotFoundError(2, "No such directory", parent(path))
        now_ms = self.clock.now_ms()
        self._entries[path] = entry = _Entry(self._new_content(), mtime_ms=now_ms, birth_ms=now_ms)
        return entry

    def _new_content(self) -> _Content:
        path = f"{self._scratch}/{next(self._numbers)}"
        self._upper.create_new(path).close()
        return _Content(self._upper, path, is_scratch=True)

    def make_own(self, entry: _Entry) -> None:
        """Give an entry writable content of its own. Called by open files before a change."""
        old = entry.content
        if old.is_scratch and not entry.is_shared:
            return
        if entry.birth_ms is None:
            entry.birth_ms = old.env.birth_ms(old.path)
        new = self._new_content()
        source = old.env.open(old.path, read_only=True)
        target = self._upper.open(new.path)
        try:
            position = 0
            while data := source.pread(_COPY_BYTES, position):
                target.append(data)
                position += len(data)
        finally:
            source.close()
            target.close()
        entry.content, entry.is_shared = new, False

    def exists(self, path: str) -> bool:
        return path in self._entries or path in self._directories

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def is_link(self, path: str) -> bool:
        return False

    def list_dir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(2, "No such directory", path)
        below = f"{path}/"
        entries = {
            path_below[len(below) :]
            for path_below in (*self._entries, *self._directories)
            if path_below.startswith(below)
        }
        return sorted(name for name in entries if "/" not in name)

    def make_dirs(self, path: str) -> None:
        while path not in self._directories and path not in ("", ".", "/"):
            self._directories.add(path)
            path = parent(path)

    def rename(self, old: str, new: str) -> None:
        self._entries[new] = self._take(old)

    def renamed_elsewhere(self, renames: Mapping[str, str]) -> AbstractContextManager[None]:
        return nullcontext()  # no other process has these files

    def link(self, path: str, new: str) -> None:
        raise OSError(95, "hard links are not supported", path)

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        if not missing_ok or path in self._entries:
            self._take(path)

    def _take(self, path: str) -> _Entry:
        entry = self._entries.pop(path, None)
        if entry is None:
            raise FileNotFoundError(2, "No such file", path)
        return entry

    def remove_tree(self, path: str) -> None:
        below = f"{path}/"
        self._entries = {file: entry for file, entry in self._entries.items() if not file.startswith(below)}
        self._directories = {
            directory for directory in self._directories if directory != path and not directory.startswith(below)
        }

    def _entry(self, path: str) -> _Entry:
        entry = self._entries.get(path)
        if entry is None:
            raise FileNotFoundError(2, "No such file", path)
        return entry

    def file_size(self, path: str) -> int:
        content = self._entry(path).content
        return content.env.file_size(content.path)

    def mtime_ms(self, path: str) -> int:
        entry = self._entry(path)
        if entry.mtime_ms is None:
            entry.mtime_ms = entry.content.env.mtime_ms(entry.content.path)
        return entry.mtime_ms

    def changed_ms(self, path: str) -> int:
        return self.mtime_ms(path) if path in self._entries else 0

    def birth_ms(self, path: str) -> int | None:
        entry = self._entry(path)
        if entry.birth_ms is None and not entry.content.is_scratch:
            entry.birth_ms = entry.content.env.birth_ms(entry.content.path)
        return entry.birth_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self._entry(path).mtime_ms = mtime_ms

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        content = self._entry(path).content
        return content.env.read_bytes(content.path, most)

    def view_file(self, path: str) -> View:
        content = self._entry(path).content
        return content.env.view_file(content.path)

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self._upper.disk_usage(self._scratch)

    def write_tail(self, path: str, data: Buffer, position: int = 0) -> None:
        write_tail(self, path, data, position)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        replace_file(self, path, data, sync=False)

    # -- calls without effect ------------------------------------------------------------------------------------

    def sync_dir(self, path: str) -> None:
        """Do nothing: nothing in an overlay outlives the process."""

    def sync_file(self, path: str) -> None:
        """Sync nothing: nothing in an overlay outlives the process."""
        self._entry(path)

    def set_read_only(self, path: str) -> None:
        """Do nothing: there is no other writer."""

    def lock(self, path: str) -> Lock:
        return _NoLock()

    def lock_for_reading(self, path: str, *, create: bool = False) -> ReadLock | None:
        return None


class _NoLock:
    def release(self) -> None:
        """Do nothing: there is no other user."""


class _OverlayFile:
    """An open file. It keeps its content after its name is removed, and shows changes made through other handles."""

    __slots__ = ("_content", "_entry", "_env", "_file", "_is_read_only", "path")

    def __init__(self, env: OverlayEnv, path: str, entry: _Entry, *, is_read_only: bool) -> None:
        self.path = path
        self._env = env
        self._entry = entry
        self._is_read_only = is_read_only
        self._content = entry.content
        self._file: File | None = self._open()

    def _open(self) -> File:
        # Scratch files are opened for writing immediately, since they belong to this entry unless they are shared.
        is_ours = self._content.is_scratch and not self._is_read_only
        return self._content.env.open(self._content.path, read_only=not is_ours)

    def _now(self) -> File:
        """Return the open file of the current content."""
        if self._file is None:
            raise OSError(9, "file is closed", self.path)
        if self._content is not self._entry.content:
            self._file.close()
            self._content = self._entry.content
            self._file = self._open()
        return self._file

    def _for_change(self) -> File:
        if self._is_read_only:
            raise OSError(9, "file is open for reading only", self.path)
        self._env.make_own(self._entry)
        self._entry.mtime_ms = self._env.clock.now_ms()
        return self._now()

    def pread(self, count: int, position: int) -> bytes:
        return self._now().pread(count, position)

    def try_pread(self, count: int, position: int) -> bytes | None:
        return self._now().try_pread(count, position)

    def append(self, *buffers: Buffer) -> None:
        self._for_change().append(*buffers)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._for_change().pwrite(data, position)

    @property
    def identity(self) -> tuple[int, int] | None:
        return self._now().identity

    def size(self) -> int:
        return self._now().size()

    def truncate(self, size: int) -> None:
        if size != self.size():
            self._for_change().truncate(size)

    def sync(self) -> None:
        """Do nothing: nothing in an overlay outlives the process."""

    def fileno(self) -> int | None:
        return self._now().fileno()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
