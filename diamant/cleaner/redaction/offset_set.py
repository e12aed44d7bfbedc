"""The offsets of a segment that are to go: added one by one, then asked batch by batch.

They lie in blocks of `BLOCK` offsets each, those of one block as numbers while they are few, then as bits.

Memory: 4 bytes for each of the last `MAX_ADDED` that were added; else 2 bytes for each offset or 8 KiB for each block, whichever
is less, and `BLOCK_OVERHEAD_BYTES` for each block. `nbytes` counts it all.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

BLOCK_BITS = 16
BLOCK = 1 << BLOCK_BITS
BITMAP_BYTES = BLOCK // 8
BLOCK_OVERHEAD_BYTES = 256
"""Memory that Python needs for an entry of the table and an array."""
MAX_ADDED = 1 << 18

_Block = np.ndarray[tuple[int], np.dtype[np.uint16]] | np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Offsets within the block, ascending; or its bits, `BITMAP_BYTES`."""
_Places = np.ndarray[tuple[int], np.dtype[np.int64]]


class Offsets:
    """Of one segment. Not for several threads at once."""

    def __init__(self, base_offset: int, *, max_added: int = MAX_ADDED) -> None:
        """`base_offset` is the segment's: offsets are within 2^32 of it, as in its indexes."""
        self.base_offset = base_offset
        self._max_added = max_added
        self._added = array("I")
        self._blocks: dict[int, _Block] = {}
        self._block_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """Number of offsets, as of the last `seal`."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._block_bytes + BLOCK_OVERHEAD_BYTES * len(self._blocks) + 4 * len(self._added)

    def add(self, offset: int) -> None:
        """Add one; it counts from the next `seal` on. An offset may be added twice."""
        self._added.append(offset - self.base_offset)
        if len(self._added) >= self._max_added:
            self.seal()

    def seal(self) -> None:
        """Take up what was added."""
        if not self._added:
            return
        added = np.unique(np.frombuffer(self._added, np.uint32))
        self._added = array("I")
        blocks = added >> BLOCK_BITS
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for some in np.split(added, cuts):
            self._merge(int(some[0]) >> BLOCK_BITS, (some & (BLOCK - 1)).astype(np.int64))

    def _merge(self, number: int, added: _Places) -> None:
        known = self._places(number)
        places = np.union1d(known, added)
        self._count += len(places) - len(known)
        if number in self._blocks:
            self._block_bytes -= self._blocks[number].nbytes
        block: _Block = places.astype(np.uint16)
        if block.nbytes > BITMAP_BYTES:
            bits = np.zeros(BLOCK, np.uint8)
            bits[places] = 1
            block = np.packbits(bits)
        self._blocks[number] = block
        self._block_bytes += block.nbytes

    def _places(self, number: int, low: int = 0, high: int = BLOCK - 1) -> _Places:
        """Return the places within a block from `low` to `high`, ascending."""
        block = self._blocks.get(number)
        if block is None:
            return np.empty(0, np.int64)
        if block.dtype == np.uint8:
            start = low >> 3
            found = np.flatnonzero(np.unpackbits(block[start : (high >> 3) + 1].view(np.uint8))) + (start << 3)
            return found[(found >= low) & (found <= high)]
        return block[(block >= low) & (block <= high)].astype(np.int64)

    def between(self, first: int, last: int) -> frozenset[int]:
        """Return those from `first` to `last`, as of the last `seal`."""
        low, high = max(0, first - self.base_offset), last - self.base_offset
        found: list[int] = []
        for number in range(low >> BLOCK_BITS, (high >> BLOCK_BITS) + 1):
            if number in self._blocks:
                start = number << BLOCK_BITS
                places = self._places(number, max(0, low - start), min(BLOCK - 1, high - start))
                found += (places + (self.base_offset + start)).tolist()
        return frozenset(found)

    def has(self, offset: int) -> bool:
        """Tell whether it is one of them, as of the last `seal`."""
        place = offset - self.base_offset
        block = self._blocks.get(place >> BLOCK_BITS)
        if block is None or place < 0:
            return False
        place &= BLOCK - 1
        if block.dtype == np.uint8:
            return bool(block[place >> 3] >> (7 - (place & 7)) & 1)
        index = int(np.searchsorted(block, place))
        return index < len(block) and int(block[index]) == place

    def ranges(self, limit: int) -> tuple[list[tuple[int, int]], int]:
        """Return the first `limit` runs as first and last offsets, ascending, and how many runs there are; as of the last `seal`.

        Memory: that of `limit` pairs, and of one block.
        """
        found: list[tuple[int, int]] = []
        count = 0
        pending: tuple[int, int] | None = None
        for firsts, lasts in self._runs():
            if pending is not None and pending[1] + 1 == firsts[0]:
                firsts[0] = pending[0]
            elif pending is not None:
                count += 1
                found += [pending][: limit - len(found)]
            count += len(firsts) - 1
            room = max(0, min(limit - len(found), len(firsts) - 1))
            found += zip(firsts[:room].tolist(), lasts[:room].tolist(), strict=True)
            pending = int(firsts[-1]), int(lasts[-1])
        if pending is not None:
            count += 1
            found += [pending][: limit - len(found)]
        return found, count

    def _runs(self) -> Iterator[tuple[_Places, _Places]]:
        """Yield the first and the last offsets of the runs of each block."""
        for number in sorted(self._blocks):
            places = self._places(number) + (self.base_offset + (number << BLOCK_BITS))
            breaks = np.flatnonzero(np.diff(places) != 1)
            yield places[np.concatenate(([0], breaks + 1))], places[np.concatenate((breaks, [len(places) - 1]))]
