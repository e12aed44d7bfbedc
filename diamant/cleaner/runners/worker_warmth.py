"""Starts the worker process early if traffic in compacted topics, or an erasure, makes it likely that the next plan needs it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES, REQUESTED_INLINE
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

WORTH_BYTES = MAX_INLINE_BYTES // 2
"""A log whose active segment has this size will have plans that are too large for a thread of the broker."""

QUIET_S = 60.0
"""After a pause of this length, traffic counts as new, because an idle worker has been stopped during the pause."""


class WorkerWarmth:
    """Calls `warm_up`, which starts the worker for the next plan."""

    def __init__(self, warm_up: Callable[[], Awaitable[None]]) -> None:
        self._warm_up = warm_up
        self._traffic_s = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def saw_append(self, log: Log) -> None:
        """Record an append to a compacted log. Returns immediately."""
        if log.active.size < WORTH_BYTES:
            return
        now_s = asyncio.get_running_loop().time()
        is_beginning = now_s - self._traffic_s > QUIET_S
        self._traffic_s = now_s
        if is_beginning:
            self._begin()

    def expect_request(self, log: Log) -> None:
        """Start the worker if `log`, for which a round will be requested, is large enough to need it. Returns immediately."""
        if log.size > REQUESTED_INLINE * MAX_INLINE_BYTES:
            self._begin()

    def _begin(self) -> None:
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._make_ready())

    async def _make_ready(self) -> None:
        try:
            await self._warm_up()
        except CleaningAborted:
            pass  # The cleaner is stopping.
        except (StorageError, OSError) as error:
            logger.warning("the cleaner's worker cannot be started early: %s", error)

    async def close(self) -> None:
        """Cancel the start in progress, if any, and do not begin another."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
