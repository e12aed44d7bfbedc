"""Tables of keys, by their hashes: the compiled one, and its plain twin for machines without kernels.

    entry, 24 bytes:   16 hash | 8 what is known of the key (`kernels.constants.counts`)

A key that comes again in a source supersedes its record there; in a later source it begins again, and of the earlier ones only
the number is kept in which it is live. Where the sources are parts of one log it supersedes its record wherever that is.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Protocol, TypeAlias

from diamant.kernels.constants.counts import EARLIER, EARLIER_ONE, SOURCE_SHIFT, TOMBSTONE

ENTRY = Struct("=16sQ")
BUCKETS = 16
LIVE, TOMBSTONES, SUPERSEDED = range(3)
"""Rows of the counts, int64[3, sources]."""
ANY_SOURCE = -1

Numbers: TypeAlias = "memoryview[int]"

_FIRST_SLOTS = 4096
_PLAIN_BYTES = 200
"""Of an entry in a dict."""
_TAKEN_AT_ONCE = 16 * 1024


def entries_in(data: bytes | bytearray | mmap.mmap) -> Numbers:
    """Return the entries that are in these bytes, at least one: uint64[n, 3]."""
    return memoryview(data).cast("B").cast("Q", (len(data) // ENTRY.size, 3))


def entries_of(source: int, hashes: Sequence[bytes], tombstones: bytearray) -> Numbers:
    """Return the entries of records, one at least: the hashes of their keys, and for each a 1 if it is a tombstone, else a 0."""
    words = [source << SOURCE_SHIFT | is_tombstone for is_tombstone in (0, TOMBSTONE)]
    return entries_in(
        b"".join(ENTRY.pack(hashed, words[gone]) for hashed, gone in zip(hashes, tombstones, strict=True))
    )


class KeyTable(Protocol):
    """Owned by one thread."""

    def put(self, entries: Numbers, start: int, end: int, only_source: int) -> int:
        """Put entries `start` to `end`; return the first that is not in the table, as it is full or this of another source."""
        ...

    def take(self, shift: int) -> Iterator[tuple[int, bytes]]:
        """Yield the entries by bucket; then the table is empty.

        The halves of their hashes have changed places (`kernels.counting.take_entries`). The 4 bits at `shift` of what is the
        second half then choose the bucket; tables do not look at the lower 32 bits of a half.
        """
        ...

    def sum(self) -> tuple[int, int]:
        """Count what is in the table; return how many keys there are, and how many are live in more than one source."""
        ...


class CompiledKeyTable:
    """A table of kernels. Memory: `max_bytes`, with the smaller table that it grows from."""

    def __init__(self, counts: Numbers, least_keys: int, max_bytes: int, *, is_one_log: bool) -> None:
        self._counts = counts
        self._is_one_log = is_one_log
        self._max_slots = max(least_keys * 4 // 3 + 1, max_bytes * 2 // 3 // ENTRY.size)
        self._slots = 0
        self.table: Numbers
        """For kernels: uint64[slots, 3]."""
        self.size = 0
        """Keys in it."""
        self._clear()

    def put(self, entries: Numbers, start: int, end: int, only_source: int) -> int:
        """See `KeyTable`."""
        from diamant.kernels.counting import put_entries

        while start < end:
            limit = self._slots * 3 // 4
            start, self.size = put_entries(
                self.table, self.size, limit, only_source, entries, start, end, self._counts, self._is_one_log
            )
            if self.size < limit or self._slots == self._max_slots:
                break
            self.grow()
        return start

    def take(self, shift: int) -> Iterator[tuple[int, bytes]]:
        """See `KeyTable`."""
        from diamant.kernels.counting import take_entries
        from diamant.kernels.offset_map import scatter

        taken = entries_in(bytearray(_TAKEN_AT_ONCE * ENTRY.size))
        size = _TAKEN_AT_ONCE * ENTRY.size
        sorted_ = memoryview(bytearray(BUCKETS * size))
        buckets = sorted_.cast("Q", (BUCKETS, _TAKEN_AT_ONCE, 3))
        slot = 0
        while slot < self._slots:
            slot, count = take_entries(self.table, slot, taken)
            fill = memoryview(bytearray(8 * BUCKETS)).cast("q")
            scatter(taken, 0, count, shift, buckets, fill)
            for bucket, number in enumerate(fill):
                if number:
                    yield bucket, bytes(sorted_[bucket * size : bucket * size + number * ENTRY.size])
        self._clear()

    def sum(self) -> tuple[int, int]:
        """See `KeyTable`."""
        from diamant.kernels.counting import sum_entries

        return self.size, sum_entries(self.table, self._counts)

    def grow(self) -> None:
        """Double the room, up to the limit."""
        from diamant.kernels.offset_map import move_slots

        slots = min(2 * self._slots, self._max_slots)
        table = self._new(slots)
        move_slots(self.table, 0, self._slots, table)
        self.table, self._slots = table, slots

    def _clear(self) -> None:
        self._slots = min(_FIRST_SLOTS, self._max_slots)
        self.table = self._new(self._slots)
        self.size = 0

    def _new(self, slots: int) -> Numbers:
        return entries_in(mmap.mmap(-1, slots * ENTRY.size))


class PlainKeyTable:
    """A dict. Memory: about `max_bytes`."""

    def __init__(self, counts: Numbers, least_keys: int, max_bytes: int, *, is_one_log: bool) -> None:
        self._counts = counts
        self._is_one_log = is_one_log
        self._max_keys = max(least_keys, max_bytes // _PLAIN_BYTES)
        self._words: dict[bytes, int] = {}

    def put(self, entries: Numbers, start: int, end: int, only_source: int) -> int:
        """See `KeyTable`."""
        words, counts = self._words, self._counts
        data = entries.cast("B")[start * ENTRY.size : end * ENTRY.size]
        for index, (hashed, word) in enumerate(ENTRY.iter_unpack(data), start):
            source = word >> SOURCE_SHIFT
            if len(words) >= self._max_keys or (source != only_source != ANY_SOURCE):
                return index
            known = words.get(hashed)
            if known is not None:
                earlier = known & EARLIER
                if self._is_one_log or known >> SOURCE_SHIFT == source:
                    counts[SUPERSEDED, known >> SOURCE_SHIFT] += 1
                elif self._add(known) and earlier < 2 * EARLIER_ONE:
                    earlier += EARLIER_ONE
                word |= earlier
            words[hashed] = word
        return end

    def take(self, shift: int) -> Iterator[tuple[int, bytes]]:
        """See `KeyTable`."""
        buckets = [bytearray() for _ in range(BUCKETS)]
        for hashed, word in self._words.items():
            bucket = int.from_bytes(hashed[:8], "little") >> shift & (BUCKETS - 1)
            buckets[bucket] += ENTRY.pack(hashed[8:] + hashed[:8], word)
        self._words = {}
        for number, data in enumerate(buckets):
            if data:
                yield number, bytes(data)

    def sum(self) -> tuple[int, int]:
        """See `KeyTable`."""
        shared = sum(self._add(word) + (word & EARLIER) // EARLIER_ONE > 1 for word in self._words.values())
        return len(self._words), shared

    def _add(self, word: int) -> bool:
        """Count the latest record of a key in a source; tell whether it is live."""
        is_live = not word & TOMBSTONE
        self._counts[LIVE if is_live else TOMBSTONES, word >> SOURCE_SHIFT] += 1
        return is_live
