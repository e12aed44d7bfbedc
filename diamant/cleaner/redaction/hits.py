"""The records of one partition that a search matched or left undecided, so that a later search judges only these.

    hits = Hits(log_end_offset)
    hits.add(17)                           during the first search
    locate_records(..., hits=hits)         judges only the hits and records written since

The proof of a redaction does not rely on hits: its scan reads everything.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import TypeAlias

from diamant.storage.checkpoints.checkpoints import TopicPartition

MAX_HITS = 100_000
"""Maximum number of hits per partition, 8 bytes each; if there are more, the whole partition is read again."""


class Hits:
    """The offsets of one partition at which records may match. For one thread at a time."""

    def __init__(self, below_offset: int) -> None:
        """`below_offset`: the exclusive end of the range of offsets that the search read."""
        self._below_offset = below_offset
        self._offsets = array("q")
        self._is_sorted = True
        self.records_in: dict[tuple[int, int], int] = {}
        """Number of user records in each segment that was read, by the segment's base offset and size."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int) -> None:
        """Add an offset. Offsets may be added in any order, and more than once."""
        self._offsets.append(offset)
        self._is_sorted = False

    def join(self, other: Hits) -> None:
        """Add the hits of another search of the same partition."""
        self._below_offset = min(self._below_offset, other._below_offset)
        self._offsets += other._offsets
        self._is_sorted = False
        self.records_in = other.records_in

    def may_be_in(self, first_offset: int, last_offset: int) -> bool:
        """Tell whether a record in this range of offsets may match because it is a hit or was not searched."""
        if last_offset >= self._below_offset:
            return True
        if not self._is_sorted:
            self._offsets = array("q", sorted({*self._offsets}))
            self._is_sorted = True
        at = bisect_left(self._offsets, first_offset)
        return at < len(self._offsets) and self._offsets[at] <= last_offset


HitsByPartition: TypeAlias = Mapping[TopicPartition, Hits]
"""Hits by partition. A partition without an entry must be read as a whole."""
