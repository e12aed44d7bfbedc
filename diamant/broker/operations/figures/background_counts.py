"""Background counts of the partitions that a page shows, one at a time, while the page is open.

Counting takes 1 % of a core on average: 10 % while a partition is read, then a pause. The smallest partition without a count
comes first, then the partition with the oldest count.

Bounds: one count at a time, of a partition up to `MAX_BYTES`; larger partitions are counted on request only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from diamant.broker.operation_errors import OperationError
from diamant.broker.operations.calls.blocking import Stopped
from diamant.broker.operations.figures.segment_figures import PAUSE, SegmentFigures
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 1024**3
SHARE = 0.1
"""The share of a core that is used while a partition is read."""
SLICE_S = 0.005
"""How long the thread works between rests."""
WANTED_S = 30.0
"""A count is abandoned if no page has called `look` for this long."""
RETRY_S = 60.0
"""The pause after a failure."""


class BackgroundCounts:
    """The background counts of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, figures: SegmentFigures) -> None:
        self._figures = figures
        self._task: asyncio.Task[None] | None = None
        self._from_s = 0.0
        """No count begins before this time."""
        self._wanted_until_s = 0.0
        self._failed: dict[Log, float] = {}
        """The times of recent failures, by log."""

    @property
    def is_counting(self) -> bool:
        """True while a partition is being read."""
        return self._task is not None and not self._task.done()

    def look(self, logs: Iterable[Log]) -> None:
        """Start to count one of the logs that a page shows, if a count is due. Call this repeatedly while the page is open."""
        now_s = time.monotonic()
        self._wanted_until_s = now_s + WANTED_S
        if self.is_counting or now_s < self._from_s:
            return
        chosen = self._most_wanted([*logs], now_s)
        if chosen is not None:
            self._task = asyncio.get_running_loop().create_task(self._count(chosen))

    async def stop(self) -> None:
        """End the count in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _most_wanted(self, logs: list[Log], now_s: float) -> Log | None:
        self._failed = {
            log: at_s for log in logs if (at_s := self._failed.get(log)) is not None and now_s < at_s + RETRY_S
        }
        smallest: Log | None = None
        oldest: tuple[float, Log] | None = None
        for log in logs:
            if log.log_start_offset == log.log_end_offset or log.size > MAX_BYTES or log in self._failed:
                continue
            if log.is_exchanging or log.is_deleted:
                continue
            sums = self._figures.sums(log)
            if sums is None:
                if smallest is None or log.size < smallest.size:
                    smallest = log
            elif sums.is_current or now_s <= sums.counted_s + PAUSE * sums.took_s:
                continue
            elif oldest is None or sums.counted_s < oldest[0]:
                oldest = sums.counted_s, log
        return smallest if smallest is not None or oldest is None else oldest[1]

    async def _count(self, log: Log) -> None:
        began_s = time.monotonic()
        pace = _Pace(self)
        try:
            await self._figures.count(log, pace=pace)
        except Stopped:
            pass
        except (OperationError, StorageError, OSError) as error:
            self._failed[log] = time.monotonic()
            logger.info("%s-%d cannot be counted for the page: %s", log.topic, log.partition, error)
        finally:
            sums = self._figures.sums(log)
            worked_s = pace.worked_s if sums is None else max(pace.worked_s, sums.took_s)
            self._from_s = max(time.monotonic(), began_s + PAUSE * worked_s)

    def check_wanted(self) -> None:
        """Raise Stopped if no page has called `look` for `WANTED_S`. Callable from any thread."""
        if time.monotonic() > self._wanted_until_s:
            raise Stopped("no page shows it")


class _Pace:
    """A brake on the counting thread: it makes the thread rest most of the time."""

    def __init__(self, counts: BackgroundCounts) -> None:
        self._counts = counts
        self._since_s: float | None = None
        self.worked_s = 0.0

    def __call__(self) -> None:
        now_s = time.thread_time()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s > self._since_s + SLICE_S:
            self.worked_s += now_s - self._since_s
            time.sleep((now_s - self._since_s) * (1 / SHARE - 1))
            self._since_s = time.thread_time()
            self._counts.check_wanted()
