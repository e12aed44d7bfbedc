"""The first pass over a part of the log: hashes and offsets of its keys, distributed over partitions by hash.

The output consists of rows `(partition, (kind, part, flush, bytes))`:

    MAPPED   tuples of the dirty range: the last one of each key in the part (or several, if the part has very many keys)
    ASKED    tuples of all other records with keys, which must be looked up: those below the dirty range, and those of
             transactions that the map leaves out
    NOTES    the batch notes for the rewrite, uint32 (`kernels.offset_map.hash_records`); sent to an arbitrary partition

An additional last partition receives one row with the part's statistics and transaction events (`transaction_cuts`), or with the
error that ended the pass. A tuple has three words, 24 bytes: two of hash, and the offset. Keys and values never leave the task.

Memory: that of `row_records`, 1.6 MB for tuples, three times `table_bytes` for keys seen, `BUFFER_BYTES` for buffered tuples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diamant.cleaner.engines.batch_notes import ABORTED_NOTE, BatchNotes
from diamant.cleaner.engines.compiled_map import choose_rows
from diamant.cleaner.engines.offset_map import OffsetMap
from diamant.cleaner.rules.result import no_throttle
from diamant.cleaner.segments.key_hasher import ALWAYS, NEVER, KeyHasher
from diamant.cleaner.segments.row_records import RowRecords
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.clean.transaction_cuts import RecordingTracker, ResumableTracker, TrackerState
from diamant.kernels import offset_map
from diamant.kernels.batches import records_in
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import ENTRY_BYTES, MAP, SKIP
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.rules.result import Throttle
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.spark.clean.parts import Part
    from diamant.cleaner.spark.clean.task_files import TaskFiles

MAPPED, ASKED, NOTES, FIGURES, ERROR = range(5)

_MAX_NOTES = 2**62

Row: TypeAlias = tuple[int, tuple[int, int, int, Any]]

BUFFER_BYTES = 16 * 1024 * 1024
MAX_BLOCK_BYTES = 64 * 1024
"""Maximum size of a block of tuples. Spark's Python code collects a thousand blocks before it writes them."""
HASH_SHIFT = 40
"""Position, in the hash's second half, of the bits that select the partition. The map of a partition uses other bits to spill."""


@dataclass(slots=True)
class PartFigures:
    """The statistics of reading a part."""

    index: int
    bytes_read: int = 0
    messages_read: int = 0
    """Number of records read, counted in the same way as by the local engines' map."""
    mapped: int = 0
    asked: int = 0


class PartWalk:
    """Reads the chunks of a part, and tracks its transactions."""

    def __init__(
        self,
        files: TaskFiles,
        plan: CleanPlan,
        part: Part,
        *,
        state: TrackerState | None = None,
        throttle: Throttle = no_throttle,
        limits: TaskLimits = TASK_LIMITS,
    ) -> None:
        self.records = RowRecords(limits.engine.of(plan))
        # Without aborted transactions no task needs the tracker, but markers and data must still be recorded.
        tracker = ResumableTracker.resume(state) if state is not None and plan.has_aborted else None
        self.recorder = RecordingTracker(plan, tracker)
        self._files = files
        self._plan = plan
        self._part = part
        self._throttle = throttle

    def chunks(self) -> Iterator[Rows]:
        """Yield each chunk, with STEP set by `choose_rows`.

        Also raises CorruptLog if a batch has offsets outside the segment's range, by which kept offsets are assigned to segments.
        """
        plan, part = self._plan, self._part
        segment = plan.segments[part.segment]
        path = names.log_file(plan.directory, segment.base_offset)
        for chunk in self.records.chunks(self._files.env, path, part.position, part.end):
            self._throttle(chunk.size)
            _check_offsets(chunk, segment)
            choose_rows(self.records, chunk, self.recorder, follows_data=True)
            yield chunk


def _check_offsets(chunk: Rows, segment: SegmentPlan) -> None:
    first, last = chunk.rows[fields.BASE_OFFSET, 0], chunk.rows[fields.LAST_OFFSET, chunk.count - 1]
    if not segment.base_offset <= first <= last < segment.next_base_offset:
        whole = f"{segment.base_offset} to {segment.next_base_offset - 1}"
        raise CorruptLog(
            chunk.path,
            chunk.position + chunk.rows[fields.POSITION, 0],
            f"batches have offsets {first} to {last}, expected offsets within the segment's range, {whole}",
        )


