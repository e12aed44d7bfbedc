"""The file below an offset or time index: fixed-size entries, nothing else.

Kafka preallocates the index of its active segment with zeros and trims it when the segment closes, so after a crash of
Kafka a file ends in zero entries. They are recognised here (no valid entry but the first can be all zero) and not
counted; we write exactly what is needed. No descriptor is held between calls.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from struct import Struct
from typing import NamedTuple

from diamant.storage.env.env import Buffer, Env, File
from diamant.storage.env.view import part_of

BLOCK_ENTRIES = 512
"""Entries that are read together where a search ends."""


class StoredEntries(NamedTuple):
    """The result of examining the file."""

    entries: int
    """Whole entries before the zero padding, if there is any."""
    file_bytes: int
    """The file's length; -1 if there is no file."""
    last: bytes
    """The last entry's bytes; empty if there is none."""


class IndexFile:
    """A file of entries of `entry_size` bytes. `lock` guards whatever of its owner's state is written through it."""

    __slots__ = ("_env", "_is_unsynced", "entry_size", "lock", "path")

    def __init__(self, env: Env, path: str, entry_size: int) -> None:
        self._env = env
        self.path = path
        self.entry_size = entry_size
        self.lock = threading.Lock()
        self._is_unsynced = False

    def inspect(self) -> StoredEntries:
        """Count the entries. One look at the end of the file, and a binary search in one that is padded."""
        try:
            file = self._env.open(self.path, read_only=True)
        except FileNotFoundError:
            return StoredEntries(0, -1, b"")
        try:
            file_bytes = file.size()
            count = file_bytes // self.entry_size
            last = self._read_entry(file, count - 1) if count else b""
            if count > 1 and not any(last):
                count = self._count_before_padding(file, count)
                last = self._read_entry(file, count - 1) if count else b""
            return StoredEntries(count, file_bytes, last)
        finally:
            file.close()

    def _read_entry(self, file: File, index: int) -> bytes:
        return file.pread(self.entry_size, index * self.entry_size)

    def _count_before_padding(self, file: File, count: int) -> int:
        """Return how many entries come before the zeros, given that the last of `count` (2 or more) is zero."""
        low, high = 1, count - 1  # Entry `high` is zero; entries 1 to `low` - 1 are not.
        while low < high:
            middle = (low + high) // 2
            if any(self._read_entry(file, middle)):
                low = middle + 1
            else:
                high = middle
        # The very first entry may be all zero, but not with a zero entry after it and nothing else in the file.
        return 0 if low == 1 and not any(self._read_entry(file, 0)) else low

    def entry(self, index: int) -> bytes:
        """Return an entry of a file that is not being written."""
        size = self.entry_size
        return part_of(self._env.view_file(self.path), index * size, size).ljust(size, b"\0")

    def near(self, count: int, field: Struct, at: int, target: int) -> tuple[bytes, int]:
        """Return entries around where `target` is or would be, and how many they are.

        Of the first `count` in a file that is not being written, whose `field` at byte `at` ascends. The last with a field at or
        below `target` and the one after it are among them. Entries that another program has cut off read as zeros: they lead
        to the segment's beginning, from where a read is slow, and right.
        """
        view, size = self._env.view_file(self.path), self.entry_size
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

    def read(self, count: int) -> bytes:
        """Return the bytes of the first `count` entries."""
        return self._env.read_bytes(self.path)[: count * self.entry_size] if count else b""

    def write(self, data: Buffer, count: int) -> None:
        """Put `data` after the first `count` entries and end the file there."""
        file = self._env.open(self.path, create=True)
        try:
            position = count * self.entry_size
            if file.size() > position:
                file.truncate(position)
            if data:
                file.pwrite(data, position)
            self._is_unsynced = True
        finally:
            file.close()

    def sync(self) -> None:
        """Make durable what was written since the last call; no error if the file has been removed since."""
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

    def rename(self, path: str) -> None:
        """Rename the file, if there is one yet."""
        if self._env.exists(self.path):
            self._env.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self._env.remove(self.path, missing_ok=True)
