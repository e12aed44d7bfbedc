"""The entries of an offset or time index: in its file, and in memory during appends.

The file contains fixed-size entries only. Kafka preallocates the index of its active segment with zeros and trims it when the
segment closes, so a crash of Kafka leaves entries of zeros at the end. They are recognised (of all valid entries, only the first
can be all zero) and not counted. We write no padding. No file descriptor is kept open between calls.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, TypeAlias

from diamant.storage.env.env import MAX_LOG_FILE, Env, File
from diamant.storage.env.view import part_of
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment_outline import IndexOutline

BLOCK_ENTRIES = 512
"""Number of entries in the block that a search reads last."""

Columns: TypeAlias = "tuple[array[int], array[int]]"
"""Offsets relative to the segment's base, and their values. A value is appended before its offset, so there are as many whole
entries as offsets."""


class EntryLayout(NamedTuple):
    """Binary layout of entries. `pack` may modify the columns passed to it."""

    entry_bytes: int
    pack: Callable[[array[int], array[int]], bytes]
    unpack: Callable[[bytes], Columns]


class StoredEntries(NamedTuple):
    """Result of examining an index file."""

    entries: int
    """Number of whole entries, without zero padding."""
    file_bytes: int
    """The file's length; -1 if there is no file."""
    last: bytes
    """The last entry's bytes; empty if there is none."""


def stored_entries(env: Env, path: str, entry_bytes: int) -> StoredEntries:
    """Count the entries of a file, with one read at its end, and a binary search if it is padded."""
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
    """Return the number of entries before the zeros, given that the last of the `count` entries (2 or more) is zero."""
    low, high = 1, count - 1  # Entry `high` is zero; entries 1 to `low` - 1 are not.
    while low < high:
        middle = (low + high) // 2
        if any(_read_entry(file, middle, entry_bytes)):
            low = middle + 1
        else:
            high = middle
    # The first entry may be all zero, unless the whole file is zero.
    return 0 if low == 1 and not any(_read_entry(file, 0, entry_bytes)) else low


