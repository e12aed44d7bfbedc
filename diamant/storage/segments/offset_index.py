"""Offset index of a segment: maps an offset to the position in the `.log` file at which to start a scan (Kafka's OffsetIndex).

    entry, 8 bytes, big-endian, in ascending order of both:
      0  4  offset - base offset of the segment, 0..2^31-1
      4  4  position in the `.log` file

The batch at an entry's `position` has the entry's `offset` as its LAST offset. The index is sparse: about one entry every
`index.interval.bytes`, and none for the first batch of a segment.

    lookup(offset) = the entry with the largest offset <= `offset`, or (base offset, 0)

Memory: during appends the entries are in two arrays, 8 bytes per entry (2 MiB for a full 1 GiB segment at the default
interval, `segment.index.bytes` at most). Other indexes keep a few numbers and search the file through `Env.view_file`.
`flush` writes appended entries to the file; a crash before it loses them, and recovery rebuilds them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NoReturn

from diamant.storage.env.env import Env
from diamant.storage.segments.index_file import Columns, EntryLayout, IndexFile

ENTRY_SIZE = 8
MAX_RELATIVE_OFFSET = 2**31 - 1

_ENTRY = Struct(">ii")
_INT32 = Struct(">i")
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


def _pack(offsets: array[int], positions: array[int]) -> bytes:
    words = array("i", bytes(len(offsets) * ENTRY_SIZE))
    words[0::2], words[1::2] = offsets, positions
    if _IS_LITTLE_ENDIAN:
        words.byteswap()
    return words.tobytes()


def _unpack(data: bytes) -> Columns:
    words = array("i", data)
    if _IS_LITTLE_ENDIAN:
        words.byteswap()
    return words[0::2], words[1::2]


OFFSET_ENTRIES = EntryLayout(ENTRY_SIZE, _pack, _unpack)


class OffsetIndex:
    """The offset index of the segment at `base_offset`, at most `max_bytes` long; `file` holds its entries."""

    __slots__ = ("base_offset", "file", "max_entries")

    def __init__(self, env: Env, path: str, base_offset: int, max_bytes: int) -> None:
        self.base_offset = base_offset
        self.max_entries = max_bytes // ENTRY_SIZE
        self.file = IndexFile(env, path, OFFSET_ENTRIES)

    @property
    def is_full(self) -> bool:
        """True if no further entry fits, so the segment must roll."""
        heap = self.file.heap
        return (len(heap[0]) if heap is not None else self.file.entries) >= self.max_entries

    @property
    def last_entry(self) -> tuple[int, int]:
        """`(offset, position)` of the last entry, `(base_offset, 0)` if there is none."""
        relative, position = self.file.last or (0, 0)
        return self.base_offset + relative, position

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset if there is none."""
        return self.last_entry[0]

    def entry(self, index: int) -> tuple[int, int]:
        """Return `(offset, position)` of entry `index`. Raises IndexError if it does not exist."""
        relative, position = self.file.entry(index)
        return self.base_offset + relative, position

    def append(self, offset: int, position: int) -> None:
        """Add an entry: `offset` is the last offset of the batch that begins at `position`.

        Raises ValueError if the index is full, or if `offset` is not above the last entry's, or is too far above the base
        offset.
        """
        offsets, positions = self.file.heap or self.file.load()
        relative, last = offset - self.base_offset, offsets[-1] if offsets else -1
        if relative <= last or relative > MAX_RELATIVE_OFFSET or len(offsets) >= self.max_entries:
            self._refuse(offset, len(offsets), last)
        positions.append(position)
        offsets.append(relative)

    def _refuse(self, offset: int, count: int, last: int) -> NoReturn:
        if count >= self.max_entries:
            raise ValueError(f"{self.file.path}: full with {count} entries, offset {offset} does not fit")
        if offset - self.base_offset > MAX_RELATIVE_OFFSET:
            raise ValueError(f"{self.file.path}: offset {offset} is too far above the base offset {self.base_offset}")
        raise ValueError(f"{self.file.path}: expected an offset above {self.base_offset + last}, got {offset}")

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return `(offset, position)` of the last entry at or below `offset`, `(base_offset, 0)` if there is none."""
        base_offset = self.base_offset
        heap = self.file.heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_right(offsets, offset - base_offset) - 1
            return (base_offset + offsets[index], positions[index]) if index >= 0 else (base_offset, 0)
        return self._search(offset - base_offset, 0)

    def lookup_position(self, position: int) -> tuple[int, int]:
        """Return `(offset, position)` of the last entry at or below a position, `(base_offset, 0)` if there is none."""
        heap = self.file.heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_right(positions, position, 0, len(offsets)) - 1
            return (self.base_offset + offsets[index], positions[index]) if index >= 0 else (self.base_offset, 0)
        return self._search(position, 4)

    def _search(self, target: int, field: int) -> tuple[int, int]:
        """Find the last entry in the file whose field at byte `field` is at or below `target`."""
        count = self.file.entries
        if not count:
            return self.base_offset, 0
        near, near_count = self.file.near(count, _INT32, field, target)
        unpack_from = _INT32.unpack_from
        index = bisect_right(range(near_count), target, key=lambda at: unpack_from(near, at * 8 + field)[0]) - 1
        if index < 0:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(near, index * ENTRY_SIZE)
        return self.base_offset + relative, position

    def upper_bound(self, position: int, size: int) -> int | None:
        """Return the offset of the first entry at or after `position + size`; None if there is no such entry.

        All offsets in those `size` bytes are below the result, which bounds the search for aborted transactions
        (`OffsetIndex.fetchUpperBoundOffset`).
        """
        target = position + size
        heap = self.file.heap
        if heap is not None:
            offsets, positions = heap
            index = bisect_left(positions, target, 0, len(offsets))
            return self.base_offset + offsets[index] if index < len(offsets) else None
        count, last = self.file.entries, self.file.last
        if last is None or last[1] < target:
            return None
        near, near_count = self.file.near(count, _INT32, 4, target)
        index = bisect_left(range(near_count), target, key=lambda at: _INT32.unpack_from(near, at * 8 + 4)[0])
        if index == near_count:
            return None  # another program has cut off the entries
        relative: int = _INT32.unpack_from(near, index * ENTRY_SIZE)[0]
        return self.base_offset + relative

    def sanity_check(self) -> None:
        """Raise CorruptLog if the file cannot be an index: it has a partial entry, or its last offset is below the base."""
        self.file.sanity_check(self.base_offset)
