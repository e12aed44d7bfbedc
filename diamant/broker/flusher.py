"""fsync of logs, off the loop: what `flush.messages`, `flush.ms` and rolled segments ask for.

The owner takes a plan of what to sync, a thread runs it, the owner moves the recovery point. One plan at a time:
fsyncs of one disk gain nothing from each other's company. A failed fsync is final for its log: the page cache may
have dropped what could not be written. So is a flush that did not come to its end for any other reason (no memory, no
thread): what it was to sync is not vouched for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from diamant.storage.log import Log
from diamant.storage.log_config import LONG_MAX

logger = logging.getLogger(__name__)


class Flusher:
    """Logs waiting for their fsync. Bound: one entry per log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[Log, asyncio.Future[None]] = {}
        self._running: tuple[Log, asyncio.Future[None]] | None = None
        self._task: asyncio.Task[None] | None = None
        self.owed: set[Log] = set()
        """Logs to which a coordinator has appended what must be on disk before the request is answered (`flush.messages`)."""

    def request(self, log: Log) -> asyncio.Future[None]:
        """Sync what `log` holds now; the future is done once that is on disk or has failed (then appends are
        refused).
        """
        future = self._due.get(log)
        if future is None:
            future = self._due[log] = self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return future

    def is_due(self, log: Log) -> bool:
        """True if a flush of `log` has been asked for and has not begun."""
        return log in self._due

    def pending(self, log: Log) -> asyncio.Future[None] | None:
        """The flush that `flush.messages` wants of what `log` holds now, asked for or under way; None if there is none."""
        if log.config.flush_messages == LONG_MAX:
            return None
        if self._running is not None and self._running[0] is log:
            return self._due.get(log, self._running[1])
        return self._due.get(log)

    def owe(self, log: Log) -> None:
        """Have the answer to the request under way wait for `log`, if `flush.messages` says so."""
        if log.config.flush_messages != LONG_MAX and self.is_due(log):
            self.owed.add(log)

    async def flushed(self, logs: Iterable[Log]) -> None:
        """Wait until what these logs hold now is on disk."""
        for future in [self.request(log) for log in logs]:
            await asyncio.shield(future)

    async def stop(self) -> None:
        """Wait for what has been requested."""
        await self.settled()

    async def settled(self) -> None:
        """Wait until nothing is left that has been requested."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._due:
                log, future = next(iter(self._due.items()))
                del self._due[log]
                self._running = log, future
                try:
                    await self._flush(log)
                finally:
                    self._running = None
                    future.set_result(None)
        finally:
            self._task = None

    async def _flush(self, log: Log) -> None:
        if log.is_deleted or log.write_failure is not None:
            return
        try:
            plan = log.begin_flush()
            if plan is not None:
                await self._loop.run_in_executor(None, plan.run)
                log.complete_flush(plan)
        except BaseException as error:
            if not log.is_deleted:
                log.fail(_as_os_error(error))
                logger.error(
                    "%s-%d: cannot be synced, appends are refused from now on: %s",
                    log.topic,
                    log.partition,
                    log.write_failure,
                )
            if not isinstance(error, Exception):
                raise


def _as_os_error(error: BaseException) -> OSError:
    """Return an error of another kind as the cause of an OSError, which is what a log fails with."""
    if isinstance(error, OSError):
        return error
    failure = OSError(f"the flush was not finished: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
