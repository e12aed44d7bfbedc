"""Counts keys, records that are the latest of their key, and keys that are live in several sources.

A source is a partition of one topic. Records are added source by source and in offset order, so the later of two entries of a
key is the newer one. Keys are identified by 128 bits of a hash with a random secret: a collision is as likely as guessing a
random 128-bit number, and producers cannot construct one.

Memory: `max_bytes`, whatever the number of keys. A full table (`key_tables`) is distributed to 16 temporary files by 4 bits of
the hash. The files are counted one by one; a file that is too large is split by the next 4 bits. After the first spill a table
holds entries of only one source. Disk: 24 bytes per key and source, and 24 bytes per record whose key had been written before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from diamant.cleaner.queries.key_tables import (
    ANY_SOURCE,
    ENTRY,
    CompiledKeyTable,
    KeyTable,
    Numbers,
    PlainKeyTable,
    entries_in,
    entries_of,
    kinds_of,
)
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.counts import SOURCE_SHIFT

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
LEAST_KEYS = 1024
"""Minimum number of keys for which a table has room."""
_READ_ENTRIES = 64 * 1024
_FIRST_SHIFT = 28
"""Shift of the first 4 bits: just below the upper 32 bits, which choose the slot in a table."""


class KeyCounts(NamedTuple):
    """The result of a count of keys."""

    kinds: tuple[Kinds, ...]
    """For each source: live records, tombstones and superseded records. The other kinds are 0."""
    keys: int
    """Number of different keys in all sources."""
    shared_keys: int
    """Number of keys with a live record in more than one source."""


class KeyCensus:
    """Counts the keys of sources 0 to `sources` - 1. Use it as a context manager, because it may have temporary files."""

    def __init__(
        self,
        sources: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        is_one_log: bool = False,
        is_compiled: bool = ARE_COMPILED,
    ) -> None:
        """`is_one_log`: the sources are segments of one log, so a record supersedes earlier records of its key in any source."""
        self.is_compiled = is_compiled
        """True if `put` expects hashes made by kernels."""
        self.hash = RandomHash(is_compiled=is_compiled)
        """The hash that identifies keys."""
        self._sources = sources
        self._counts = memoryview(bytearray(8 * 3 * sources)).cast("q", (3, sources))
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        new_table = CompiledKeyTable if is_compiled else PlainKeyTable
        make_table = partial(new_table, self._counts, LEAST_KEYS, max_bytes, is_one_log=is_one_log)
        self._keys = _Keys(make_table, self._make_directory, _FIRST_SHIFT)

    def __enter__(self) -> KeyCensus:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_files()

    @property
    def has_spilled(self) -> bool:
        """True if keys were written to files."""
        return self._directory is not None

    def add(self, source: int, hashes: Sequence[bytes], tombstones: bytearray) -> None:
        """Count records of `source`, given the hashes of their keys, and 1 for each tombstone, 0 for any other record.

        Fastest with several thousand records at a time.
        """
        if hashes:
            self.put(entries_of(source, hashes, tombstones), len(hashes))

    def put(self, entries: Numbers, count: int) -> None:
        """Count the first `count` of these entries (uint64[n, 3]; see `key_tables`)."""
        self._keys.put(entries, count)

    def finish(self) -> KeyCounts:
        """Return the counts."""
        keys, shared_keys = self._keys.finish()
        return KeyCounts(kinds_of(self._counts, self._sources), keys, shared_keys)

    def restart(self) -> None:
        """Forget all keys and counts, for another count in the same memory."""
        self._remove_files()
        self._counts.cast("B")[:] = bytes(self._counts.nbytes)
        self._keys.restart()

    def _make_directory(self) -> str:
        self._directory = tempfile.TemporaryDirectory(prefix="diamant-keys-")
        return self._directory.name

    def _remove_files(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


class _Keys:
    """The keys in one table, or in the files to which it was spilled."""

    def __init__(self, new_table: Callable[[], KeyTable], make_directory: Callable[[], str], shift: int) -> None:
        """`shift`: position, in the second half of the hashes, of the first 4 bits in which the hashes may differ."""
        self._new_table = new_table
        self._make_directory = make_directory
        self._shift = shift
        self._table = new_table()
        self._source = ANY_SOURCE
        self._directory = ""

    def put(self, entries: Numbers, count: int) -> None:
        """Add the first `count` entries."""
        at = 0
        while (at := self._table.put(entries, at, count, self._source)) < count:
            self._spill()
            self._source = entries[at, 2] >> SOURCE_SHIFT

    def finish(self) -> tuple[int, int]:
        """Count everything; return the number of keys, and of keys that are live in more than one source."""
        if not self._directory:
            return self._table.sum()
        self._spill()
        keys = shared_keys = 0
        for path in sorted(Path(self._directory).iterdir()):
            of_file = _Keys(self._new_table, partial(_make_directory, f"{path}.split"), self._shift - 4)
            with path.open("rb") as file:
                while data := file.read(_READ_ENTRIES * ENTRY.size):
                    of_file.put(entries_in(data), len(data) // ENTRY.size)
            path.unlink()
            more, more_shared = of_file.finish()
            keys += more
            shared_keys += more_shared
        return keys, shared_keys

    def restart(self) -> None:
        """Forget everything. The caller must remove the files."""
        self._table.clear()
        self._source = ANY_SOURCE
        self._directory = ""

    def _spill(self) -> None:
        self._directory = self._directory or self._make_directory()
        for bucket, data in self._table.take(self._shift):
            with open(f"{self._directory}/{bucket:x}", "ab") as file:
                file.write(data)


def _make_directory(path: str) -> str:
    os.mkdir(path)
    return path
