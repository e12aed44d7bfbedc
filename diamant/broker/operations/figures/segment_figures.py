"""The records of a partition by kind and segment, counted from time to time for the page.

The files of one moment are read in a thread, as `explain` reads them, while writing and cleaning continue. Counts are kept until
a segment they are of is replaced; those of segments that grew are told as such.

Bounds: one count at a time, with the memory of `segment_census`; the counts of `MAX_KEPT` partitions, 200 bytes for each segment.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.queries.segment_census import SegmentCensus, SegmentRecords, count_by_segment
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.operations.records.explain import ExplainOperation

MAX_KEPT = 256
UNASKED_BYTES = 64 * 1024 * 1024
"""Larger partitions are counted only on request."""
PAUSE = 100
"""A count is repeated on its own only after this multiple of its duration: at most one percent of a core."""


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """The counts of one moment."""

    log: Log
    log_start_offset: int
    sizes: tuple[tuple[int, int], ...]
    """Base offset and size of each segment."""
    census: SegmentCensus
    counted_ms: int
    """On the broker's clock."""
    counted_s: float
    """On the monotonic clock."""
    took_s: float
    """Of a thread's processor."""

    @property
    def by_base_offset(self) -> dict[int, SegmentRecords]:
        """The counts of each segment."""
        return {one.base_offset: one for one in self.census.segments}

    @property
    def is_current(self) -> bool:
        """True if nothing was written or removed since."""
        return self.log_start_offset == self.log.log_start_offset and self.sizes == sizes_of(self.log)


def sizes_of(log: Log) -> tuple[tuple[int, int], ...]:
    """Return base offset and size of each segment."""
    return tuple((segment.base_offset, segment.size) for segment in log.segments)


class SegmentFigures:
    """The counts of one broker; made on first use. On the loop thread."""

    def __init__(self, explaining: ExplainOperation) -> None:
        self._explaining = explaining
        self._known: OrderedDict[tuple[str, int], CountedPartition] = OrderedDict()
        self._lock = asyncio.Lock()
        self._counting: dict[Log, asyncio.Future[CountedPartition | None]] = {}
        """Counts that `soon` has begun and not seen the end of."""

    def known(self, log: Log) -> CountedPartition | None:
        """Return what was counted last, which may be out of date; None if nothing was."""
        found = self._known.get((log.topic, log.partition))
        return found if found is not None and found.log is log else None

    async def refreshed(self, log: Log) -> CountedPartition | None:
        """Return present counts if they are cheap, else the last ones. VerbError."""
        found = self.known(log)
        if found is None:
            return None if log.size > UNASKED_BYTES else await self.count(log)
        if found.is_current or time.monotonic() < found.counted_s + PAUSE * found.took_s or self._lock.locked():
            return found
        return await self.count(log)

    async def soon(self, log: Log, wait_s: float) -> CountedPartition | None:
        """As `refreshed`, but what is known if that takes longer than `wait_s`: it continues, and others wait for it, too."""
        counting = self._counting.get(log)
        if counting is None:
            counting = self._counting[log] = asyncio.ensure_future(self.refreshed(log))
            counting.add_done_callback(lambda _: self._counting.pop(log, None))
        await asyncio.wait({counting}, timeout=max(0.0, wait_s))
        if not counting.done() or counting.cancelled() or counting.exception() is not None:
            return self.known(log)
        return counting.result()

    async def count(self, log: Log, progress: Progress | None = None) -> CountedPartition:
        """Count now. VerbError."""
        explaining = self._explaining
        async with self._lock:
            progress = progress or Progress()
            progress.begin("counting", log.size, "bytes")
            taken, files = await explaining.open(log)
            with files:
                # After the wait for other counts the log may have been replaced.
                start = taken.state.log_start_offset

                def read() -> tuple[SegmentCensus, float]:
                    started_s = time.thread_time()
                    census = count_by_segment(
                        log.env,
                        files.present(),
                        len(taken.segments),
                        taken.outcomes,
                        start,
                        check_done=explaining.check,
                        advance=progress.advance,
                    )
                    return census, time.thread_time() - started_s

                census, took_s = await explaining.read(read)
            found = CountedPartition(
                log,
                start,
                tuple((one.base_offset, one.size) for one in census.segments),
                census,
                taken.now_ms,
                time.monotonic(),
                took_s,
            )
            self._known[log.topic, log.partition] = found
            self._known.move_to_end((log.topic, log.partition))
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
        return found
