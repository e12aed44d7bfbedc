"""A worker process is made ready before there is a plan for it, once compacted topics take traffic that will need one."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from diamant.cleaner.kernels import cache
from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES, Runner, WorkerRunner
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

WORTH_BYTES = MAX_INLINE_BYTES // 2
"""A log whose active segment has reached this will have plans that are not for a thread of the broker."""

QUIET_S = 60.0
"""Traffic counts as new after a pause of this length. A worker that is idle for as long is gone."""


class WorkerWarmth:
    """`new` makes a runner; `warm_up` makes the one ready that the next plan will be for, and says what it works with.

    `is_to_be_compiled` tells whether compiling the kernels once spares every worker to do it; in a thread.
    """

    def __init__(
        self,
        new: Callable[[], Runner],
        warm_up: Callable[[], Awaitable[str]],
        is_to_be_compiled: Callable[[], bool] = lambda: cache.cache_directory() is not None and not cache.is_cached(),
    ) -> None:
        self._new = new
        self._warm_up = warm_up
        self._is_to_be_compiled = is_to_be_compiled
        self._traffic_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def saw_append(self, log: Log) -> None:
        """Record an append to a compacted log; returns at once."""
        if log.active.size < WORTH_BYTES:
            return
        now_s = asyncio.get_running_loop().time()
        is_beginning = now_s - self._traffic_s > QUIET_S
        self._traffic_s = now_s
        if is_beginning and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._make_ready())

    async def _make_ready(self) -> None:
        """Warm up a worker. One of its own compiles what is not compiled yet: rounds do not wait for that."""
        try:
            if await asyncio.to_thread(self._is_to_be_compiled):
                compiler = self._new()
                try:
                    if isinstance(compiler, WorkerRunner):
                        await compiler.warm_up()
                finally:
                    await compiler.close()
            logger.info("a worker for cleaning is ready; its engine is %s", await self._warm_up())
        except CleaningAborted:
            pass  # The cleaner stops.
        except (StorageError, OSError) as error:
            logger.warning("a worker for cleaning cannot be warmed up: %s", error)

    async def close(self) -> None:
        """Cancel it, if it is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
