"""Notes on batches: what the first pass learns of each batch, or of many, that spares the rewrite a look inside.

A note is the size of a batch's records + 1 if each has a key and a value and none is odd, else 0
(`kernels.offset_map.hash_records`). Both passes must agree on which batches have one.

A stretch is a run of batches that the rewrite need not even read if the map has none of its offsets (`kernels.stretches`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.kernels.constants import fields
from diamant.kernels.constants.stretches import STRETCH_FIELDS
from diamant.kernels.stretches import note_stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.rules.engine_limits import EngineLimits
    from diamant.cleaner.rules.plan import CleanPlan
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
        self.total = self._count
        """Notes that there would be without the limit."""

    def append(self, notes: NDArray[np.int64] | NDArray[np.uint32]) -> None:
        """Put notes behind those that are there, up to the limit."""
        self.total += len(notes)
        count = min(len(notes), self._limit - self._count)
        if self._count + count > len(self._notes):
            larger = np.empty(min(self._limit, max(2 * len(self._notes), self._count + count)), np.uint32)
            larger[: self._count] = self._notes[: self._count]
            self._notes = larger
        self._notes[self._count : self._count + count] = notes[:count]
        self._count += count

    def kept(self) -> NDArray[np.uint32]:
        """Return those that were put."""
        return self._notes[: self._count]

    def go_to(self, index: int) -> None:
        """Take the note with this index next."""
        self._taken = index

    def pass_over(self, count: int) -> None:
        """Take notes that are not needed."""
        self._taken += count

    def take(self, count: int) -> NDArray[np.uint32]:
        """Return the next `count` notes, 0 where there are none."""
        found = self._notes[self._taken : min(self._taken + count, self._count)]
        self._taken += count
        if len(found) == count:
            return found
        return np.concatenate([found, np.zeros(count - len(found), np.uint32)])


class Stretches:
    """Stretches of the dirty range: noted in the first pass, taken segment by segment in the second."""

    def __init__(self, plan: CleanPlan, limits: EngineLimits) -> None:
        self._least_offset = plan.first_dirty_offset
        if not plan.is_kafka:
            self._least_offset = max(self._least_offset, plan.log_start_offset)
        self._stretch_bytes = limits.stretch_bytes
        self._room = limits.stretches
        self._noted: dict[str, list[NDArray[np.int64]]] = {}

    def append(self, chunk: Rows, count: int) -> None:
        """Note the stretches in the first `count` rows of a chunk, up to the limit."""
        found = np.empty((chunk.size // self._stretch_bytes + 1, STRETCH_FIELDS), np.int64)
        noted = note_stretches(chunk.rows, count, chunk.position, self._least_offset, self._stretch_bytes, found)
        if noted <= self._room:
            self._room -= noted
            self._noted.setdefault(chunk.path, []).append(found[:noted].copy())

    def noted(self) -> dict[str, list[NDArray[np.int64]]]:
        """Return all of them, by the path of the segment."""
        return self._noted

    def take_over(self, noted: dict[str, list[NDArray[np.int64]]]) -> None:
        """Add those of other segments, or the next ones of the same, up to the limit."""
        for path, parts in noted.items():
            for part in parts:
                if len(part) <= self._room:
                    self._room -= len(part)
                    self._noted.setdefault(path, []).append(part)

    def take(self, path: str) -> NDArray[np.int64]:
        """Return the stretches of the segment whose file is `path`, int64[n, STRETCH_FIELDS]; afterwards there are none."""
        return np.concatenate(self._noted.pop(path, [np.empty((0, STRETCH_FIELDS), np.int64)]))


def noted_rows(chunk: Rows, first: int, end: int, least_offset: int) -> slice | NDArray[np.bool_]:
    """Tell which rows from `first` to `end` have a note: data of magic 2 that begins at `least_offset` or above."""
    rows = chunk.rows
    if not chunk.together & (fields.CONTROL | fields.LEGACY):
        return slice(int(rows[fields.BASE_OFFSET, first:end].searchsorted(least_offset)), None)
    is_noted: NDArray[np.bool_] = (
        (rows[fields.MAGIC, first:end] == 2)
        & (rows[fields.ATTRIBUTES, first:end] & fields.CONTROL == 0)
        & (rows[fields.BASE_OFFSET, first:end] >= least_offset)
    )
    return is_noted
