"""The offset map: the last offset of each key in the dirty range, in bounded memory for any number of keys.

A keyed 128-bit hash identifies a key (`kernels/offset_map.py`), so an entry takes 24 bytes. The table starts small and
grows. When it reaches its limit:

* With `max_entries`, as in Kafka, the map is *full*: `add` accepts no more, and the round ends there.
* Without `max_entries`, it *spills*: from then on tuples of hash and offset are written to a temporary file, partitioned by
  hash. The tuples of the clean section follow (`add_older`), because a spilled table has no lookup by key. `latest` then loads
  one partition at a time into the table, and splits partitions that are too large.

In the end the rewrite only needs the kept offsets in ascending order (`LatestOffsets`). They are one sorted array in the table's
memory or, after spilling, are merged from one sorted run per partition during the rewrite.

    spill file:   blocks, each of tuples of one partition (24 bytes, in the order in which they were added)
                  or of offsets of one run (8 bytes, ascending); their positions are kept in memory only

The file is unlinked as soon as it is created, so it disappears with the process, even after a crash.

Memory: at most `memory_bytes` for the table, even while it grows. After spilling: a quarter of that for buffers while tuples are
written, at most `memory_bytes` for the table of a partition while `latest` loads it, and a quarter for buffers while runs are
merged. In addition, `MAX_READ_BYTES`, and 16 bytes for each block in the file. Disk: 24 bytes per record with a key and 8 bytes
per key; twice as much for partitions that are split.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.cleaner.segments.key_hasher import hash_words
from diamant.kernels import new_table, numbers, offset_map
from diamant.kernels.constants.tuples import ENTRY_BYTES
from diamant.kernels.key_filter import sort_words

if TYPE_CHECKING:
    from diamant.storage.env.env import Env, File

Tuples: TypeAlias = "memoryview[int]"
"""Tuples of hash and offset, as uint64[n, 3]."""
Offsets: TypeAlias = "array[int] | memoryview[int]"
"""Offsets, as int64."""

FIRST_SLOTS = 4096
GROW_AT = 0.7
"""Share of slots in use at which the table grows."""
FULL_AT = 0.85
"""Share of slots in use at which a table of the largest size is full."""
SPREAD_AT = 0.8
"""Largest share of slots in use while keys are added in hash order."""
SAMPLE = 4096
"""Number of keys to sample in order to estimate how many keys are already in the table."""
STEPS = 256
"""Number of slices into which `add_hashed` divides each part, if there are several."""
MAX_PARTITIONS = 256
SPLIT_INTO = 16
"""Number of parts into which a partition that does not fit into the table is split."""
MAX_READ_BYTES = 1024 * 1024
"""Bytes of the spill file read at a time."""
TAKEN_AT_ONCE = 32 * 1024
"""Tuples moved out of the table at a time."""

_GIVE_BACK_BYTES = 1024 * 1024


class OffsetMap:
    """An offset map (see the module docstring). Belongs to one thread."""

    def __init__(
        self,
        hash_key: bytes,
        *,
        memory_bytes: int,
        max_entries: int | None = None,
        spill: Callable[[], File] | None = None,
        expected_tuples: Callable[[int], int] = lambda added: 4 * added,
        least_slots: int = ENGINE_LIMITS.table_slots,
    ) -> None:
        """Create an empty map. `spill` creates the spill file; without it, or with `max_entries`, the map never spills.

        `expected_tuples` estimates the final number of tuples from the number added so far.
        """
        self.k0, self.k1 = hash_words(hash_key)
        self.max_entries = max_entries
        if max_entries is not None:
            memory_bytes = int(max_entries / FULL_AT + 1) * ENTRY_BYTES
        self._least_slots = least_slots
        self._max_slots = max(least_slots, memory_bytes // ENTRY_BYTES)
        self._memory_bytes = self._max_slots * ENTRY_BYTES
        self._new_file = spill if max_entries is None else None
        self._expected_tuples = expected_tuples
        self.table = new_table(min(FIRST_SLOTS, self._max_slots))
        """The table, for kernels. Each `add` may replace it. It always has an empty slot."""
        self.size = 0
        """Number of keys in the table; after `latest`, in the whole map."""
        self.added = 0
        """Number of tuples added so far."""
        self.is_in_order = True
        """True if tuples are added in offset order; if False, `add` keeps the greater offset of a key."""
        self._spilled: _Partitions | None = None

    @property
    def is_spilled(self) -> bool:
        """True if the map has spilled, so that the table is incomplete: call `add_older` instead of `find`."""
        return self._spilled is not None

    @property
    def room(self) -> int:
        """Number of keys that can certainly be added before the map is full or spills."""
        most = int(self._max_slots * FULL_AT) if self.max_entries is None else self.max_entries
        return 0 if self.is_spilled else most - self.size

    def take(self) -> Iterator[Tuples]:
        """Remove and yield all keys with their last offsets, in hash order. Each block overwrites the previous one."""
        words = numbers("Q", TAKEN_AT_ONCE, 3)
        slot = 0
        while slot < len(self.table):
            slot, count = offset_map.take_tuples(self.table, slot, words)
            if count:
                yield words[:count]
        # The map will be filled again, and then need a table of the same size.
        self.table = new_table(len(self.table))
        self.size = 0

    def move_to(self, partitions: memoryview[int]) -> list[int] | None:
        """Move the keys with their last offsets to uint64[partitions, room, 3]; return the number of keys in each partition.

        The second half of the hash selects the partition, in which keys are ordered by the first half. The number of partitions
        must be a power of two. Returns None if a partition is full; the map is then unusable.
        """
        words = numbers("Q", TAKEN_AT_ONCE, 3)
        fill = array("q", bytes(8 * len(partitions)))
        slot = 0
        while slot < len(self.table):
            start = slot
            slot, count = offset_map.take_tuples(self.table, slot, words)
            if offset_map.scatter(words, 0, count, 0, partitions, fill) < count:
                return None
            _give_back(self.table, start, slot)
        return fill.tolist()

    def add(self, tuples: Tuples, count: int) -> int:
        """Add the first `count` tuples; return the number added, which is less than `count` if the map is full."""
        self.added += count
        at = 0
        while at < count:
            if self._spilled is not None:
                self._spilled.add(tuples, at, count, is_older=False)
                return count
            limit = self._limit()
            at, self.size = offset_map.put_tuples(self.table, self.size, limit, tuples, at, count, self.is_in_order)
            if at < count and not self._make_room():
                self.added -= count - at
                return at
        return count

    def make_room_for(self, part: memoryview, count: int) -> None:
        """Grow the table before `count` tuples are added in hash order. `part` contains some of them.

        If the table grew during the addition, the added keys would cluster at its front. The number of new keys is estimated
        from a sample of `part`.
        """
        sampled = min(len(part) // ENTRY_BYTES, SAMPLE)
        if not sampled:
            return
        sample = _some(memoryview(bytearray(part[: sampled * ENTRY_BYTES])), 0, sampled)
        for index in range(sampled):
            sample[index, 2] = 2**64 - 1  # offset -1: no offset in the table is lower
        missing = offset_map.take_missing(self.table, sample, sampled, numbers("q", sampled))
        expected = self.size + count * missing // sampled
        while expected > SPREAD_AT * len(self.table) and len(self.table) < self._max_slots:
            self._grow()

    def add_hashed(self, parts: Sequence[memoryview]) -> None:
        """Add tuples in hash order. There must be `room` for all of them. Makes `is_in_order` false.

        Each part is sorted by hash, and all parts cover the same range of hashes. The first slices of all parts are added, then
        the second slices, and so on, so that each page of the table is visited only once.
        """
        self.is_in_order = False
        self.make_room_for(max(parts, key=len), sum(map(len, parts)) // ENTRY_BYTES)
        steps = 1 if len(parts) == 1 else STEPS
        for step in range(steps):
            for part in parts:
                keys = len(part) // ENTRY_BYTES
                start, end = keys * step // steps, keys * (step + 1) // steps
                if start < end:
                    self.add(_some(part, start, end), end - start)

    def add_older(self, tuples: Tuples, count: int) -> None:
        """Add tuples of the clean section, in offset order. An offset is kept unless its key has a later one in the dirty range.

        On Spark, records of aborted transactions are added as well; their offsets may lie in the dirty range.
        """
        if self._spilled is None:
            raise ValueError("the map has not spilled: look keys up instead")
        self._spilled.add(tuples, 0, count, is_older=True)

    def find(self, key: bytes) -> int:
        """Return the last offset of `key`; -1 if the key is not in the map."""
        return offset_map.find_key(self.table, self.k0, self.k1, key)

    def latest(self) -> LatestOffsets:
        """Convert the map to the offsets to keep, and return them. Afterwards only `close` may be called."""
        if self._spilled is None:
            return _InMemory(self._eat_table())
        self.table = new_table(self._least_slots)
        self._spilled.flush()
        runs, self.size = self._spilled.reduce(self._max_slots)
        return _Merged(self._spilled.file, runs, self._memory_bytes // 4)

    def close(self) -> None:
        """Release memory and file. Idempotent."""
        self.table = new_table(self._least_slots)
        if self._spilled is not None:
            self._spilled.file.close()

    def _limit(self) -> int:
        slots = len(self.table)
        limit = int(slots * (FULL_AT if slots == self._max_slots else GROW_AT))
        return limit if self.max_entries is None else min(limit, self.max_entries)

    def _make_room(self) -> bool:
        """Grow or spill; return True if more can be added."""
        if self.max_entries is not None and self.size >= self.max_entries:
            return False
        if len(self.table) < self._max_slots:
            self._grow()
            return True
        if self._new_file is None:
            return False
        self._spill(self._new_file())
        return True

    def _grow(self) -> None:
        old, self.table = self.table, new_table(min(2 * len(self.table), self._max_slots))
        _move(old, self.table)

    def _spill(self, file: File) -> None:
        tuples_expected = max(self._expected_tuples(self.added), self.added)
        partitions = 4
        while partitions < MAX_PARTITIONS and partitions * self._max_slots * FULL_AT < 2 * tuples_expected:
            partitions *= 2
        # Until the table is empty, the buffers take up to a quarter more memory. Pages that have not been touched take none.
        self._spilled = spilled = _Partitions(file, partitions, 0, self._memory_bytes // 4, self._least_slots)
        words = numbers("Q", TAKEN_AT_ONCE, 3)
        slot = 0
        while slot < len(self.table):
            start = slot
            slot, count = offset_map.take_tuples(self.table, slot, words)
            spilled.add(words, 0, count, is_older=False)
            _give_back(self.table, start, slot)
        self.table = new_table(self._least_slots)
        self.size = 0

    def _eat_table(self) -> Offsets:
        """Return the table's offsets, sorted, in memory that belonged to the table."""
        offsets = _offsets_of(self.table)
        _give_back(self.table, len(offsets) // 3 + 1, len(self.table))
        self.table = new_table(self._least_slots)
        return offsets


class LatestOffsets(Protocol):
    """The offsets to keep, to be read in ascending order."""

    def window(self, first_offset: int, last_offset: int) -> Offsets:
        """Return, in ascending order, all offsets to keep from `first_offset` to `last_offset`, and possibly others.

        Offsets below the greatest `first_offset` of earlier calls may be missing.
        """
        ...


class _InMemory:
    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    def window(self, first_offset: int, last_offset: int) -> Offsets:
        return self._offsets


class _Merged:
    """Merges sorted runs from the spill file, with a buffer for each."""

    def __init__(self, file: File, runs: list[_Run], memory_bytes: int) -> None:
        room = max(64, memory_bytes // 8 // max(1, len(runs)))
        self._readers = [_RunReader(file, run, room) for run in runs if run.count]
        self._offsets = array("q")
        self._end = -1
        """All offsets up to this one have been read."""

    def window(self, first_offset: int, last_offset: int) -> Offsets:
        if last_offset <= self._end:
            return self._offsets
        found = self._offsets[bisect_left(self._offsets, first_offset) :]
        while self._end < last_offset and self._readers:
            # All offsets up to the lowest of the buffers' last offsets are in memory.
            self._end = min(reader.last for reader in self._readers)
            part = array("q")
            for reader in self._readers:
                part.frombytes(reader.take(self._end).cast("B"))
            _sort(part)
            found += part[bisect_left(part, first_offset) :]
            self._readers = [reader for reader in self._readers if reader.fill()]
        if not self._readers:
            self._end = 2**63 - 1
        self._offsets = found
        return found


class _Run:
    """A run of ascending offsets in the spill file."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []
        """Position and number of offsets of each block."""
        self.count = 0
        self.last = -1
        """The last offset; -1 if there is none yet."""

    def append(self, file: File, offsets: memoryview[int]) -> None:
        """Write offsets at the end of the file."""
        if len(offsets):
            self.last = offsets[-1]
            self.blocks.append((file.size(), len(offsets)))
            self.count += len(offsets)
            file.append(offsets.cast("B"))


class _RunReader:
    def __init__(self, file: File, run: _Run, room: int) -> None:
        self._file = file
        self._blocks = iter(run.blocks)
        self._position = 0
        self._left = 0
        self._room = room
        self._buffer = numbers("q", 0)
        self.fill()

    @property
    def last(self) -> int:
        """The last offset in the buffer, which must not be empty."""
        return self._buffer[-1]

    def take(self, end_offset: int) -> memoryview[int]:
        """Remove and return the buffer's offsets up to `end_offset`."""
        count = bisect_right(self._buffer, end_offset)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def fill(self) -> bool:
        """Read the next block if the buffer is empty; return False at the end of the run."""
        if len(self._buffer):
            return True
        if not self._left:
            block = next(self._blocks, None)
            if block is None:
                return False
            self._position, self._left = block
        count = min(self._left, self._room)
        self._buffer = numbers("q", count)
        _read(self._file, self._position, self._buffer)
        self._position += count * 8
        self._left -= count
        return True


class _Partition:
    """The blocks of a partition, whose tuples have the same value in some bits of the hash."""

    def __init__(self) -> None:
        self.older: list[tuple[int, int]] = []
        """Position and number of tuples of each block from the clean section."""
        self.dirty: list[tuple[int, int]] = []


class _Partitions:
    """Writes tuples to the spill file by partition: all tuples, or those of a partition that is to be split."""

    def __init__(self, file: File, partitions: int, shift: int, buffer_bytes: int, least_slots: int) -> None:
        self.file = file
        self._least_slots = least_slots
        self._shift = shift
        self._partitions = [_Partition() for _ in range(partitions)]
        room = min(max(buffer_bytes // ENTRY_BYTES // partitions, 16), MAX_READ_BYTES // ENTRY_BYTES)
        self._buffer_bytes = buffer_bytes
        self._room = room
        self._buffers = numbers("Q", partitions, room, 3)
        self._fill = array("q", bytes(8 * partitions))
        self._holds_older = False

    def add(self, tuples: Tuples, start: int, end: int, *, is_older: bool) -> None:
        """Add tuples `start` to `end`."""
        if is_older != self._holds_older:
            self._write_all()
            self._holds_older = is_older
        while start < end:
            start = offset_map.scatter(tuples, start, end, self._shift, self._buffers, self._fill)
            if start < end:
                for partition, count in enumerate(self._fill):
                    if count == self._room:
                        self._write(partition)

    def flush(self) -> None:
        """Write the buffers to the file and release them."""
        self._write_all()
        self._buffers = numbers("Q", len(self._partitions), 1, 3)

    def _write_all(self) -> None:
        for partition, count in enumerate(self._fill):
            if count:
                self._write(partition)

    def _write(self, index: int) -> None:
        partition = self._partitions[index]
        count = self._fill[index]
        (partition.older if self._holds_older else partition.dirty).append((self.file.size(), count))
        start = index * self._room * ENTRY_BYTES
        self.file.append(self._buffers.cast("B")[start : start + count * ENTRY_BYTES])
        self._fill[index] = 0

    def reduce(self, max_slots: int) -> tuple[list[_Run], int]:
        """Return runs of the offsets to keep, and the number of keys in the dirty range."""
        runs: list[_Run] = []
        keys = 0
        bits = (len(self._partitions) - 1).bit_length()
        while self._partitions:
            partition = self._partitions.pop()
            tuples = sum(count for _, count in partition.dirty)
            slots = min(max_slots, max(self._least_slots, int(tuples / GROW_AT) + 1))
            found = self._reduce_one(partition, slots)
            if found is None:
                split = _Partitions(self.file, SPLIT_INTO, self._shift + bits, self._buffer_bytes, self._least_slots)
                for blocks, is_older in ((partition.dirty, False), (partition.older, True)):
                    for words in self._tuples(blocks):
                        split.add(words, 0, len(words), is_older=is_older)
                split.flush()
                more_runs, more_keys = split.reduce(max_slots)
                runs += more_runs
                keys += more_keys
            else:
                runs += found[0]
                keys += found[1]
        return runs, keys

    def _reduce_one(self, partition: _Partition, slots: int) -> tuple[list[_Run], int] | None:
        """Return the partition's runs and number of keys; None if the table is too small."""
        table = new_table(slots)
        limit = int(slots * FULL_AT)
        size = 0
        for words in self._tuples(partition.dirty):
            at, size = offset_map.put_tuples(table, size, limit, words, 0, len(words))
            if at < len(words):
                return None
        runs = [_Run()]
        offsets, spare = numbers("Q", MAX_READ_BYTES // ENTRY_BYTES), numbers("Q", MAX_READ_BYTES // ENTRY_BYTES)
        found = offsets.cast("B").cast("q")
        for words in self._tuples(partition.older):
            count = offset_map.take_missing(table, words, len(words), found)
            sort_words(offsets[:count], spare[:count])
            self._append(runs, found[:count])
        self._append(runs, _offsets_of(table))
        return runs, size

    def _append(self, runs: list[_Run], offsets: memoryview[int]) -> None:
        """Append ascending offsets to the last run or, if they begin below its end (`add_older`), to a new run."""
        if len(offsets) and offsets[0] <= runs[-1].last:
            runs.append(_Run())
        runs[-1].append(self.file, offsets)

    def _tuples(self, blocks: list[tuple[int, int]]) -> Iterator[Tuples]:
        """Yield the tuples of each block. Each block overwrites the previous one."""
        words = numbers("B", max((count for _, count in blocks), default=0) * ENTRY_BYTES)
        for position, count in blocks:
            some = words[: count * ENTRY_BYTES]
            _read(self.file, position, some)
            yield some.cast("Q", (count, 3))


def open_spill_file(env: Env, directory: str) -> File:
    """Create a file for an `OffsetMap` in `directory`, and unlink it."""
    # If the process crashes before the unlink, the broker's next start removes the file because of its suffix. The name has the
    # pid because several processes of a divided round may create a file at the same time.
    path = f"{directory}/offset-map-{os.getpid()}.deleted"
    env.remove(path, missing_ok=True)
    file = env.create_new(path)
    try:
        env.remove(path)
    except BaseException:
        file.close()
        raise
    return file


def _read(file: File, position: int, target: memoryview[int]) -> None:
    data = file.pread(target.nbytes, position)
    if len(data) != target.nbytes:
        raise OSError(f"{file.path}: expected {target.nbytes} bytes at {position}, got {len(data)}")
    # Kernels are compiled for writable memory only.
    target.cast("B")[:] = data


# -- tables ------------------------------------------------------------------------------------------------------------


def shared_tuples(partitions: int, room: int) -> memoryview[int]:
    """Return uint64[partitions, room, 3] in memory shared with later forks. Its pages are allocated when they are written.

    Raises OSError if the memory is not available.
    """
    room = max(1, room)
    pages = mmap.mmap(-1, partitions * room * ENTRY_BYTES, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    return memoryview(pages).cast("Q", (partitions, room, 3))


def part_of(partitions: memoryview[int], index: int, count: int) -> memoryview:
    """Return the first `count` tuples of a partition of uint64[partitions, room, 3] as bytes."""
    start = index * (partitions.nbytes // len(partitions))
    return partitions.cast("B")[start : start + count * ENTRY_BYTES]


def _some(part: memoryview, start: int, end: int) -> Tuples:
    """Return the tuples `start` to `end` of `part`, which must be at least one tuple."""
    return part[start * ENTRY_BYTES : end * ENTRY_BYTES].cast("Q", (end - start, 3))


def _offsets_of(table: Tuples) -> memoryview[int]:
    """Return the offsets of a table, sorted. They overwrite at most the first third of its memory."""
    words = table.cast("B").cast("Q")
    count = offset_map.take_offsets(table, table.cast("B").cast("q"))
    sort_words(words[:count], words[count : 2 * count])
    return table.cast("B").cast("q")[:count]


def _sort(offsets: array[int]) -> None:
    with memoryview(offsets).cast("B") as octets:
        sort_words(octets.cast("Q"), array("Q", bytes(len(octets))))


def _move(old: Tuples, new: Tuples) -> None:
    """Move the content of one table to another. Both are in hash order, so old pages can be freed while new pages are filled."""
    step = _GIVE_BACK_BYTES // ENTRY_BYTES
    for start in range(0, len(old), step):
        end = min(start + step, len(old))
        offset_map.move_slots(old, start, end, new)
        _give_back(old, start, end)


def _give_back(table: Tuples, start: int, end: int) -> None:
    """Return to the system all pages that lie completely within the slots `start` to `end`."""
    pages = table.obj
    if not isinstance(pages, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    first = -(-start * ENTRY_BYTES // page) * page
    last = end * ENTRY_BYTES // page * page
    if last > first:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)