class PartKeys:
    """The first pass over one part. `partitions` is a power of two. Records above `map_end_offset` are ignored."""

    def __init__(
        self,
        files: TaskFiles,
        plan: CleanPlan,
        part: Part,
        *,
        state: TrackerState | None,
        partitions: int,
        map_end_offset: int = NEVER - 1,
        throttle: Throttle = no_throttle,
        limits: TaskLimits = TASK_LIMITS,
    ) -> None:
        self._walk = PartWalk(files, plan, part, state=state, throttle=throttle, limits=limits)
        self.recorder = self._walk.recorder
        self.figures = PartFigures(part.index)
        self._plan = plan
        self._part = part
        self._partitions = partitions
        self._end_offset = map_end_offset + 1
        self._records = self._walk.records
        self._hasher = KeyHasher(plan.hash_key, limits.engine.tuples)
        self._left_out_hasher = KeyHasher(plan.hash_key, limits.engine.tuples)
        self._seen = OffsetMap(plan.hash_key, memory_bytes=limits.table_bytes, least_slots=limits.engine.table_slots)
        self._flush = 0
        self._mapped = _Scatter(partitions)
        self._asked = _Scatter(partitions)
        self._part_notes = BatchNotes(limit=_MAX_NOTES)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the part, each as soon as it is ready, except the one with the statistics."""
        for chunk in self._walk.chunks():
            yield from self._chunk(chunk)
            self.figures.bytes_read += chunk.size
        yield from self._flush_seen()
        yield from self._tagged(self._mapped.rest(), MAPPED)
        yield from self._tagged(self._asked.rest(), ASKED)
        yield self._part.index % self._partitions, (NOTES, self._part.index, 0, self._part_notes.kept())

    def _chunk(self, chunk: Rows) -> Iterator[Row]:
        plan, rows, count = self._plan, np.asarray(chunk.rows), chunk.count
        is_left_out = rows[fields.NOTE, :count] == ABORTED_NOTE
        rows[fields.NOTE, :count][is_left_out] = 0
        if not plan.is_kafka and not self._part.is_dirty:
            gone = rows[fields.LAST_OFFSET, :count] < plan.log_start_offset
            rows[fields.STEP, :count][gone] = SKIP
            is_left_out &= ~gone
        yield from self._hash(chunk, self._hasher, plan.first_dirty_offset if self._part.is_dirty else NEVER)
        self.figures.messages_read += records_in(chunk.rows, count)
        if is_left_out.any():
            rows[fields.STEP, :count] = np.where(is_left_out, MAP, SKIP)
            self._left_out_hasher.restart()
            yield from self._hash(chunk, self._left_out_hasher, NEVER)
        self._part_notes.take(chunk, count, ALWAYS)

    def _hash(self, chunk: Rows, hasher: KeyHasher, least: int) -> Iterator[Row]:
        """Hash the records of rows with STEP MAP. Their tuples are MAPPED from offset `least` on, and ASKED below it."""
        tuples = np.asarray(hasher.tuples, np.uint64)
        for start, end in self._records.ranges(chunk, 0, chunk.count, MAP):
            for count in hasher.hash(self._records, chunk, start, end, end_offset=self._end_offset):
                split = count if least == NEVER else int(np.searchsorted(tuples[:count, 2], np.uint64(max(least, 0))))
                if split:
                    self.figures.asked += split
                    yield from self._tagged(self._asked.add(tuples[:split]), ASKED)
                while split < count:
                    rest = tuples[split:count]
                    split += self._seen.add(rest.data, len(rest))
                    if split < count:
                        yield from self._flush_seen()

    def _flush_seen(self) -> Iterator[Row]:
        """Yield the last offset of each key seen since the last flush."""
        self.figures.mapped += self._seen.size
        for words in self._seen.take():
            yield from self._tagged(self._mapped.add(np.asarray(words, np.uint64)), MAPPED)
        yield from self._tagged(self._mapped.rest(), MAPPED)
        self._flush += 1

    def _tagged(self, blocks: Iterator[tuple[int, bytes]], kind: int) -> Iterator[Row]:
        for partition, block in blocks:
            yield partition, (kind, self._part.index, self._flush, block)


class _Scatter:
    """Collects tuples by partition, and yields full blocks as `(partition, bytes)`."""

    def __init__(self, partitions: int) -> None:
        room = min(MAX_BLOCK_BYTES, BUFFER_BYTES // partitions) // ENTRY_BYTES
        self._buffers = np.empty((partitions, max(16, room), 3), np.uint64)
        self._fill = np.zeros(partitions, np.int64)

    def add(self, tuples: NDArray[np.uint64]) -> Iterator[tuple[int, bytes]]:
        start, end = 0, len(tuples)
        while start < end:
            start = offset_map.scatter(tuples.data, start, end, HASH_SHIFT, self._buffers.data, self._fill.data)
            if start < end:
                yield from self._take(np.flatnonzero(self._fill == self._buffers.shape[1]))

    def rest(self) -> Iterator[tuple[int, bytes]]:
        yield from self._take(np.flatnonzero(self._fill))

    def _take(self, partitions: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
        for partition in partitions.tolist():
            block = self._buffers[partition, : self._fill[partition]].tobytes()
            self._fill[partition] = 0
            yield partition, block


def events_of(
    files: TaskFiles, plan: CleanPlan, part: Part, throttle: Throttle, limits: TaskLimits = TASK_LIMITS
) -> NDArray[np.int64]:
    """Return a part's transaction events, without reading its records."""
    walk = PartWalk(files, plan, part, throttle=throttle, limits=limits)
    for _ in walk.chunks():
        pass
    return walk.recorder.events
