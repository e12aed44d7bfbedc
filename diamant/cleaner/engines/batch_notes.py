"""Notes that the first pass takes on batches, so that the rewrite can keep or skip batches without reading their records.

The note of a batch is the size of its records plus 1 if every record has a key and a value and no record is odd, otherwise 0
(`kernels.offset_map.hash_records`). Notes are matched to batches by order, so both passes must agree on which batches have one.

A stretch is a run of batches that the rewrite can skip unread if the map contains none of its offsets (`kernels.stretches`).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.kernels import numbers
from diamant.kernels.constants.stretches import STRETCH_FIELDS
from diamant.kernels.stretches import give_notes, note_stretches, take_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diamant.cleaner.rules.engine_limits import EngineLimits
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.segments.row_reader import Rows

ABORTED_NOTE = 2**32 - 1
"""Note of a batch that is not in the map because its transaction aborted."""


class BatchNotes:
    """Notes in offset order: the first pass appends them, the second assigns them to rows."""

    def __init__(self, notes: bytes = b"", limit: int = ENGINE_LIMITS.notes) -> None:
        """`notes`: the bytes of an array of uint32."""
        self._limit = limit
        self._notes = memoryview(bytearray(notes)).cast("I")
        self._count = self.total = len(self._notes)
        """`total`: number of notes, including those beyond the limit."""
        self._taken = 0

    def take(self, chunk: Rows, count: int, least_offset: int) -> None:
        """Append the notes of the first `count` rows of a chunk, up to the limit."""
        self._reserve(count)
        noted = take_notes(chunk.rows, count, least_offset, self._notes[self._count :])
        self.total += noted
        self._count = min(self._count + noted, self._limit)

    def append(self, notes: bytes) -> None:
        """Append notes, up to the limit."""
        more = memoryview(notes).cast("I")
        self._reserve(len(more))
        end = min(self._count + len(more), self._limit)
        self._notes[self._count : end] = more[: end - self._count]
        self.total += len(more)
        self._count = end

    def _reserve(self, count: int) -> None:
        """Make room for more notes, up to the limit."""
        if self._count + count > len(self._notes) < self._limit:
            larger = numbers("I", min(self._limit, max(1024, 2 * len(self._notes), self._count + count)))
            larger[: self._count] = self._notes[: self._count]
            self._notes = larger

    def kept(self) -> bytes:
        """Return the appended notes, as uint32."""
        return self._notes[: self._count].tobytes()

    def go_to(self, index: int) -> None:
        """Make `give` continue with the note at `index`."""
        self._taken = index

    def pass_over(self, count: int) -> None:
        """Skip the next `count` notes."""
        self._taken += count

    def give(self, chunk: Rows, first: int, end: int, least_offset: int) -> None:
        """Set NOTE of the rows from `first` to `end` to the next notes, and to 0 when there are no more."""
        self._taken += give_notes(chunk.rows, first, end, least_offset, self._notes[self._taken : self._count])


class Stretches:
    """The stretches of the dirty range. The first pass adds them; the second takes them segment by segment."""

    def __init__(self, plan: CleanPlan, limits: EngineLimits) -> None:
        self._least_offset = plan.first_dirty_offset
        if not plan.is_kafka:
            self._least_offset = max(self._least_offset, plan.log_start_offset)
        self._stretch_bytes = limits.stretch_bytes
        self._room = limits.stretches * STRETCH_FIELDS
        self._noted: dict[str, array[int]] = {}

    def append(self, chunk: Rows, count: int) -> None:
        """Add the stretches in the first `count` rows of a chunk, up to the limit."""
        found = numbers("q", chunk.size // self._stretch_bytes + 1, STRETCH_FIELDS)
        noted = note_stretches(chunk.rows, count, chunk.position, self._least_offset, self._stretch_bytes, found)
        self._add(chunk.path, array("q", found.tobytes()[: 8 * STRETCH_FIELDS * noted]))

    def noted(self) -> dict[str, array[int]]:
        """Return the stretches of each segment, in order, by the path of its file."""
        return self._noted

    def take_over(self, noted: dict[str, array[int]]) -> None:
        """Add the stretches of later segments, or of the rest of a segment, up to the limit."""
        for path, some in noted.items():
            self._add(path, some)

    def _add(self, path: str, some: array[int]) -> None:
        if len(some) <= self._room:
            self._room -= len(some)
            self._noted.setdefault(path, array("q")).extend(some)

    def take(self, path: str, at_once: int) -> Iterator[memoryview[int]]:
        """Remove the stretches of the segment at `path`, and yield up to `at_once` at a time, as int64[n, STRETCH_FIELDS]."""
        with memoryview(self._noted.pop(path, array("q"))) as some:
            for at in range(0, len(some), at_once * STRETCH_FIELDS):
                part = some[at : at + at_once * STRETCH_FIELDS]
                yield part.cast("B").cast("q", (len(part) // STRETCH_FIELDS, STRETCH_FIELDS))
