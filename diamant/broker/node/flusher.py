"""fsync of logs, off the loop: what `flush.messages`, `flush.ms` and rolled segments ask for.

The owner takes a plan of what to sync, a thread runs it, the owner moves the recovery point. One plan at a time: fsyncs
of one disk gain nothing in parallel. A failed fsync is final for its log: the page cache may have dropped what could
not be written. So is a flush that failed for any other reason (no memory, no thread): its data may not be on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, NamedTuple

from diamant.broker.network.api import Answer, CloseConnection
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LONG_MAX

logger = logging.getLogger(__name__)


class _Flush(NamedTuple):
    """A flush in progress: `future` is done when the log is on disk below `end_offset`, or has failed."""

    log: Log
    end_offset: int
    future: asyncio.Future[None]


class Flusher:
    """Logs waiting for their fsync. Bound: one entry per log, and one for each that could not be synced."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[Log, asyncio.Future[None]] = {}
        self._running: _Flush | None = None
        self._task: asyncio.Task[None] | None = None
        self.owed: set[Log] = set()
        """Logs to which a coordinator has appended what must be on disk before the request is answered (`flush.messages`)."""
        self._failed: set[Log] = set()
        """Logs of which something could not be synced."""

    def request(self, log: Log) -> asyncio.Future[None]:
        """Schedule a sync of all that `log` holds now, and return its end. If it fails, appends are refused from then on.

        The future is shared with others, who are not to cancel it.
        """
        future = self._due.get(log)
        if future is None:
            future = self._due[log] = self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return future

    def _covering(self, log: Log) -> asyncio.Future[None]:
        """Return the end of a flush of all that `log` holds now: the one in progress, if nothing came since it began.

        The future is the caller's own: who cancels it takes nothing from others.
        """
        running = self._running
        if running is not None and running.log is log and running.end_offset == log.log_end_offset:
            return asyncio.shield(running.future)
        return asyncio.shield(self.request(log))

    def pending(self, log: Log) -> asyncio.Future[None] | None:
        """Return the flush to await before `flush.messages` lets clients see what `log` holds now; None for none.

        Then it is on disk, or the log has failed. The future is the caller's own.
        """
        return self._covering(log) if log.is_flush_wanted else None

    def owe(self, log: Log) -> None:
        """Make the answer to the present request wait for `log`, if `flush.messages` says so."""
        if log.config.flush_messages != LONG_MAX and log.is_flush_wanted:
            self.owed.add(log)

    def owe_under_way(self) -> None:
        """Make the answer to the present request wait for all flushes that `flush.messages` wants, also failed ones.

        For answers that repeat the outcome of an earlier request: the logs which that one wrote to are not remembered.
        """
        self._failed = {log for log in self._failed if not log.is_deleted}
        for log in (*self._due, *self._failed, *(() if self._running is None else (self._running.log,))):
            self.owe(log)

    async def flushed(self, logs: Iterable[Log]) -> None:
        """Wait until what these logs hold now is on disk, or they have failed."""
        for future in [self._covering(log) for log in logs]:
            await future

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
        try:
            plan = log.begin_flush()
            if plan is not None:
                await self._loop.run_in_executor(None, plan.run)
                log.complete_flush(plan)
        except BaseException as error:
            if not log.is_deleted:
                self._failed.add(log)
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


def after_flush(flusher: Flusher, answer: Answer) -> Coroutine[Any, Any, Any]:
    """The answer of a coordinator, once what it has appended in this turn of the loop is on disk (`flush.messages`).

    Awaiting it raises CloseConnection if the sync fails: the client must not believe that its data is safe.
    """
    logs, flusher.owed = flusher.owed, set()
    return _when_synced(flusher, answer, logs)


async def _when_synced(flusher: Flusher, answer: Answer, logs: Collection[Log]) -> Any:
    body = await answer if asyncio.iscoroutine(answer) else answer
    await flusher.flushed(logs)
    check_synced(logs)
    return body


def check_synced(logs: Collection[Log]) -> None:
    """CloseConnection if a flush of one of these has failed."""
    failed = [f"{log.topic}-{log.partition}" for log in logs if log.write_failure is not None]
    if failed:
        raise CloseConnection(f"what was to be answered could not be synced to disk: {', '.join(failed)}")
