"""The offsets of a segment that are to go: added one by one, then asked batch by batch.

Memory: 4 bytes for each offset while they are added; sealed, the same or one bit for each offset that the segment spans,
whichever is less.
"""

from __future__ import annotations

from array import array

import numpy as np


class Offsets:
    """Of one segment. Not for several threads at once."""

    def __init__(self, base_offset: int) -> None:
        """`base_offset` is the segment's: offsets are within 2^31 of it, as in its indexes."""
        self.base_offset = base_offset
        self._added = array("I")
        self._sorted = np.empty(0, np.uint32)
        self._bits: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None
        self._count = 0

    def __len__(self) -> int:
        """How many there are, as of the last `seal`."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory, as of the last `seal`."""
        return self._sorted.nbytes if self._bits is None else self._bits.nbytes

    def add(self, offset: int) -> None:
        """Add one; it counts from the next `seal` on. An offset may be added twice."""
        self._added.append(offset - self.base_offset)

    def seal(self) -> None:
        """Take up what was added."""
        if not self._added:
            return
        every = np.concatenate((self._relative(), np.frombuffer(self._added, np.uint32)))
        found = np.unique(every)
        self._added = array("I")
        self._count = len(found)
        span = int(found[-1]) + 1
        if span // 8 < found.nbytes:
            bits = np.zeros(span, np.uint8)
            bits[found] = 1
            self._bits, self._sorted = np.packbits(bits), np.empty(0, np.uint32)
        else:
            self._bits, self._sorted = None, found

    def between(self, first: int, last: int) -> frozenset[int]:
        """Return those from `first` to `last`."""
        low, high = max(0, first - self.base_offset), last - self.base_offset
        if high < low:
            return frozenset()
        if self._bits is None:
            begin, end = np.searchsorted(self._sorted, (low, high + 1))
            return frozenset(self.base_offset + one for one in self._sorted[begin:end].tolist())
        start = low // 8
        found = np.flatnonzero(np.unpackbits(self._bits[start : high // 8 + 1])) + start * 8
        return frozenset(self.base_offset + one for one in found.tolist() if low <= one <= high)

    def has(self, offset: int) -> bool:
        """Tell whether it is one of them."""
        return bool(self.between(offset, offset))

    def ranges(self) -> list[tuple[int, int]]:
        """Return them as first and last offsets of runs, ascending."""
        found = self._relative().astype(np.int64)
        if not len(found):
            return []
        breaks = np.flatnonzero(np.diff(found) != 1)
        firsts = found[np.concatenate(([0], breaks + 1))] + self.base_offset
        lasts = found[np.concatenate((breaks, [len(found) - 1]))] + self.base_offset
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))

    def _relative(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        if self._bits is None:
            return self._sorted
        return np.flatnonzero(np.unpackbits(self._bits)).astype(np.uint32)
