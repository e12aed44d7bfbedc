"""A worker process is made ready before there is a plan for it, once compacted topics take traffic that will need one."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

WORTH_BYTES = MAX_INLINE_BYTES // 2
"""A log whose active segment has reached this will have plans that are not for a thread of the broker."""

QUIET_S = 60.0
"""Traffic counts as new after a pause of this length. A worker that is idle for as long is gone."""


class WorkerWarmth:
    """`warm_up` makes the worker ready that the next plan will be for."""

    def __init__(self, warm_up: Callable[[], Awaitable[None]]) -> None:
        self._warm_up = warm_up
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
        try:
            await self._warm_up()
        except CleaningAborted:
            pass  # The cleaner stops.
        except (StorageError, OSError) as error:
            logger.warning("a worker for cleaning cannot be warmed up: %s", error)

    async def close(self) -> None:
        """Cancel it, if it is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
