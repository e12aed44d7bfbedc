"""Offset index of a segment: where in the `.log` file to start looking for an offset (Kafka's OffsetIndex).

    entry, 8 bytes, big-endian, in ascending order of both:
      0  4  offset - base offset of the segment, 0..2^31-1
      4  4  position in the `.log` file

An entry says: the batch that begins at `position` has `offset` as its LAST offset. Batches are indexed sparsely, about
one every `index.interval.bytes`, and never the first of a segment.

    lookup(offset) = the entry with the largest offset <= the one asked for, or (base offset, 0)

Memory: an index that is appended to keeps its entries in two arrays, 8 bytes per entry (2 MiB for a full 1 GiB segment
at the default interval, `segment.index.bytes` at most). All others keep a few numbers and search the file through
`Env.view_file`. What was appended is in the file after `flush`; before that a crash loses it, and recovery rebuilds it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NoReturn

from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.index_file import IndexFile
from diamant.storage.segments.segment_outline import IndexOutline

ENTRY_SIZE = 8
MAX_RELATIVE_OFFSET = 2**31 - 1

_ENTRY = Struct(">ii")
_INT32 = Struct(">i")
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


class OffsetIndex:
    """The offset index of the segment at `base_offset`, at most `max_bytes` long.

    Opening does nothing at all; the file is looked at when first asked for. Lookups may come from any thread,
    everything else from the owner, except `flush` and `sync`, which may run in another thread at the same time.
    """

    __slots__ = (
        "_file",
        "_file_bytes",
        "_has_stand_in",
        "_heap",
        "_last",
        "_last_relative",
        "_stored",
        "base_offset",
        "max_entries",
    )

    def __init__(self, env: Env, path: str, base_offset: int, max_bytes: int) -> None:
        self.base_offset = base_offset
        self.max_entries = max_bytes // ENTRY_SIZE
        self._file = IndexFile(env, path, ENTRY_SIZE)
        self._heap: tuple[array[int], array[int]] | None = None
        """Relative offsets and positions. Positions are appended first: the offsets' length counts whole entries."""
        self._stored = -1
        """Entries in the file that agree with ours; -1 until the file was looked at."""
        self._file_bytes = -1
        """Length of the file; -1 if there is none."""
        self._last = (0, 0)
        """Relative offset and position of the last stored entry, while there is no heap."""
        self._last_relative = -1
        self._has_stand_in = False
        """True if the heap does not belong to the file."""

    @property
    def path(self) -> str:
        """Path of the file, even before it exists."""
        return self._file.path

    @property
    def entries(self) -> int:
        """Number of entries."""
        heap = self._heap
        return len(heap[0]) if heap is not None else self._count()

    @property
    def is_full(self) -> bool:
        """True if no further entry fits, so that the segment must roll."""
        heap = self._heap
        return (len(heap[0]) if heap is not None else self._count()) >= self.max_entries

    @property
    def last_entry(self) -> tuple[int, int]:
        """`(offset, position)` of the last entry, `(base_offset, 0)` if there is none."""
        heap = self._heap
        if heap is None:
            if not self._count():
                return self.base_offset, 0
            relative, position = self._last
            return self.base_offset + relative, position
        offsets, positions = heap
        count = len(offsets)
        return (self.base_offset + offsets[count - 1], positions[count - 1]) if count else (self.base_offset, 0)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset if there is none."""
        return self.last_entry[0]

    def entry(self, index: int) -> tuple[int, int]:
        """Return `(offset, position)` of entry `index`; IndexError if there is none."""
        if not 0 <= index < self.entries:
            raise IndexError(f"{self.path}: entry {index} of {self.entries}")
        heap = self._heap
        if heap is not None:
            return self.base_offset + heap[0][index], heap[1][index]
        relative, position = _ENTRY.unpack(self._file.entry(index))
        return self.base_offset + relative, position

    def load(self) -> None:
        """Read what an append needs of the file, if that has not happened yet: the next append meets no disk, no OSError."""
        if self._heap is None:
            self._load()

    def append(self, offset: int, position: int) -> None:
        """Add an entry: `offset` is the last offset of the batch that begins at `position`.

        ValueError if the index is full, or `offset` is not above the last one's, or is too far from the base offset.
        """
        heap = self._heap
        if heap is None:
            heap = self._load()
        offsets, positions = heap
        relative = offset - self.base_offset
        if relative <= self._last_relative or relative > MAX_RELATIVE_OFFSET or len(offsets) >= self.max_entries:
            self._refuse(offset, len(offsets))
        positions.append(position)
        offsets.append(relative)
        self._last_relative = relative

    def _refuse(self, offset: int, count: int) -> NoReturn:
        if count >= self.max_entries:
            raise ValueError(f"{self.path}: full with {count} entries, offset {offset} does not fit")
        if offset - self.base_offset > MAX_RELATIVE_OFFSET:
            raise ValueError(f"{self.path}: offset {offset} is too far above the base offset {self.base_offset}")
        raise ValueError(
            f"{self.path}: expected an offset above {self.base_offset + self._last_relative}, got {offset}"
        )

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return `(offset, position)` of the last entry at or below `offset`, `(base_offset, 0)` if there is none."""
        base_offset = self.base_offset
        heap = self._heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_right(offsets, offset - base_offset) - 1
            return (base_offset + offsets[index], positions[index]) if index >= 0 else (base_offset, 0)
        return self._search(offset - base_offset, 0)

    def lookup_position(self, position: int) -> tuple[int, int]:
        """Return `(offset, position)` of the last entry at or below a position, `(base_offset, 0)` if there is none."""
        heap = self._heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_right(positions, position, 0, len(offsets)) - 1
            return (self.base_offset + offsets[index], positions[index]) if index >= 0 else (self.base_offset, 0)
        return self._search(position, 4)

    def _search(self, target: int, field: int) -> tuple[int, int]:
        """Find the last entry in the file whose field at byte `field` is at or below `target`."""
        count = self._count()
        if not count:
            return self.base_offset, 0
        near, found = self._file.near(count, _INT32, field, target)
        unpack_from = _INT32.unpack_from
        index = bisect_right(range(found), target, key=lambda at: unpack_from(near, at * 8 + field)[0]) - 1
        if index < 0:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(near, index * ENTRY_SIZE)
        return self.base_offset + relative, position

    def upper_bound(self, position: int, size: int) -> int | None:
        """Return the offset of the first entry at or after `position + size`, None if it lies beyond the last entry.

        All data in those `size` bytes are below that offset: the search for aborted transactions need go no further
        (`OffsetIndex.fetchUpperBoundOffset`).
        """
        target = position + size
        heap = self._heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_left(positions, target, 0, len(offsets))
            return self.base_offset + offsets[index] if index < len(offsets) else None
        count = self._count()
        if not count or self._last[1] < target:
            return None
        near, found = self._file.near(count, _INT32, 4, target)
        index = bisect_left(range(found), target, key=lambda at: _INT32.unpack_from(near, at * 8 + 4)[0])
        if index == found:
            return None  # cut off by another program
        relative: int = _INT32.unpack_from(near, index * ENTRY_SIZE)[0]
        return self.base_offset + relative

    def discard(self) -> None:
        """Drop all entries, and the file until something is written."""
        with self._file.lock:
            self._file.remove()
            self._has_stand_in = False
            self._heap = (array("i"), array("i"))
            self._last_relative = -1
            self._stored = 0
            self._file_bytes = -1

    def stand_in(self, entries: tuple[array[int], array[int]]) -> None:
        """Use other entries, relative offsets and positions, than those of the file, which stays as it is.

        For an index that takes no more appends. Lookups in other threads see one or the other.
        """
        with self._file.lock:
            self._has_stand_in = True
            self._heap = entries

    def flush(self) -> None:
        """Write what was appended to the file (created if need be, and without padding); nothing is synced."""
        with self._file.lock:
            if self._has_stand_in:
                return
            if self._stored < 0:
                self._inspect()
            heap = self._heap
            data = b"" if heap is None else _pack(*heap, self._stored)
            if data or self._file_bytes != self._stored * ENTRY_SIZE:
                self._write(data)

    def _write(self, data: bytes) -> None:
        self._file.write(data, self._stored)
        self._stored += len(data) // ENTRY_SIZE
        self._file_bytes = self._stored * ENTRY_SIZE

    def sync(self) -> None:
        """Write what was appended and make the file durable; blocks for the disk."""
        self.flush()
        self._file.sync()

    def trim_to_valid_size(self) -> None:
        """Write what was appended and give back the memory: the segment will not be appended to for now."""
        self.flush()
        with self._file.lock:
            heap = self._heap
            if heap is None or len(heap[0]) != self._stored or self._has_stand_in:
                return
            offsets, positions = heap
            self._last = (offsets[-1], positions[-1]) if offsets else (0, 0)
            self._heap = None

    def close(self) -> None:
        """Write what was appended and give back the memory."""
        self.trim_to_valid_size()

    def rename(self, path: str) -> None:
        """Give the file another name, if there is one yet; it is created under the new name otherwise."""
        with self._file.lock:  # a flush in another thread must not write under the old name
            self._file.rename(path)

    def take_path(self, path: str) -> None:
        """Know the file by another name: another process renames it, or has done so."""
        with self._file.lock:
            self._file.path = path

    def remove(self) -> None:
        """Remove the file, if there is one; the index must not be used again."""
        self._file.remove()

    def sanity_check(self) -> None:
        """Raise CorruptLog if the file cannot be an index: odd length, or a last entry below the base offset."""
        with self._file.lock:
            self._inspect()
        if self._file_bytes > 0 and self._file_bytes % ENTRY_SIZE:
            raise CorruptLog(
                self.path, self._file_bytes, f"expected a multiple of {ENTRY_SIZE} bytes, got {self._file_bytes}"
            )
        if self._stored and self._last[0] < 0:
            raise CorruptLog(
                self.path,
                (self._stored - 1) * ENTRY_SIZE,
                f"expected offsets from {self.base_offset}, got {self.base_offset + self._last[0]}",
            )

    @property
    def outline(self) -> IndexOutline:
        """What is known of the file without its entries."""
        with self._file.lock:
            if self._stored < 0:
                self._inspect()
            return IndexOutline(self._stored, self._file_bytes, *self._last)

    def take_outline(self, outline: IndexOutline) -> None:
        """Believe what another has found in the file, in place of a look at it."""
        with self._file.lock:
            self._stored, self._file_bytes = outline.entries, outline.file_bytes
            self._last = (outline.first, outline.second)

    def _count(self) -> int:
        if self._stored < 0:
            with self._file.lock:
                if self._stored < 0:
                    self._inspect()
        return self._stored

    def _inspect(self) -> None:
        count, self._file_bytes, last = self._file.inspect()
        if last:
            self._last = _ENTRY.unpack(last)
        self._stored = count

    def _load(self) -> tuple[array[int], array[int]]:
        with self._file.lock:
            if self._stored < 0:
                self._inspect()
            words = array("i", self._file.read(self._stored))
            if _IS_LITTLE_ENDIAN:
                words.byteswap()
            offsets, positions = words[0::2], words[1::2]
            self._last_relative = offsets[-1] if offsets else -1
            self._heap = heap = (offsets, positions)
            return heap


def _pack(offsets: array[int], positions: array[int], start: int) -> bytes:
    """Return the bytes of the entries from `start` on. Others may append at the same time."""
    count = len(offsets) - start
    if not count:
        return b""
    words = array("i", bytes(count * ENTRY_SIZE))
    words[0::2] = offsets[start : start + count]
    words[1::2] = positions[start : start + count]
    if _IS_LITTLE_ENDIAN:
        words.byteswap()
    return words.tobytes()
