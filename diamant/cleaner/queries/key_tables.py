"""Tables of keys, identified by hashes: a compiled table, and an equivalent in plain Python for machines without kernels.

    entry, 24 bytes:   16 hash | 8 state of the key (`kernels.constants.counts`)

A later record of a key supersedes the earlier one in the same source. Each source counts the key separately; of the sources
before the current one, a table keeps only the number of those in which the key is live. If the sources are parts of one log, a
record supersedes any earlier record of its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Protocol, TypeAlias

from diamant.cleaner.rules.record_kinds import Kinds
from diamant.kernels import new_table
from diamant.kernels.constants.counts import EARLIER, EARLIER_ONE, SOURCE_SHIFT, TOMBSTONE

ENTRY = Struct("=16sQ")
BUCKETS = 16
LIVE, TOMBSTONES, SUPERSEDED = range(3)
"""Rows of the counts, int64[3, sources]."""
ANY_SOURCE = -1

Numbers: TypeAlias = "memoryview[int]"

_FIRST_SLOTS = 4096
_PLAIN_BYTES = 200
"""Memory of an entry in a dict."""
_TAKEN_AT_ONCE = 16 * 1024
_ZEROS = memoryview(bytes(64 * 1024))


def entries_in(data: bytes | bytearray) -> Numbers:
    """View the bytes of at least one entry as uint64[n, 3]."""
    return memoryview(data).cast("B").cast("Q", (len(data) // ENTRY.size, 3))


def entries_of(source: int, hashes: Sequence[bytes], tombstones: bytearray) -> Numbers:
    """Return entries for at least one record, given the hashes of keys, and 1 for each tombstone, 0 for any other record."""
    words = [source << SOURCE_SHIFT | is_tombstone for is_tombstone in (0, TOMBSTONE)]
    return entries_in(
        b"".join(ENTRY.pack(hashed, words[gone]) for hashed, gone in zip(hashes, tombstones, strict=True))
    )


def kinds_of(sums: Numbers, sources: int) -> tuple[Kinds, ...]:
    """Return the counts of each source."""
    return tuple(
        Kinds(live=sums[LIVE, one], superseded=sums[SUPERSEDED, one], tombstones=sums[TOMBSTONES, one])
        for one in range(sources)
    )


class KeyTable(Protocol):
    """A table of keys, owned by one thread."""

    def put(self, entries: Numbers, start: int, end: int, only_source: int) -> int:
        """Add entries `start` to `end`, until the table is full or the source is not `only_source`. Return the next index."""
        ...

    def take(self, shift: int) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the entries of each bucket, several times if there are many, and empty the table.

        The halves of the hashes are swapped (`kernels.counting.take_entries`). The 4 bits at `shift` in the new second
        half select the bucket; tables ignore the lower 32 bits of a half.
        """
        ...

    def sum(self) -> tuple[int, int]:
        """Count the latest records; return the number of keys, and of keys that are live in more than one source."""
        ...

    def clear(self) -> None:
        """Empty the table, which will be filled again with about as many keys."""
        ...


class CompiledKeyTable:
    """A key table in the compiled kernels. Memory: `max_bytes`, including the old table while entries move to a larger one."""

    def __init__(self, counts: Numbers, least_keys: int, max_bytes: int, *, is_one_log: bool) -> None:
        self._counts = counts
        self._is_one_log = is_one_log
        self._max_slots = max(least_keys * 4 // 3 + 1, max_bytes * 2 // 3 // ENTRY.size)
        self._slots = 0
        self.table: Numbers
        """The slots, in the form that kernels use: uint64[slots, 3]."""
        self.size = 0
        """Number of keys in the table."""
        self._begin()

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
        self._begin()

    def sum(self) -> tuple[int, int]:
        """See `KeyTable`."""
        from diamant.kernels.counting import sum_entries

        return self.size, sum_entries(self.table, self._counts)

    def grow(self) -> None:
        """Double the number of slots, up to the limit."""
        from diamant.kernels.offset_map import move_slots

        slots = min(2 * self._slots, self._max_slots)
        table = new_table(slots)
        move_slots(self.table, 0, self._slots, table)
        self.table, self._slots = table, slots

    def clear(self) -> None:
        """See `KeyTable`. Keeps the slots if many were in use, because it costs less to clear used pages than to get new ones."""
        if 8 * self.size < self._slots:
            self._begin()
            return
        octets = self.table.cast("B")
        for start in range(0, len(octets), len(_ZEROS)):
            octets[start : start + len(_ZEROS)] = _ZEROS[: len(octets) - start]
        self.size = 0

    def _begin(self) -> None:
        self._slots = min(_FIRST_SLOTS, self._max_slots)
        self.table = new_table(self._slots)
        self.size = 0


class PlainKeyTable:
    """A key table in a dict. Memory: about `max_bytes`."""

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

    def clear(self) -> None:
        """See `KeyTable`."""
        self._words.clear()

    def _add(self, word: int) -> bool:
        """Count the latest record of a key in a source; return True if it is live."""
        is_live = not word & TOMBSTONE
        self._counts[LIVE if is_live else TOMBSTONES, word >> SOURCE_SHIFT] += 1
        return is_live
