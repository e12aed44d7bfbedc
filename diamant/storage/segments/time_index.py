"""Time index of a segment: maps a timestamp to the offset at which to start a search (Kafka's TimeIndex, AbstractIndex).

    entry, 12 bytes, big-endian, timestamps strictly ascending, offsets not descending:
      0  8  timestamp, ms
      8  4  offset - base offset of the segment

`timestamp` is the largest record timestamp in the segment up to this point; `offset` is the last offset of the first batch
that has it. The last entry of a closed segment holds its largest timestamp, so no scan is needed.

    lookup(timestamp) = the last entry with a timestamp <= `timestamp`, or (-1, base offset)

Memory and durability are as in `offset_index`, with 12 bytes per entry.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NoReturn

from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.index_file import Columns, EntryLayout, IndexFile

ENTRY_SIZE = 12
NO_TIMESTAMP = -1
MAX_RELATIVE_OFFSET = 2**31 - 1

_ENTRY = Struct(">qi")
_INT64 = Struct(">q")
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


def _pack(offsets: array[int], timestamps: array[int]) -> bytes:
    if _IS_LITTLE_ENDIAN:
        offsets.byteswap()
        timestamps.byteswap()
    halves = array("i", timestamps.tobytes())
    words = array("i", bytes(len(offsets) * ENTRY_SIZE))
    words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
    return words.tobytes()


def _unpack(data: bytes) -> Columns:
    """Return relative offsets and timestamps; works on whole arrays, since there may be a quarter of a million entries."""
    words = array("i", data)
    offsets = words[2::3]
    halves = array("i", bytes(len(offsets) * 8))
    halves[0::2], halves[1::2] = words[0::3], words[1::3]
    timestamps = array("q", halves.tobytes())
    if _IS_LITTLE_ENDIAN:
        offsets.byteswap()
        timestamps.byteswap()
    return offsets, timestamps


TIME_ENTRIES = EntryLayout(ENTRY_SIZE, _pack, _unpack)


class TimeIndex:
    """The time index of the segment at `base_offset`, at most `max_bytes` long; `file` holds its entries."""

    __slots__ = ("base_offset", "file", "max_entries")

    def __init__(self, env: Env, path: str, base_offset: int, max_bytes: int) -> None:
        self.base_offset = base_offset
        self.max_entries = max_bytes // ENTRY_SIZE
        self.file = IndexFile(env, path, TIME_ENTRIES)

    @property
    def is_full(self) -> bool:
        """True if the segment must roll, since the only slot left is reserved for the entry that rolling adds."""
        heap = self.file.heap
        return (len(heap[0]) if heap is not None else self.file.entries) >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """`(timestamp, offset)` of the last entry, `(-1, base_offset)` if there is none."""
        relative, timestamp = self.file.last or (0, NO_TIMESTAMP)
        return timestamp, self.base_offset + relative

    def entry(self, index: int) -> tuple[int, int]:
        """Return `(timestamp, offset)` of entry `index`. Raises IndexError if it does not exist."""
        relative, timestamp = self.file.entry(index)
        return timestamp, self.base_offset + relative

    def maybe_append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp` is above the last entry's.

        Raises ValueError if the index is full (unless `skip_full_check`, for the last entry of a closing segment), or if
        timestamp or offset decrease.
        """
        offsets, timestamps = self.file.heap or self.file.load()
        relative = offset - self.base_offset
        count = len(offsets)
        if (
            (count and (relative < offsets[-1] or timestamp < timestamps[-1]))
            or not 0 <= relative <= MAX_RELATIVE_OFFSET
            or (count >= self.max_entries - 1 and not skip_full_check)
        ):
            self._refuse(timestamp, offset, count)
        if timestamp > (timestamps[-1] if count else NO_TIMESTAMP):
            timestamps.append(timestamp)
            offsets.append(relative)

    def _refuse(self, timestamp: int, offset: int, count: int) -> NoReturn:
        last_timestamp, last_offset = self.last_entry
        if offset - self.base_offset > MAX_RELATIVE_OFFSET or offset < last_offset:
            raise ValueError(
                f"{self.file.path}: expected an offset from {last_offset} to {self.base_offset + MAX_RELATIVE_OFFSET}, "
                f"got {offset}"
            )
        if timestamp < last_timestamp:
            raise ValueError(f"{self.file.path}: expected a timestamp of at least {last_timestamp} ms, got {timestamp}")
        raise ValueError(f"{self.file.path}: full with {count} entries, timestamp {timestamp} does not fit")

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return `(timestamp, offset)` of the last entry at or before `timestamp`, `(-1, base_offset)` if none is."""
        heap = self.file.heap
        if heap is not None:
            offsets, timestamps = heap
            index = bisect_right(timestamps, timestamp, 0, len(offsets)) - 1
            return (timestamps[index], self.base_offset + offsets[index]) if index >= 0 else (-1, self.base_offset)
        count = self.file.entries
        if not count:
            return NO_TIMESTAMP, self.base_offset
        near, found_near = self.file.near(count, _INT64, 0, timestamp)
        unpack_from = _INT64.unpack_from
        index = bisect_right(range(found_near), timestamp, key=lambda at: unpack_from(near, at * ENTRY_SIZE)[0]) - 1
        if index < 0:
            return NO_TIMESTAMP, self.base_offset
        timestamp_ms, relative = _ENTRY.unpack_from(near, index * ENTRY_SIZE)
        return timestamp_ms, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`, in memory and in the file."""
        self.file.truncate(bisect_left(self.file.load()[0], offset - self.base_offset))

    def sanity_check(self) -> None:
        """Raise CorruptLog if the file cannot be an index: a partial entry, or a last entry below the first or the base."""
        self.file.sanity_check(self.base_offset)
        entries = self.file.entries
        if entries and (last := self.last_entry[0]) < (first := self.entry(0)[0]):
            position = (entries - 1) * ENTRY_SIZE
            raise CorruptLog(self.file.path, position, f"expected timestamps from {first}, got {last}")