class IndexFile:
    """The entries of one index. Construction does no I/O; the file is examined at first use.

    Any thread may search; `flush` and `sync` may run in another thread; only the owner thread may do anything else. Memory: the
    columns during appends, otherwise a few numbers.
    """

    __slots__ = ("_env", "_file_bytes", "_is_unsynced", "_last", "_layout", "_lock", "_stored", "has_stand_in", "heap",
                 "path")  # fmt: skip

    def __init__(self, env: Env, path: str, layout: EntryLayout) -> None:
        self._env = env
        self.path = path
        """Path of the file, even before it exists."""
        self._layout = layout
        self._lock = threading.Lock()
        """Guards writes and their counters."""
        self.heap: Columns | None = None
        """All entries in memory, during appends; None otherwise."""
        self._stored = -1
        """Number of entries in the file that match `heap`; -1 until the file is examined."""
        self._file_bytes = -1
        """Length of the file; -1 if there is none."""
        self._last: tuple[int, int] | None = None
        """The last stored entry, while `heap` is None."""
        self._is_unsynced = False
        self.has_stand_in = False
        """True if `heap` is used instead of the file's entries."""

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
        """The last entry (relative offset, value); None if there is none."""
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
        """Read all entries into memory and return them, so that the next append does no I/O and raises no OSError."""
        if self.heap is not None:
            return self.heap
        with self._lock:
            if self._stored < 0:
                self._inspect()
            size = self._stored * self._layout.entry_bytes
            self.heap = heap = self._layout.unpack(
                self._env.read_bytes(self.path, MAX_LOG_FILE)[:size] if size else b""
            )
            return heap

    def sanity_check(self, base_offset: int) -> None:
        """Raise CorruptLog if the file cannot be an index: it has a partial entry, or its last offset is below the base."""
        with self._lock:
            self._inspect()
        size = self._layout.entry_bytes
        if self._file_bytes > 0 and self._file_bytes % size:
            raise CorruptLog(
                self.path, self._file_bytes, f"expected a multiple of {size} bytes, got {self._file_bytes}"
            )
        if self._stored and self._last is not None and self._last[0] < 0:
            last_offset = base_offset + self._last[0]
            raise CorruptLog(
                self.path, (self._stored - 1) * size, f"expected offsets from {base_offset}, got {last_offset}"
            )

    def entry(self, index: int) -> tuple[int, int]:
        """Return an entry (relative offset, value). Raises IndexError if it does not exist."""
        if not 0 <= index < self.entries:
            raise IndexError(f"{self.path}: entry {index} of {self.entries}")
        if self.heap is not None:
            return self.heap[0][index], self.heap[1][index]
        size = self._layout.entry_bytes
        data = part_of(self._env.view_file(self.path), index * size, size).ljust(size, b"\0")
        (offset,), (value,) = self._layout.unpack(data)
        return offset, value

    def near(self, count: int, field: Struct, at: int, target: int) -> tuple[bytes, int]:
        """Return the bytes of the entries around `target`, and their number.

        Searches the first `count` entries, in which the number that `field` decodes at byte `at` ascends. The result includes
        the last entry whose number is at or below `target`, and its successor. Entries that another program has cut off read
        as zeros: they point to the segment's start, from which a read is slow but correct.
        """
        view, size = self._env.view_file(self.path), self._layout.entry_bytes
        if isinstance(view, bytes):
            return view.ljust(count * size, b"\0"), count

        def first_of(block: int) -> int:
            near_count: int = field.unpack(
                view.read(block * BLOCK_ENTRIES * size + at, field.size).ljust(field.size, b"\0")
            )[0]
            return near_count

        blocks = range(-(-count // BLOCK_ENTRIES))
        first = max(0, bisect_right(blocks, target, key=first_of) - 1) * BLOCK_ENTRIES
        near_count = min(BLOCK_ENTRIES + 1, count - first)
        return view.read(first * size, near_count * size).ljust(near_count * size, b"\0"), near_count

    def flush(self) -> None:
        """Write appended entries to the file, and create it if it is missing; does not sync."""
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
        """Write `data` after the stored entries, and end the file after the data."""
        position = self._stored * self._layout.entry_bytes
        self._env.write_tail(self.path, data, position)
        self._is_unsynced = True
        self._stored += len(data) // self._layout.entry_bytes
        self._file_bytes = position + len(data)

    def sync(self) -> None:
        """Write appended entries and sync the file; blocks on the disk. Raises no error if the file was removed."""
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
        """Write appended entries and free the memory, since no appends are expected."""
        self.flush()
        with self._lock:
            if self.heap is not None and len(self.heap[0]) == self._stored and not self.has_stand_in:
                offsets, values = self.heap
                self._last = (offsets[-1], values[-1]) if offsets else None
                self.heap = None

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries, in memory and in the file."""
        offsets, values = self.load()
        with self._lock:
            del offsets[count:]
            del values[count:]
            if count < self._stored or self._file_bytes > self._stored * self._layout.entry_bytes:
                self._stored = min(count, self._stored)
                self._write(b"")

    def discard(self) -> None:
        """Drop all entries and remove the file; the next write recreates it."""
        with self._lock:
            self._env.remove(self.path, missing_ok=True)
            self.has_stand_in = False
            self.heap = self._layout.unpack(b"")
            self._stored = 0
            self._file_bytes = -1

    def stand_in(self, entries: Columns) -> None:
        """Use `entries` in place of the file's; the file does not change.

        Only for an index that takes no more appends. Concurrent searches in other threads see either set of entries.
        """
        with self._lock:
            self.has_stand_in = True
            self.heap = entries

    def rename(self, path: str) -> None:
        """Rename the file; if it does not exist yet, it will be created under the new name."""
        with self._lock:  # a flush in another thread must not write under the old name
            if self._env.exists(self.path):
                self._env.rename(self.path, path)
            self.path = path

    def take_path(self, path: str) -> None:
        """Adopt a new path; another process renames the file."""
        with self._lock:
            self.path = path

    @property
    def outline(self) -> IndexOutline:
        """The number of entries, the length of the file, and the last entry."""
        with self._lock:
            if self._stored < 0:
                self._inspect()
            return IndexOutline(self._stored, self._file_bytes, *(self.last or (0, 0)))

    def take_outline(self, outline: IndexOutline) -> None:
        """Accept another process's outline instead of examining the file."""
        with self._lock:
            self._stored, self._file_bytes = outline.entries, outline.file_bytes
            self._last = outline.offset, outline.value
