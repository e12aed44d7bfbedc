"""Counts a log's records by kind from batch headers, and determines when its tombstones may be removed.

1 GiB takes less than a second of processor time, unless many of its batches are compressed and have tombstones.

Only batches with a delete horizon are decoded. Below the checkpoint, these contain all tombstones, because the first round that
keeps a tombstone stamps its batch with the horizon. Closed segments do not change, so their counts are kept until the segments
are removed: some 100 bytes each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants import fields
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import CorruptBatch
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env, File
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment, scan_headers

if TYPE_CHECKING:
    from diamant.cleaner.on_demand.null_values import NullValueCounter
    from diamant.cleaner.segments.row_reader import ChunkReader

MAX_COUNT_S = 1.0
"""Processor time, in seconds, after which a count ends at the next segment."""


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The counts of one segment, or the sums for several segments."""

    values: int = 0
    """Number of data records, except tombstones with a horizon."""
    tombstones: int = 0
    """Number of tombstones in batches with a delete horizon."""
    markers: int = 0
    """Number of transaction markers, which do not count as records."""
    first_horizon_ms: int | None = None
    """The earliest horizon of a batch with tombstones; None if there is no such batch."""
    last_horizon_ms: int | None = None

    @property
    def records(self) -> int:
        """Number of data records, including tombstones."""
        return self.values + self.tombstones

    def __add__(self, other: SegmentCounts) -> SegmentCounts:
        horizons = [one for one in (self.first_horizon_ms, other.first_horizon_ms) if one is not None]
        lasts = [one for one in (self.last_horizon_ms, other.last_horizon_ms) if one is not None]
        return SegmentCounts(
            self.values + other.values,
            self.tombstones + other.tombstones,
            self.markers + other.markers,
            min(horizons, default=None),
            max(lasts, default=None),
        )


class SegmentCounter:
    """Counts the records of segments. Not thread-safe. Memory: that of `row_reader` and `null_values`."""

    def __init__(self, *, is_compiled: bool = ARE_COMPILED) -> None:
        self._values = self._tombstones = self._markers = 0
        self._horizons: list[int] = []
        self._is_compiled = is_compiled

    def count(self, env: Env, path: str, size: int, log_start_offset: int = 0) -> SegmentCounts:
        """Count the records in the first `size` bytes of a `.log` file, without batches below `log_start_offset`.

        Raises CorruptLog, and OSError if the file is gone.
        """
        self._values = self._tombstones = self._markers = 0
        self._horizons.clear()
        file = env.open(path, read_only=True)
        try:
            if self._is_compiled:
                self._add_by_rows(file, size, log_start_offset)
            else:
                self._add_by_headers(file, 0, size, log_start_offset)
        finally:
            file.close()
        first, last = min(self._horizons, default=None), max(self._horizons, default=None)
        return SegmentCounts(self._values, self._tombstones, self._markers, first, last)

    @cached_property
    def _reader(self) -> ChunkReader:
        from diamant.cleaner.segments.row_reader import ChunkReader

        return ChunkReader()

    @cached_property
    def _nulls(self) -> NullValueCounter:
        from diamant.cleaner.on_demand.null_values import NullValueCounter

        return NullValueCounter()

    def _add_by_rows(self, file: File, size: int, log_start_offset: int) -> None:
        for chunk in self._reader.chunks(file, 0, size):
            rows = chunk.rows
            if chunk.together & fields.LEGACY or rows[fields.BASE_OFFSET, 0] < log_start_offset:
                self._add_by_headers(file, chunk.position, chunk.position + chunk.size, log_start_offset)
                continue
            self._values += sum(chunk.column(fields.RECORD_COUNT))
            for row in chunk.with_attributes(fields.CONTROL | fields.DELETE_HORIZON):
                count = rows[fields.RECORD_COUNT, row]
                if rows[fields.ATTRIBUTES, row] & fields.CONTROL:
                    self._values -= count
                    self._markers += count
                elif count:
                    try:
                        nulls = self._nulls.count(chunk, row)
                    except CorruptBatch as error:
                        raise CorruptLog(
                            file.path, chunk.position + rows[fields.POSITION, row], error.reason
                        ) from error
                    self._values -= nulls
                    self._add_tombstones(nulls, rows[fields.BASE_TIMESTAMP, row])

    def _add_by_headers(self, file: File, position: int, end: int, log_start_offset: int) -> None:
        for at, header in scan_headers(file, position, end):
            if header.last_offset < log_start_offset:
                continue
            if header.magic < 2:
                self._values += header.last_offset_delta + 1
            elif header.is_control:
                self._markers += header.record_count
            elif header.has_delete_horizon and header.record_count:
                data = file.pread(header.size, at)
                if not crc_is_valid(data, 0, header.size):
                    raise CorruptLog(file.path, at, "the batch's CRC is wrong")
                try:
                    nulls = sum(record.value is None for record in iter_records(data))
                except CorruptBatch as error:
                    raise CorruptLog(file.path, at, error.reason) from error
                self._values += header.record_count - nulls
                self._add_tombstones(nulls, header.base_timestamp)
            else:
                self._values += header.record_count

    def _add_tombstones(self, count: int, horizon_ms: int) -> None:
        if count:
            self._tombstones += count
            self._horizons.append(horizon_ms)


