"""Blocks of a part's hashed keys, for the tasks that merge parts. A block has the entries (`key_tables`) of one slice of hashes.

On a cluster, the blocks are sent through Spark's shuffle. On one machine, they are written to files, and the driver passes on
only their places. The data then goes from task to task through the page cache, without pickling and without the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import TypeAlias

from diamant.cleaner.queries.key_counts import LEAST_KEYS, KeyCounts
from diamant.cleaner.queries.key_tables import (
    ANY_SOURCE,
    BUCKETS,
    ENTRY,
    CompiledKeyTable,
    Numbers,
    kinds_of,
)
from diamant.cleaner.segments.random_hash import RandomHash

SLICES = BUCKETS
_SLICE_SHIFT = 60
"""Position, in the hash's second half, of the bits that select the slice (`KeyTable.take`).

These bits also select the slot in the part's table. So the entries of a slice lie together, and make up a few large blocks.
"""
_SHUFFLED_BYTES = 2048 * ENTRY.size
"""Maximum size of a shuffled block. The JVM allocates it in one piece, and Spark's Python code collects many before writing."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The place of a block in a file."""

    path: str
    position: int
    size: int


Block: TypeAlias = "bytes | StoredBlock"


def bytes_of(block: Block) -> bytes:
    """Return the entries of a block."""
    if isinstance(block, bytes):
        return block
    with open(block.path, "rb") as file:
        file.seek(block.position)
        return file.read(block.size)


class KeyBlocks:
    """The keys of a part, in a table that is emptied into blocks when it is full. Used in place of a `KeyCensus`."""

    def __init__(self, hashed_by: RandomHash, table_bytes: int, directory: str) -> None:
        """Make an empty table.

        Whenever it is emptied, its blocks go to a new file in `directory`, which the caller removes. If `directory` is an empty
        string, blocks stay in memory.
        """
        self.hash = hashed_by
        self._counts = memoryview(bytearray(8 * 3)).cast("q", (3, 1))
        self._table = CompiledKeyTable(self._counts, LEAST_KEYS, table_bytes, is_one_log=False)
        self._directory = directory
        self._blocks: list[tuple[int, Block]] = []
        self._number = 0

    def put(self, entries: Numbers, count: int) -> None:
        """Add the first `count` entries."""
        at = 0
        while (at := self._table.put(entries, at, count, ANY_SOURCE)) < count:
            self.take()

    def take(self) -> None:
        """Empty the table into blocks."""
        taken = self._table.take(_SLICE_SHIFT)
        if not self._directory:
            self._blocks += [
                (slice_number, block[start : start + _SHUFFLED_BYTES])
                for slice_number, block in taken
                for start in range(0, len(block), _SHUFFLED_BYTES)
            ]
            return
        with NamedTemporaryFile(dir=self._directory, delete=False) as file:
            for slice_number, block in taken:
                self._blocks.append((slice_number, StoredBlock(file.name, file.tell(), len(block))))
                file.write(block)

    def blocks(self) -> Iterator[tuple[int, int, Block]]:
        """Yield the number and slice of each block taken from the table since the last call, and the block itself."""
        for slice_number, block in self._blocks:
            yield self._number, slice_number, block
            self._number += 1
        self._blocks.clear()

    def finish(self) -> KeyCounts:
        """Return the number of keys still in the table, and the counts of records superseded in it."""
        keys, shared_keys = self._table.sum()
        return KeyCounts(kinds_of(self._counts, 1), keys, shared_keys)
