"""Notes on batches: what the first pass learns of each batch that spares the rewrite a look inside.

A note is the size of a batch's records + 1 if each has a key and a value and none is odd, else 0
(`kernels.offset_map.hash_records`). Both passes must agree on which batches have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels import fields
from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.segments.row_reader import Rows

ABORTED_NOTE = 2**32 - 1
"""Note of a batch that was not given to the map because its transaction aborted."""


class BatchNotes:
    """Notes in the order of offsets: put behind each other in the first pass, taken one by one in the second."""

    def __init__(self, notes: NDArray[np.uint32] | None = None, limit: int = ENGINE_LIMITS.notes) -> None:
        self._limit = limit
        self._notes = np.empty(1024, np.uint32) if notes is None else notes
        self._count = 0 if notes is None else len(notes)
        self._taken = 0

    def append(self, notes: NDArray[np.int64]) -> None:
        """Put notes behind those that are there, up to the limit."""
        count = min(len(notes), self._limit - self._count)
        if self._count + count > len(self._notes):
            larger = np.empty(min(self._limit, max(2 * len(self._notes), self._count + count)), np.uint32)
            larger[: self._count] = self._notes[: self._count]
            self._notes = larger
        self._notes[self._count : self._count + count] = notes[:count]
        self._count += count

    def take(self, count: int) -> NDArray[np.uint32]:
        """Return the next `count` notes, 0 where there are none."""
        found = self._notes[self._taken : min(self._taken + count, self._count)]
        self._taken += count
        if len(found) == count:
            return found
        return np.concatenate([found, np.zeros(count - len(found), np.uint32)])


def noted_rows(chunk: Rows, first: int, end: int, least_offset: int) -> slice | NDArray[np.bool_]:
    """Tell which rows from `first` to `end` have a note: data of magic 2 that begins at `least_offset` or above."""
    rows = chunk.rows
    if not chunk.together & (fields.CONTROL | fields.LEGACY):
        return slice(int(np.searchsorted(rows[fields.BASE_OFFSET, first:end], least_offset)), None)
    is_noted: NDArray[np.bool_] = (
        (rows[fields.MAGIC, first:end] == 2)
        & (rows[fields.ATTRIBUTES, first:end] & fields.CONTROL == 0)
        & (rows[fields.BASE_OFFSET, first:end] >= least_offset)
    )
    return is_noted
