"""The entries of an offset or time index: in its file, and in memory while it is appended to.

The file is fixed-size entries, nothing else. Kafka preallocates the index of its active segment with zeros and trims it when
the segment closes, so after a crash of Kafka a file ends in zero entries. They are recognised here (no valid entry but the
first can be all zero) and not counted; we write exactly what is needed. No descriptor is held between calls.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, TypeAlias

from diamant.storage.env.env import Env, File
from diamant.storage.env.view import part_of
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment_outline import IndexOutline

BLOCK_ENTRIES = 512
"""Entries that are read together where a search ends."""

Columns: TypeAlias = "tuple[array[int], array[int]]"
"""Offsets relative to the segment's base, and what belongs to each. The latter are appended first: the length of the former
counts whole entries."""


class EntryLayout(NamedTuple):
    """The bytes of entries. `pack` may change the columns that it is given."""

    entry_bytes: int
    pack: Callable[[array[int], array[int]], bytes]
    unpack: Callable[[bytes], Columns]


class StoredEntries(NamedTuple):
    """The result of examining a file."""

    entries: int
    """Whole entries before the zero padding, if there is any."""
    file_bytes: int
    """The file's length; -1 if there is no file."""
    last: bytes
    """The last entry's bytes; empty if there is none."""


def stored_entries(env: Env, path: str, entry_bytes: int) -> StoredEntries:
    """Count the entries of a file. One look at its end, and a binary search in one that is padded."""
    try:
        file = env.open(path, read_only=True)
    except FileNotFoundError:
        return StoredEntries(0, -1, b"")
    try:
        file_bytes = file.size()
        count = file_bytes // entry_bytes
        last = _read_entry(file, count - 1, entry_bytes) if count else b""
        if count > 1 and not any(last):
            count = _count_before_padding(file, count, entry_bytes)
            last = _read_entry(file, count - 1, entry_bytes) if count else b""
        return StoredEntries(count, file_bytes, last)
    finally:
        file.close()


def _read_entry(file: File, index: int, entry_bytes: int) -> bytes:
    return file.pread(entry_bytes, index * entry_bytes)


def _count_before_padding(file: File, count: int, entry_bytes: int) -> int:
    """Return how many entries come before the zeros, given that the last of `count` (2 or more) is zero."""
    low, high = 1, count - 1  # Entry `high` is zero; entries 1 to `low` - 1 are not.
    while low < high:
        middle = (low + high) // 2
        if any(_read_entry(file, middle, entry_bytes)):
            low = middle + 1
        else:
            high = middle
    # The very first entry may be all zero, but not with a zero entry after it and nothing else in the file.
    return 0 if low == 1 and not any(_read_entry(file, 0, entry_bytes)) else low


