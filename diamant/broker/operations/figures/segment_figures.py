"""Record counts of partitions by kind and segment, made from time to time for the web page.

A thread reads a snapshot of a log's files, as `explain` does, while writing and cleaning continue. Counts are kept, but the
count of a segment is no longer shown once the segment's size has changed.

Bounds: two concurrent counts, of which one may be of a partition above `UNASKED_BYTES`, each with the memory of
`segment_census`. Counts are kept for `MAX_KEPT` partitions, 200 bytes for each segment, and sums for `MAX_SUMS` partitions,
200 bytes each.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.operation_errors import NotPossible
from diamant.broker.operations.calls.blocking import in_thread
from diamant.broker.operations.figures.counted_partition import (
    CountedPartition,
    CountedSums,
    SupersededShare,
    share_of,
)
from diamant.broker.operations.records.log_files import Changed
from diamant.broker.operations.records.record_requests import SegmentsRequest
from diamant.cleaner.queries.segment_census import SegmentCensus, count_by_segment
from diamant.progress import Progress
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.operations.records.explain_operation import ExplainOperation

MAX_KEPT = 256
MAX_SUMS = 20_000
UNASKED_BYTES = 64 * 1024 * 1024
"""Partitions above this size are counted only in the background or on request."""
PAUSE = 100
"""A count is repeated automatically only after this multiple of its CPU time, so that it uses at most 1 % of a core."""


async def segments(
    explaining: ExplainOperation, figures: SegmentFigures, request: SegmentsRequest, progress: Progress
) -> Mapping[str, Any]:
    """Return counts by segment. Outdated counts are renewed for up to `UNASKED_BYTES` of partitions; with `request.all`, for all.

    Raises NotFound, NotPossible.
    """
    left = UNASKED_BYTES
    logs = explaining.logs(request.topic, request.partition)
    counted = []
    for log in logs:
        if request.all or log.size <= left:
            counted.append(log)
            left -= log.size
    progress.begin("counting", sum(log.size for log in counted), "bytes")
    found = [await _partition(figures, log, progress if log in counted else None) for log in logs]
    return {"topic": request.topic, "partitions": found}


async def _partition(figures: SegmentFigures, log: Log, progress: Progress | None) -> Mapping[str, Any]:
    """Return the counts of one partition. Outdated counts are renewed unless `progress` is None."""
    counted = figures.known(log)
    if progress is not None and (counted is None or not counted.is_current):
        before = progress.done
        counted = await figures.count(log, Progress(lambda one: progress.move_to(before + one.done)))
    known = {} if counted is None else counted.by_base_offset
    rows = []
    for segment in log.segments:
        one = known.get(segment.base_offset)
        counts = None if one is None or one.size != segment.size else one.kinds.to_fields()
        rows.append({"base_offset": segment.base_offset, "bytes": segment.size, "counts": counts})
    return {"partition": log.partition, "segments": rows}


class SegmentFigures:
    """The counts of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, explaining: ExplainOperation) -> None:
        self._explaining = explaining
        self.unasked_bytes = UNASKED_BYTES
        self._known: OrderedDict[tuple[str, int], CountedPartition] = OrderedDict()
        self._sums: OrderedDict[tuple[str, int], CountedSums] = OrderedDict()
        self._lock = asyncio.Lock()
        self._large_lock = asyncio.Lock()
        self._counting: dict[Log, asyncio.Future[CountedPartition | None]] = {}
        """The calls of `refreshed` that `soon` has begun and that are still running."""
        self._progress: dict[Log, Progress] = {}

    def known(self, log: Log) -> CountedPartition | None:
        """Return the last counts, which may be outdated; None if there are none."""
        found = self._known.get((log.topic, log.partition))
        return found if found is not None and found.log is log else None

    def sums(self, log: Log) -> CountedSums | None:
        """Return the sums of the last count, which may be outdated; None if there are none."""
        found = self._sums.get((log.topic, log.partition))
        return found if found is not None and found.log is log else None

    def share(self, logs: Iterable[Log]) -> SupersededShare:
        """Return the share of superseded records in partitions, based on their last counts."""
        return share_of(self.sums(log) for log in logs if log.log_start_offset < log.log_end_offset)

    def share_known(self) -> SupersededShare:
        """Return the share of superseded records in all compacted partitions that were counted and still exist."""
        return share_of(one for one in self._sums.values() if one.log.config.is_compacted and not one.log.is_deleted)

    def progress(self, log: Log) -> Progress | None:
        """Return the progress of a partition's count; None if the partition is not being counted."""
        return self._progress.get(log)

    async def refreshed(self, log: Log) -> CountedPartition | None:
        """Return current counts if they are cheap to make, otherwise the last counts. Raises OperationError."""
        found = self.known(log)
        if log.size > self.unasked_bytes:
            return found
        if found is None:
            return await self.count(log)
        if found.is_current or time.monotonic() < found.counted_s + PAUSE * found.took_s or self._lock.locked():
            return found
        return await self.count(log)

    async def soon(self, log: Log, wait_s: float) -> CountedPartition | None:
        """Like `refreshed`, but wait at most `wait_s`: after that, return the last counts. Later calls join the running count."""
        counting = self._counting.get(log)
        if counting is None:
            counting = self._counting[log] = asyncio.ensure_future(self.refreshed(log))
            counting.add_done_callback(lambda _: self._counting.pop(log, None))
        await asyncio.wait({counting}, timeout=max(0.0, wait_s))
        if not counting.done() or counting.cancelled() or counting.exception() is not None:
            return self.known(log)
        return counting.result()

    async def count(
        self, log: Log, progress: Progress | None = None, pace: Callable[[], None] = lambda: None
    ) -> CountedPartition:
        """Count now. The reading thread regularly calls `pace`, which may block. Raises OperationError, Stopped."""
        async with self._large_lock if log.size > self.unasked_bytes else self._lock:
            progress = self._progress[log] = progress or Progress()
            progress.begin("counting", log.size, "bytes")
            try:
                found, end_offset = await self._counted(log, progress, pace)
            finally:
                del self._progress[log]
            place = log.topic, log.partition
            self._known[place] = found
            self._known.move_to_end(place)
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
            self._sums[place] = CountedSums.of(found, end_offset)
            self._sums.move_to_end(place)
            if len(self._sums) > MAX_SUMS:
                self._sums.popitem(last=False)
        return found

    async def _counted(self, log: Log, progress: Progress, pace: Callable[[], None]) -> tuple[CountedPartition, int]:
        explaining = self._explaining
        taken, files = await explaining.open(log)
        # Use the start offset of the snapshot: the log's own may have moved since.
        start = taken.state.log_start_offset
        is_begun = False

        def work(check_caller: Callable[[], object]) -> tuple[SegmentCensus, float]:
            def check() -> None:
                explaining.check()
                check_caller()
                pace()

            nonlocal is_begun
            is_begun = True
            with files:  # closed in the thread, which may outlive its caller
                started_s = time.thread_time()
                census = count_by_segment(
                    log.env,
                    files.present(),
                    len(taken.segments),
                    taken.outcomes,
                    start,
                    check_done=check,
                    advance=progress.advance,
                )
                return census, time.thread_time() - started_s

        try:
            census, took_s = await in_thread(work)
        except Changed:
            raise NotPossible(
                f"the cleaner replaced files of {log.topic}-{log.partition} while it was counted; try again"
            ) from None
        finally:
            if not is_begun:
                files.close()
        found = CountedPartition(
            log,
            start,
            tuple((one.base_offset, one.size) for one in census.segments),
            census,
            time.monotonic(),
            took_s,
        )
        return found, taken.state.log_end_offset
