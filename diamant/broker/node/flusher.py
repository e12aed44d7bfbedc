"""Flushes of logs outside the loop thread, for `flush.messages`, `flush.ms` and rolled segments.

The loop thread makes a flush plan, another thread runs it, then the loop thread moves the recovery point. Plans run one at a
time, since parallel fsyncs of one disk gain nothing. A failed fsync is final for its log, since the page cache may have dropped
the unwritten data. If a flush fails before its first fsync, or because no file could be opened, the next flush makes up for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, NamedTuple

from diamant.broker.network.api import CloseConnection
from diamant.storage.config_key import LONG_MAX
from diamant.storage.log.flush import FlushPlan
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)


class _Flush(NamedTuple):
    """A flush in progress. `future` is done when the log is on disk up to `end_offset` (exclusive), or the flush has failed."""

    log: Log
    end_offset: int
    future: asyncio.Future[None]


class Flusher:
    """Runs the requested flushes of logs. Bound: one entry for each log, and one more for each whose last flush failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[Log, asyncio.Future[None]] = {}
        self._running: _Flush | None = None
        self._task: asyncio.Task[None] | None = None
        self.owed: set[Log] = set()
        """Logs to which a coordinator has appended, to be flushed before the current request is answered (`flush.messages`)."""
        self._failed: set[Log] = set()
        """Logs whose latest flush has failed."""

    def request(self, log: Log) -> asyncio.Future[None]:
        """Schedule a flush of everything now in `log` and return its future. `has_failed` says how the flush ended.

        The future is shared: do not cancel it.
        """
        future = self._due.get(log)
        if future is None:
            future = self._due[log] = self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return future

    def _covering(self, log: Log) -> asyncio.Future[None]:
        """Return a future for a flush of everything now in `log`: the flush in progress if nothing was appended since it began.

        The future is the caller's own: cancelling it does not affect others.
        """
        running = self._running
        if running is not None and running.log is log and running.end_offset == log.log_end_offset:
            return asyncio.shield(running.future)
        return asyncio.shield(self.request(log))

    def pending(self, log: Log) -> asyncio.Future[None] | None:
        """Return the flush to await before clients may see everything now in `log` (`flush.messages`); None if none is needed.

        When the future is done, the data is on disk or the flush has failed. The future is the caller's own.
        """
        return self._covering(log) if log.is_flush_wanted else None

    def owe(self, log: Log) -> None:
        """Make the answer to the current request wait for a flush of `log`, if `flush.messages` requires one."""
        if log.config.flush_messages != LONG_MAX and log.is_flush_wanted:
            self.owed.add(log)

    def owe_under_way(self) -> None:
        """Call `owe` for all logs that are being flushed, wait for a flush, or could not be flushed.

        For an answer that repeats the outcome of an earlier request: the logs of that request are no longer known.
        """
        self._failed = {log for log in self._failed if not log.is_deleted}
        for log in (*self._due, *self._failed, *(() if self._running is None else (self._running.log,))):
            self.owe(log)

    async def flushed(self, logs: Iterable[Log]) -> None:
        """Wait until everything now in these logs is on disk, or its flush has failed."""
        for future in [self._covering(log) for log in logs]:
            await future

    async def stop(self) -> None:
        """Wait for the requested flushes."""
        await self.settled()

    async def settled(self) -> None:
        """Wait until no requested flush is left."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._due:
                log, future = next(iter(self._due.items()))
                del self._due[log]
                self._running = _Flush(log, log.log_end_offset, future)
                try:
                    await self._flush(log)
                finally:
                    self._running = None
                    future.set_result(None)
        finally:
            self._task = None

    async def _flush(self, log: Log) -> None:
        if log.is_deleted:
            return
        if log.write_failure is not None:
            self._failed.add(log)
            return
        plan = None
        try:
            plan = log.begin_flush()
            if plan is not None:
                await self._loop.run_in_executor(None, plan.run)
                log.complete_flush(plan)
            log.unsynced.failure = None
            self._failed.discard(log)
        except BaseException as error:
            if not log.is_deleted:
                self._failed.add(log)
                _fail(log, plan, error)
            if not isinstance(error, Exception):
                raise


def _fail(log: Log, plan: FlushPlan | None, error: BaseException) -> None:
    """Log a failed flush. Refuse appends from now on, unless the next flush can make up for this one."""
    failure = _as_os_error(error)
    if isinstance(error, Exception) and (plan is None or plan.is_repeatable(error)):
        if plan is not None:
            plan.give_back()
        if log.unsynced.failure is None:
            logger.error("%s-%d: cannot be synced, the next flush tries again: %s", log.topic, log.partition, failure)
        log.unsynced.failure = failure
        return
    log.fail(failure)
    logger.error("%s-%d: cannot be synced, appends are refused from now on: %s", log.topic, log.partition, failure)


def has_failed(log: Log) -> bool:
    """Return whether a log's latest flush has failed, so that its latest records may not be on disk."""
    return log.write_failure is not None or log.unsynced.failure is not None


def _as_os_error(error: BaseException) -> OSError:
    """Return the error as the OSError that `Log.fail` requires; an error of another type becomes its cause."""
    if isinstance(error, OSError):
        return error
    failure = OSError(f"the flush was not finished: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def after_flush(flusher: Flusher, answer: object) -> Coroutine[Any, Any, Any]:
    """Return a coordinator's answer once what it has appended in this turn of the loop is on disk (`flush.messages`).

    Awaiting it raises CloseConnection if the flush fails, so that the client does not believe its data to be safe.
    """
    logs, flusher.owed = flusher.owed, set()
    return _when_synced(flusher, answer, logs)


async def _when_synced(flusher: Flusher, answer: object, logs: Collection[Log]) -> Any:
    body = await answer if asyncio.iscoroutine(answer) else answer
    await flusher.flushed(logs)
    check_synced(logs)
    return body


def check_synced(logs: Collection[Log]) -> None:
    """Raise CloseConnection if a flush of one of these logs has failed."""
    failed = [f"{log.topic}-{log.partition}" for log in logs if has_failed(log)]
    if failed:
        raise CloseConnection(f"the data to be acknowledged could not be synced to disk: {', '.join(failed)}")
