"""The offsets to remove from a segment, which are added one by one, then looked up batch by batch.

Each block covers a range of `BLOCK` offsets. It is an array of numbers if few of them are in the set, and a bitmap if many are.

Memory: 4 bytes for each offset added since the last `seal`, at most `MAX_ADDED` of them; in blocks, 2 bytes per offset or 8 KiB
per block, whichever is less, and `BLOCK_OVERHEAD_BYTES` per block. `nbytes` counts all of this.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

BLOCK_BITS = 16
BLOCK = 1 << BLOCK_BITS
BITMAP_BYTES = BLOCK // 8
BLOCK_OVERHEAD_BYTES = 256
"""Memory of a block's array object and of its entry in the dict."""
MAX_ADDED = 1 << 18

_Block: TypeAlias = "array[int] | bytes"
"""Offsets within the block, ascending, 2 bytes each; or a bitmap, `BITMAP_BYTES`."""


class Offsets:
    """The offsets to remove from one segment. For one thread at a time."""

    def __init__(self, base_offset: int, *, max_added: int = MAX_ADDED) -> None:
        """`base_offset`: the base offset of the segment. Offsets exceed it by less than 2^32, as in the segment's indexes."""
        self.base_offset = base_offset
        self._max_added = max_added
        self._added = array("I")
        self._blocks: dict[int, _Block] = {}
        self._block_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of offsets, as of the last `seal`."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._block_bytes + BLOCK_OVERHEAD_BYTES * len(self._blocks) + 4 * len(self._added)

    def add(self, offset: int) -> None:
        """Add an offset, which other methods see after the next `seal`. Offsets may repeat."""
        self._added.append(offset - self.base_offset)
        if len(self._added) >= self._max_added:
            self.seal()

    def seal(self) -> None:
        """Merge the added offsets into the blocks."""
        if not self._added:
            return
        added = sorted(set(self._added))
        self._added = array("I")
        for number, some in groupby(added, lambda offset: offset >> BLOCK_BITS):
            self._merge(number, [offset & (BLOCK - 1) for offset in some])

    def _merge(self, number: int, added: list[int]) -> None:
        known = self._places(number)
        places = sorted({*known, *added})
        self._count += len(places) - len(known)
        self._block_bytes -= len(memoryview(self._blocks.get(number, b"")).cast("B"))
        block: _Block = array("H", places)
        if 2 * len(places) > BITMAP_BYTES:
            bits = bytearray(BITMAP_BYTES)
            for place in places:
                bits[place >> 3] |= 1 << (place & 7)
            block = bytes(bits)
        self._blocks[number] = block
        self._block_bytes += len(memoryview(block).cast("B"))

    def _places(self, number: int, low: int = 0, high: int = BLOCK - 1) -> Sequence[int]:
        """Return the positions within a block from `low` to `high`, ascending."""
        block = self._blocks.get(number, b"")
        if isinstance(block, bytes):
            return [place for place in range(low, high + 1) if block[place >> 3] >> (place & 7) & 1] if block else ()
        return block[bisect_left(block, low) : bisect_right(block, high)]

    def between(self, first: int, last: int) -> frozenset[int]:
        """Return the offsets from `first` to `last`, as of the last `seal`."""
        low, high = max(0, first - self.base_offset), last - self.base_offset
        found: list[int] = []
        for number in range(low >> BLOCK_BITS, (high >> BLOCK_BITS) + 1):
            if number in self._blocks:
                start = number << BLOCK_BITS
                places = self._places(number, max(0, low - start), min(BLOCK - 1, high - start))
                found += (self.base_offset + start + place for place in places)
        return frozenset(found)

    def has(self, offset: int) -> bool:
        """Tell whether an offset is in the set, as of the last `seal`."""
        place = offset - self.base_offset
        if place < 0:
            return False
        return bool(self._places(place >> BLOCK_BITS, place & (BLOCK - 1), place & (BLOCK - 1)))

    def ranges(self, limit: int) -> tuple[list[tuple[int, int]], int]:
        """Return the first `limit` runs of consecutive offsets, as (first, last) pairs, and the total number of runs.

        The result reflects the last `seal`. Memory: `limit` pairs, and one block.
        """
        found: list[tuple[int, int]] = []
        count = 0
        first = last = -2
        for offset in self._offsets():
            if offset != last + 1:
                if count and count <= limit:
                    found.append((first, last))
                first = offset
                count += 1
            last = offset
        if count and count <= limit:
            found.append((first, last))
        return found, count

    def _offsets(self) -> Iterator[int]:
        for number in sorted(self._blocks):
            start = self.base_offset + (number << BLOCK_BITS)
            yield from (start + place for place in self._places(number))
