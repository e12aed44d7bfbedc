"""The records that stay, as the compiled rewrite asks for them: by the hashes of keys, or by offsets.

Below the dirty range a record is asked for by its key. In the dirty range it stays if its offset is one of the map's, which
is quicker, and tells of most batches without a look inside that nothing or everything stays. Where the map has spilled, or
is spread over Spark's partitions, only offsets are known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from diamant.cleaner.engines.batch_notes import ABORTED_NOTE
from diamant.cleaner.rules import record_fate
from diamant.cleaner.segments.key_hasher import NEVER
from diamant.kernels import numbers
from diamant.kernels.constants import fields, steps
from diamant.kernels.constants import stretches as fields_of
from diamant.kernels.stretches import ranges_to_read
from diamant.storage import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diamant.cleaner.engines.compiled_map import CompiledMap
    from diamant.cleaner.engines.offset_map import LatestOffsets, OffsetMap
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.segments.chunk_batch import ChunkBatch
    from diamant.cleaner.segments.row_reader import Rows


STRETCHES_AT_ONCE = 64
"""Stretches whose offsets are looked for together."""


class Survivors(Protocol):
    """Asked in the order of offsets."""

    @property
    def end_offset(self) -> int:
        """Last offset that the map covers."""
        ...

    @property
    def keys(self) -> OffsetMap:
        """The map of keys; empty while `latest` is there."""
        ...

    @property
    def latest(self) -> LatestOffsets | None:
        """The offsets that stay; None: records are asked for by their keys."""
        ...

    def begin(self, segment: SegmentPlan, counts: array[int]) -> Iterator[tuple[int, int]]:
        """Prepare for the rewrite of a segment; yield the ranges of its bytes that are to be read.

        Of batches between them nothing stays. They are counted in `counts`, `fates.COUNTS` of them.
        """
        ...

    def ranges(self, chunk: Rows) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows, all of them in the end, that are asked for in the way that `keys` and `latest` say then.

        Sets their NOTE. A row whose STEP is set to `steps.PLAIN_ENGINE` is judged by `last_offsets_in`.
        """
        ...

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """Return an offset for each key in the batch that gives its records the fates that the map gives them."""
        ...


class MapSurvivors:
    """`Survivors` told by a `CompiledMap`: by keys first, then by offsets, for which the map is given up."""

    def __init__(self, plan: CleanPlan, key_map: CompiledMap) -> None:
        self._plan = plan
        self._map = key_map
        self._has_aborted = plan.has_aborted
        active = (one.last_data_offset for one in plan.active_producers.values())
        retained = {plan.first_uncleanable_offset - 1, *(offset for offset in active if offset is not None)}
        self._retained = array("q", sorted(retained))
        """Last offsets of batches that must not vanish."""
        self._ranges = numbers("q", STRETCHES_AT_ONCE + 1, fields_of.RANGE_FIELDS)
        self._unmapped: set[int] = set()
        """Base offsets of batches in the chunk that the map's pass took for aborted and this one does not."""

    def is_steady(self, first: SegmentPlan, last: SegmentPlan) -> bool:
        """Tell whether these segments and all between can be asked for in any order: if nothing is known of transactions.

        Once one was asked for, the map stays as it is.
        """
        if self._has_aborted or self._map.has_transactions or self._map.offsets.is_spilled:
            return False
        is_across = first.base_offset < self._plan.first_dirty_offset < last.next_base_offset
        return not (is_across and self.latest is None and self._map.may_forget_keys)

    def staying_in(self, first: SegmentPlan, last: SegmentPlan) -> int:
        """Return how many records of these segments and all between stay, at most if only their keys tell."""
        if self.latest is None:
            return last.next_base_offset - first.base_offset
        latest = self.latest.window(first.base_offset, last.next_base_offset - 1)
        return bisect_left(latest, last.next_base_offset) - bisect_left(latest, first.base_offset)

    def go_to(self, segment: SegmentPlan) -> None:
        """Ask for this segment next."""
        self._map.notes.go_to(self._map.notes_before.get(segment.base_offset, 0))
        self._forget_keys_for(segment)

    def _forget_keys_for(self, segment: SegmentPlan) -> None:
        if self.latest is None and self._map.may_forget_keys and segment.base_offset >= self._plan.first_dirty_offset:
            self._map.forget_keys()

    @property
    def end_offset(self) -> int:
        """Last offset that the map covers."""
        return self._map.end_offset

    @property
    def keys(self) -> OffsetMap:
        """The map."""
        return self._map.offsets

    @property
    def latest(self) -> LatestOffsets | None:
        """The offsets that stay, once the map's keys are forgotten."""
        return self._map.latest

    def begin(self, segment: SegmentPlan, counts: array[int]) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are to be read: all but stretches of which nothing stays."""
        self._forget_keys_for(segment)
        position, least = 0, segment.base_offset
        if self.latest is not None:
            path = names.log_file(self._plan.directory, segment.base_offset)
            for part in self._map.stretches.take(path, STRETCHES_AT_ONCE):
                end = len(part) - 1
                latest = self.latest.window(
                    least, max(part[index, fields_of.LAST_OFFSET] for index in range(len(part)))
                )
                found = ranges_to_read(part, position, self.end_offset, latest, self._retained, self._ranges, counts)
                for index in range(found):
                    self._map.notes.pass_over(self._ranges[index, fields_of.BATCHES_BEFORE])
                    yield self._ranges[index, fields_of.RANGE_START], self._ranges[index, fields_of.RANGE_END]
                position, least = part[end, fields_of.END], part[end, fields_of.FIRST_OFFSET]
        yield position, segment.size

    def ranges(self, chunk: Rows) -> Iterator[tuple[int, int]]:
        """Yield the rows that begin in the clean section, then the others."""
        count, split = chunk.count, 0
        if self.latest is None:
            # Batches that begin in the clean section are judged by their keys.
            split = count
            if self._map.may_forget_keys:
                split = bisect_left(chunk.column(fields.BASE_OFFSET), self._plan.first_dirty_offset)
            yield 0, split
            if split < count:
                self._map.forget_keys()
        if split < count:
            self._map.notes.give(chunk, split, count, self._plan.first_dirty_offset)
            if self._has_aborted:
                self._leave_unmapped_rows(chunk.rows, split, count)
            yield split, count

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """Return an offset for each key in the batch."""
        found: dict[bytes, int] = {}
        header = batch.header
        if header.base_offset in self._unmapped:
            return found
        if self.latest is None:
            return {record.key: self.keys.find(record.key) for record in batch.records() if record.key is not None}
        latest = self.latest.window(header.base_offset, header.last_offset)
        for record in batch.records():
            if record.key is None:
                continue
            at = bisect_left(latest, record.offset)
            is_last = at < len(latest) and latest[at] == record.offset
            if not is_last:
                found.setdefault(record.key, NEVER)
            elif record.offset >= self._plan.first_dirty_offset:
                found[record.key] = record.offset
            else:
                found[record.key] = record_fate.NOT_MAPPED
        return found

    def _leave_unmapped_rows(self, rows: memoryview[int], first: int, end: int) -> None:
        """Have batches judged one by one that the map's pass took for aborted and this one does not.

        With sound indexes of aborted transactions there are none. Nothing is known of their keys, so their records stay.
        """
        self._unmapped = set()
        for row in range(first, end):
            if rows[fields.NOTE, row] == ABORTED_NOTE:
                rows[fields.NOTE, row] = 0
                if not rows[fields.DROPS_ALL, row]:
                    rows[fields.STEP, row] = steps.PLAIN_ENGINE
                    self._unmapped.add(rows[fields.BASE_OFFSET, row])