class _Known(NamedTuple):
    """A segment's counts. They are outdated once the active segment has grown, or the log start has moved into the segment."""

    segment: Segment
    size: int
    start_offset: int
    counts: SegmentCounts


class LogCounts:
    """The counts of one log's segments. Only for the thread that owns the log; files are read in `blocking`."""

    def __init__(self, log: Log, blocking: Executor) -> None:
        self.log = log
        self._blocking = blocking
        self._known: dict[int, _Known] = {}
        """The counts that were made, by the segment's base offset."""

    def unknown_bytes(self, segments: Sequence[Segment]) -> int:
        """Return how many bytes must be read to count these segments."""
        return sum(segment.size for segment in segments if self._of(segment) is None)

    def known(self, segments: Sequence[Segment]) -> SegmentCounts | None:
        """Return the counts of these segments without reading anything; None unless all were counted before."""
        total = SegmentCounts()
        for segment in segments:
            found = self._of(segment)
            if found is None:
                return None
            total += found
        return total

    async def count(self, segments: Sequence[Segment], *, max_bytes: int) -> SegmentCounts | None:
        """Return the counts of these segments, which may include the active one.

        Returns None if more than `max_bytes` would have to be read, if a file is unreadable or being replaced, or if counting
        takes longer than `MAX_COUNT_S`. In the last case, some segments were counted, and another call continues with the rest.
        """
        if self.unknown_bytes(segments) > max_bytes:
            return None
        start = self.log.log_start_offset
        unknown = [segment for segment in segments if self._of(segment) is None]
        work = [(segment.path, segment.size) for segment in unknown]
        if work:
            found = await asyncio.get_running_loop().run_in_executor(
                self._blocking, _count_all, self.log.env, work, start
            )
            if found is None:
                return None
            present = {segment.base_offset: segment for segment in self.log.segments}
            self._known = {base: known for base, known in self._known.items() if present.get(base) is known.segment}
            for segment, (_, size), one in zip(unknown, work, found, strict=False):
                if present.get(segment.base_offset) is not segment:
                    return None
                self._known[segment.base_offset] = _Known(segment, size, max(segment.base_offset, start), one)
        return self.known(segments)

    def _of(self, segment: Segment) -> SegmentCounts | None:
        known = self._known.get(segment.base_offset)
        now = segment, segment.size, max(segment.base_offset, self.log.log_start_offset)
        return known.counts if known is not None and known[:3] == now else None


class CountedLogs:
    """The counts of all logs, shared by all callers. Must be used on the event loop; files are read in `blocking`."""

    def __init__(self, blocking: Executor) -> None:
        self._blocking = blocking
        self.by_log: dict[TopicPartition, LogCounts] = {}
        self._next_tidying = 16
        """When there are more logs than this, the counts of deleted logs are dropped."""

    def of(self, log: Log) -> LogCounts:
        """Return the counts of a log."""
        found = self.by_log.get((log.topic, log.partition))
        if found is None or found.log is not log:
            found = self.by_log[log.topic, log.partition] = LogCounts(log, self._blocking)
            if len(self.by_log) > self._next_tidying:
                self.by_log = {name: one for name, one in self.by_log.items() if not one.log.is_deleted}
                self._next_tidying = 2 * len(self.by_log)
        return found


def _count_all(env: Env, work: Sequence[tuple[str, int]], log_start_offset: int) -> list[SegmentCounts] | None:
    """Count segments, at least one, until `MAX_COUNT_S` has passed; return None if a segment cannot be read."""
    counter = SegmentCounter()
    counted: list[SegmentCounts] = []
    end_s = time.thread_time() + MAX_COUNT_S
    try:
        for path, size in work:
            if counted and time.thread_time() > end_s:
                break
            counted.append(counter.count(env, path, size, log_start_offset))
    except (StorageError, OSError):
        return None
    return counted
