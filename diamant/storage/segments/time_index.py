"""Time index of a segment: from which offset on to look for a point in time (Kafka's TimeIndex, AbstractIndex).

    entry, 12 bytes, big-endian, timestamps strictly ascending, offsets not descending:
      0  8  timestamp, ms
      8  4  offset - base offset of the segment

An entry says: `timestamp` is the greatest record timestamp in the segment up to this point, and `offset` is the last
offset of the first batch that has it. A closed segment's last entry is its greatest timestamp: no scan is needed.

    lookup(timestamp) = the last entry with a timestamp <= the one asked for, or (-1, base offset)

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
from diamant.storage.segments.index_file import IndexFile
from diamant.storage.segments.segment_outline import IndexOutline

ENTRY_SIZE = 12
NO_TIMESTAMP = -1
MAX_RELATIVE_OFFSET = 2**31 - 1

_ENTRY = Struct(">qi")
_INT64 = Struct(">q")
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


class TimeIndex:
    """The time index of the segment at `base_offset`, at most `max_bytes` long.

    Opening does nothing at all; the file is looked at when first asked for. Lookups may come from any thread,
    everything else from the owner, except `flush` and `sync`, which may run in another thread at the same time.
    """

    __slots__ = ("_file", "_file_bytes", "_heap", "_last_relative", "_last_timestamp", "_stored", "base_offset",
                 "max_entries")  # fmt: skip

    def __init__(self, env: Env, path: str, base_offset: int, max_bytes: int) -> None:
        self.base_offset = base_offset
        self.max_entries = max_bytes // ENTRY_SIZE
        self._file = IndexFile(env, path, ENTRY_SIZE)
        self._heap: tuple[array[int], array[int]] | None = None
        """Relative offsets and timestamps. Timestamps are appended first: the offsets' length counts whole entries."""
        self._stored = -1
        """Entries in the file that agree with ours; -1 until the file was looked at."""
        self._file_bytes = -1
        """Length of the file; -1 if there is none."""
        self._last_timestamp = NO_TIMESTAMP
        self._last_relative = 0

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
        """True if the segment must roll: one slot is kept for the entry that is written then."""
        heap = self._heap
        return (len(heap[0]) if heap is not None else self._count()) >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """`(timestamp, offset)` of the last entry, `(-1, base_offset)` if there is none."""
        if self._stored < 0:
            self._count()
        return self._last_timestamp, self.base_offset + self._last_relative

    def entry(self, index: int) -> tuple[int, int]:
        """Return `(timestamp, offset)` of entry `index`; IndexError if there is none."""
        if not 0 <= index < self.entries:
            raise IndexError(f"{self.path}: entry {index} of {self.entries}")
        heap = self._heap
        if heap is not None:
            return heap[1][index], self.base_offset + heap[0][index]
        timestamp, relative = _ENTRY.unpack(self._file.entry(index))
        return timestamp, self.base_offset + relative

    def load(self) -> None:
        """Read what an append needs of the file, if that has not happened yet: the next append meets no disk, no OSError."""
        if self._heap is None:
            self._load()

    def maybe_append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp` is above the last one's, else do nothing.

        ValueError if the index is full (unless `skip_full_check`, for the entry of a segment that closes), or if
        timestamp or offset go back.
        """
        heap = self._heap
        if heap is None:
            heap = self._load()
        offsets, timestamps = heap
        relative = offset - self.base_offset
        count = len(offsets)
        if (
            (count and (relative < self._last_relative or timestamp < self._last_timestamp))
            or not 0 <= relative <= MAX_RELATIVE_OFFSET
            or (count >= self.max_entries - 1 and not skip_full_check)
        ):
            self._refuse(timestamp, offset, count)
        if timestamp > self._last_timestamp:
            timestamps.append(timestamp)
            offsets.append(relative)
            self._last_timestamp = timestamp
            self._last_relative = relative

    def _refuse(self, timestamp: int, offset: int, count: int) -> NoReturn:
        last_timestamp, last_offset = self.last_entry
        if offset - self.base_offset > MAX_RELATIVE_OFFSET or offset < last_offset:
            raise ValueError(
                f"{self.path}: expected an offset from {last_offset} to {self.base_offset + MAX_RELATIVE_OFFSET}, "
                f"got {offset}"
            )
        if timestamp < last_timestamp:
            raise ValueError(f"{self.path}: expected a timestamp from {last_timestamp} ms, got {timestamp}")
        raise ValueError(f"{self.path}: full with {count} entries, timestamp {timestamp} does not fit")

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return `(timestamp, offset)` of the last entry at or before `timestamp`, `(-1, base_offset)` if none is."""
        heap = self._heap
        if heap is not None:
            offsets, timestamps = heap
            index = bisect_right(timestamps, timestamp, 0, len(offsets)) - 1
            return (timestamps[index], self.base_offset + offsets[index]) if index >= 0 else (-1, self.base_offset)
        count = self._count()
        if not count:
            return NO_TIMESTAMP, self.base_offset
        near, found_near = self._file.near(count, _INT64, 0, timestamp)
        unpack_from = _INT64.unpack_from
        index = bisect_right(range(found_near), timestamp, key=lambda at: unpack_from(near, at * ENTRY_SIZE)[0]) - 1
        if index < 0:
            return NO_TIMESTAMP, self.base_offset
        found, relative = _ENTRY.unpack_from(near, index * ENTRY_SIZE)
        return found, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`, in the file too."""
        heap = self._heap
        if heap is None:
            heap = self._load()
        offsets, timestamps = heap
        with self._file.lock:
            count = bisect_left(offsets, offset - self.base_offset)
            del offsets[count:]
            del timestamps[count:]
            self._see_last(offsets, timestamps)
            if count < self._stored or self._file_bytes > self._stored * ENTRY_SIZE:
                self._stored = min(count, self._stored)
                self._write(b"")

    def flush(self) -> None:
        """Write what was appended to the file (created if need be, and without padding); nothing is synced."""
        with self._file.lock:
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
            if heap is not None and len(heap[0]) == self._stored:
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
        """Raise CorruptLog if the file cannot be an index: odd length, or a last entry before the first or the base."""
        with self._file.lock:
            self._inspect()
        if self._file_bytes > 0 and self._file_bytes % ENTRY_SIZE:
            raise CorruptLog(
                self.path, self._file_bytes, f"expected a multiple of {ENTRY_SIZE} bytes, got {self._file_bytes}"
            )
        if not self._stored:
            return
        last_position = (self._stored - 1) * ENTRY_SIZE
        first_timestamp: int = _INT64.unpack_from(self._file.entry(0))[0]
        if self._last_timestamp < first_timestamp:
            raise CorruptLog(
                self.path, last_position, f"expected timestamps from {first_timestamp}, got {self._last_timestamp}"
            )
        if self._last_relative < 0:
            raise CorruptLog(
                self.path,
                last_position,
                f"expected offsets from {self.base_offset}, got {self.base_offset + self._last_relative}",
            )

    @property
    def outline(self) -> IndexOutline:
        """What is known of the file without its entries."""
        with self._file.lock:
            if self._stored < 0:
                self._inspect()
            return IndexOutline(self._stored, self._file_bytes, self._last_timestamp, self._last_relative)

    def take_outline(self, outline: IndexOutline) -> None:
        """Believe what another has found in the file, in place of a look at it."""
        with self._file.lock:
            self._stored, self._file_bytes = outline.entries, outline.file_bytes
            self._last_timestamp, self._last_relative = outline.first, outline.second

    def _count(self) -> int:
        if self._stored < 0:
            with self._file.lock:
                if self._stored < 0:
                    self._inspect()
        return self._stored

    def _inspect(self) -> None:
        count, self._file_bytes, last = self._file.inspect()
        if last:
            self._last_timestamp, self._last_relative = _ENTRY.unpack(last)
        self._stored = count

    def _load(self) -> tuple[array[int], array[int]]:
        with self._file.lock:
            if self._stored < 0:
                self._inspect()
            offsets, timestamps = _unpack(self._file.read(self._stored))
            self._see_last(offsets, timestamps)
            self._heap = heap = (offsets, timestamps)
            return heap

    def _see_last(self, offsets: array[int], timestamps: array[int]) -> None:
        self._last_timestamp = timestamps[-1] if timestamps else NO_TIMESTAMP
        self._last_relative = offsets[-1] if offsets else 0


def _unpack(data: bytes) -> tuple[array[int], array[int]]:
    """Return relative offsets and timestamps of stored entries; by whole arrays, as there may be a quarter million."""
    words = array("i", data)
    offsets = words[2::3]
    halves = array("i", bytes(len(offsets) * 8))
    halves[0::2] = words[0::3]
    halves[1::2] = words[1::3]
    timestamps = array("q", halves.tobytes())
    if _IS_LITTLE_ENDIAN:
        offsets.byteswap()
        timestamps.byteswap()
    return offsets, timestamps


def _pack(offsets: array[int], timestamps: array[int], start: int) -> bytes:
    """Return the bytes of the entries from `start` on. Others may append at the same time."""
    count = len(offsets) - start
    if not count:
        return b""
    low = offsets[start : start + count]
    high = timestamps[start : start + count]
    if _IS_LITTLE_ENDIAN:
        low.byteswap()
        high.byteswap()
    halves = array("i", high.tobytes())
    words = array("i", bytes(count * ENTRY_SIZE))
    words[0::3] = halves[0::2]
    words[1::3] = halves[1::2]
    words[2::3] = low
    return words.tobytes()