class IndexFile:
    """The entries of one index. Opening does nothing at all; the file is looked at when first asked for.

    Searches may come from any thread, everything else from the owner, except `flush` and `sync`, which may run in another
    thread at the same time. Memory: the columns, while it is appended to; else a few numbers.
    """

    __slots__ = ("_env", "_file_bytes", "_is_unsynced", "_last", "_layout", "_lock", "_stored", "has_stand_in", "heap",
                 "path")  # fmt: skip

    def __init__(self, env: Env, path: str, layout: EntryLayout) -> None:
        self._env = env
        self.path = path
        """Path of the file, even before it exists."""
        self._layout = layout
        self._lock = threading.Lock()
        """Guards what is written, and its numbers."""
        self.heap: Columns | None = None
        """All entries, while it is appended to."""
        self._stored = -1
        """Entries in the file that agree with ours; -1 until the file was looked at."""
        self._file_bytes = -1
        """Length of the file; -1 if there is none."""
        self._last: tuple[int, int] | None = None
        """The last stored entry, while there is no heap."""
        self._is_unsynced = False
        self.has_stand_in = False
        """True if the heap does not belong to the file."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        if self.heap is not None:
            return len(self.heap[0])
        if self._stored < 0:
            with self._lock:
                if self._stored < 0:
                    self._inspect()
        return self._stored

    @property
    def last(self) -> tuple[int, int] | None:
        """The last entry, as the columns have it; None if there is none."""
        heap = self.heap
        if heap is None:
            return self._last if self.entries else None
        offsets, values = heap
        count = len(offsets)
        return (offsets[count - 1], values[count - 1]) if count else None

    def _inspect(self) -> None:
        self._stored, self._file_bytes, last = stored_entries(self._env, self.path, self._layout.entry_bytes)
        if last:
            (offset,), (value,) = self._layout.unpack(last)
            self._last = offset, value

    def load(self) -> Columns:
        """Return the entries, to be appended to: from now on they are in memory. The next append meets no disk, no OSError."""
        if self.heap is not None:
            return self.heap
        with self._lock:
            if self._stored < 0:
                self._inspect()
            size = self._stored * self._layout.entry_bytes
            self.heap = heap = self._layout.unpack(self._env.read_bytes(self.path)[:size] if size else b"")
            return heap

    def sanity_check(self, base_offset: int) -> None:
        """Raise CorruptLog if the file cannot be an index: odd length, or a last entry below the base offset."""
        with self._lock:
            self._inspect()
        size = self._layout.entry_bytes
        if self._file_bytes > 0 and self._file_bytes % size:
            raise CorruptLog(
                self.path, self._file_bytes, f"expected a multiple of {size} bytes, got {self._file_bytes}"
            )
        if self._stored and self._last is not None and self._last[0] < 0:
            found = base_offset + self._last[0]
            raise CorruptLog(self.path, (self._stored - 1) * size, f"expected offsets from {base_offset}, got {found}")

    def entry(self, index: int) -> tuple[int, int]:
        """Return an entry as the columns have it; IndexError if there is none."""
        if not 0 <= index < self.entries:
            raise IndexError(f"{self.path}: entry {index} of {self.entries}")
        if self.heap is not None:
            return self.heap[0][index], self.heap[1][index]
        size = self._layout.entry_bytes
        data = part_of(self._env.view_file(self.path), index * size, size).ljust(size, b"\0")
        (offset,), (value,) = self._layout.unpack(data)
        return offset, value

    def near(self, count: int, field: Struct, at: int, target: int) -> tuple[bytes, int]:
        """Return entries around where `target` is or would be, and how many they are.

        Of the first `count`, whose `field` at byte `at` ascends. The last with a field at or below `target` and the one after it
        are among them. Entries that another program has cut off read as zeros: they lead to the segment's beginning, from
        where a read is slow, and right.
        """
        view, size = self._env.view_file(self.path), self._layout.entry_bytes
        if isinstance(view, bytes):
            return view.ljust(count * size, b"\0"), count

        def first_of(block: int) -> int:
            found: int = field.unpack(
                view.read(block * BLOCK_ENTRIES * size + at, field.size).ljust(field.size, b"\0")
            )[0]
            return found

        blocks = range(-(-count // BLOCK_ENTRIES))
        first = max(0, bisect_right(blocks, target, key=first_of) - 1) * BLOCK_ENTRIES
        found = min(BLOCK_ENTRIES + 1, count - first)
        return view.read(first * size, found * size).ljust(found * size, b"\0"), found

    def flush(self) -> None:
        """Write what was appended to the file (created if need be, and without padding); nothing is synced."""
        with self._lock:
            if self.has_stand_in:
                return
            if self._stored < 0:
                self._inspect()
            heap, data = self.heap, b""
            if heap is not None and (count := len(heap[0])) > self._stored:
                data = self._layout.pack(heap[0][self._stored : count], heap[1][self._stored : count])
            if data or self._file_bytes != self._stored * self._layout.entry_bytes:
                self._write(data)

    def _write(self, data: bytes) -> None:
        """Put `data` after the stored entries and end the file there."""
        position = self._stored * self._layout.entry_bytes
        file = self._env.open(self.path, create=True)
        try:
            if file.size() > position:
                file.truncate(position)
            if data:
                file.pwrite(data, position)
            self._is_unsynced = True
        finally:
            file.close()
        self._stored += len(data) // self._layout.entry_bytes
        self._file_bytes = position + len(data)

    def sync(self) -> None:
        """Write what was appended and make the file durable; blocks for the disk. No error if it has been removed since."""
        self.flush()
        if not self._is_unsynced:
            return
        self._is_unsynced = False
        try:
            self._env.sync_file(self.path)
        except FileNotFoundError:
            return
        except OSError:
            self._is_unsynced = True
            raise

    def trim_to_valid_size(self) -> None:
        """Write what was appended and give back the memory: the segment will not be appended to for now."""
        self.flush()
        with self._lock:
            if self.heap is not None and len(self.heap[0]) == self._stored and not self.has_stand_in:
                self._last = self.last
                self.heap = None

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries, in the file, too."""
        offsets, values = self.load()
        with self._lock:
            del offsets[count:]
            del values[count:]
            if count < self._stored or self._file_bytes > self._stored * self._layout.entry_bytes:
                self._stored = min(count, self._stored)
                self._write(b"")

    def discard(self) -> None:
        """Drop all entries, and the file until something is written."""
        with self._lock:
            self._env.remove(self.path, missing_ok=True)
            self.has_stand_in = False
            self.heap = self._layout.unpack(b"")
            self._stored = 0
            self._file_bytes = -1

    def stand_in(self, entries: Columns) -> None:
        """Use other entries than those of the file, which stays as it is.

        For an index that takes no more appends. Searches in other threads see one or the other.
        """
        with self._lock:
            self.has_stand_in = True
            self.heap = entries

    def rename(self, path: str) -> None:
        """Give the file another name, if there is one yet; it is created under the new name otherwise."""
        with self._lock:  # a flush in another thread must not write under the old name
            if self._env.exists(self.path):
                self._env.rename(self.path, path)
            self.path = path

    def take_path(self, path: str) -> None:
        """Know the file by another name: another process renames it, or has done so."""
        with self._lock:
            self.path = path

    @property
    def outline(self) -> IndexOutline:
        """What is known of the file without its entries."""
        with self._lock:
            if self._stored < 0:
                self._inspect()
            return IndexOutline(self._stored, self._file_bytes, *(self.last or (0, 0)))

    def take_outline(self, outline: IndexOutline) -> None:
        """Believe what another has found in the file, in place of a look at it."""
        with self._lock:
            self._stored, self._file_bytes = outline.entries, outline.file_bytes
            self._last = outline.offset, outline.value
