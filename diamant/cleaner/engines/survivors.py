"""Finds out for the compiled rewrite which records to keep, by key hash or by offset.

Below the dirty range, a record is looked up by its key. In the dirty range, it is kept if the map contains its offset. Lookup by
offset is faster: it shows for most batches, without parsing them, that all or none of their records are kept. If the map has
spilled, or is distributed over Spark's partitions, only lookup by offset is possible.
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
"""Number of stretches whose offsets are looked up together."""


class Survivors(Protocol):
    """Finds the records to keep. Lookups must be in offset order."""

    @property
    def end_offset(self) -> int:
        """Last offset that the map covers."""
        ...

    @property
    def keys(self) -> OffsetMap:
        """The map of keys; empty if `latest` is set."""
        ...

    @property
    def latest(self) -> LatestOffsets | None:
        """The offsets of the records to keep; None: look records up by key."""
        ...

    def begin(self, segment: SegmentPlan, counts: array[int]) -> Iterator[tuple[int, int]]:
        """Prepare to rewrite a segment, and yield the byte ranges to read.

        No record between these ranges is kept. The removed records there are added to `counts` (array of `fates.COUNTS`).
        """
        ...

    def ranges(self, chunk: Rows) -> Iterator[tuple[int, int]]:
        """Yield consecutive ranges that cover all rows. Finish each before taking the next: `keys` and `latest` may change.

        Sets the rows' NOTE. Rows whose STEP is set to `steps.PLAIN_ENGINE` must be judged with `last_offsets_in`.
        """
        ...

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """Return an offset for each key in the batch. It may differ from the map's, but leads to the same fate of the records."""
        ...


class MapSurvivors:
    """`Survivors` that uses a `CompiledMap`: first lookup by key, then lookup by offset, for which the map discards its keys."""

    def __init__(self, plan: CleanPlan, key_map: CompiledMap) -> None:
        self._plan = plan
        self._map = key_map
        self._has_aborted = plan.has_aborted
        active = (one.last_data_offset for one in plan.active_producers.values())
        retained = {plan.header_end - 1, *(offset for offset in active if offset is not None)}
        self._retained = array("q", sorted(retained))
        """Last offsets of batches that must remain, at least as a header."""
        self._ranges = numbers("q", STRETCHES_AT_ONCE + 1, fields_of.RANGE_FIELDS)
        self._unmapped: set[int] = set()
        """Base offsets of batches in the chunk that the first pass, but not the rewrite, considers aborted."""

    def is_steady(self, first: SegmentPlan, last: SegmentPlan) -> bool:
        """Return whether the segments from `first` to `last` can be looked up in any order.

        This is possible if there are no transactions, and if the map does not change after the first lookup.
        """
        if self._has_aborted or self._map.has_transactions or self._map.offsets.is_spilled:
            return False
        is_across = first.base_offset < self._plan.first_dirty_offset < last.next_base_offset
        return not (is_across and self.latest is None and self._map.may_forget_keys)

    def staying_in(self, first: SegmentPlan, last: SegmentPlan) -> int:
        """Return the number of records to keep from `first` to `last`; an upper bound if the map still has keys."""
        if self.latest is None:
            return last.next_base_offset - first.base_offset
        latest = self.latest.window(first.base_offset, last.next_base_offset - 1)
        return bisect_left(latest, last.next_base_offset) - bisect_left(latest, first.base_offset)

    def go_to(self, segment: SegmentPlan) -> None:
        """Make `segment` the next one to look up."""
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
        """The offset map."""
        return self._map.offsets

    @property
    def latest(self) -> LatestOffsets | None:
        """The offsets of the records to keep, once the map has discarded its keys."""
        return self._map.latest

    def begin(self, segment: SegmentPlan, counts: array[int]) -> Iterator[tuple[int, int]]:
        """Yield the ranges to read, which exclude stretches from which no record is kept."""
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
        """Yield the range of the rows that begin in the clean section, then the range of the other rows."""
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
        """Mark batches that the first pass, but not the rewrite, considers aborted; they are judged one by one.

        They occur only if an index of aborted transactions is wrong. The map lacks their keys, so their records are kept.
        """
        self._unmapped = set()
        for row in range(first, end):
            if rows[fields.NOTE, row] == ABORTED_NOTE:
                rows[fields.NOTE, row] = 0
                if not rows[fields.DROPS_ALL, row]:
                    rows[fields.STEP, row] = steps.PLAIN_ENGINE
                    self._unmapped.add(rows[fields.BASE_OFFSET, row])
