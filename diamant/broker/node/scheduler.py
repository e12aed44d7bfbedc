"""One timer for all jobs that follow the clock: retention, checkpoints, removals, expiry.

A job returns its next due time, in milliseconds of the `Env` clock, or None. Jobs run one at a time. Nothing runs while no job
is due. When a user moves the clock (`broker_state.broker_clock` decides at which deadlines it stops), due jobs run immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from diamant.storage.env.clocks import Clock, SettableClock, is_frozen

logger = logging.getLogger(__name__)

MAX_SLEEP_S = 24 * 3600.0
"""The longest sleep before due times are checked again. A due time may be too far in the future for a timer."""

FAILED_JOB_DELAY_S = 1.0
"""The pause after a failed job, since most failed jobs stay due. `poke` ends it early."""


class ScheduledTask(NamedTuple):
    """A job. `due_ms()` returns the time of its next run, or None; `run()` runs the job and must change that time.

    `look_now()` makes a job that runs at intervals due immediately. It is None for a job that is due only when it has work.
    """

    name: str
    due_ms: Callable[[], int | None]
    run: Callable[[], Awaitable[None]]
    look_now: Callable[[], None] | None = None


class Periodic:
    """The due time of a job: first after `initial_delay_ms`, then every `interval_ms`."""

    def __init__(self, clock: Clock, interval_ms: int, initial_delay_ms: int | None = None) -> None:
        self._clock = clock
        self.interval_ms = interval_ms
        self._next_ms = clock.now_ms() + (interval_ms if initial_delay_ms is None else initial_delay_ms)

    def due_ms(self) -> int:
        return self._next_ms

    def done(self) -> None:
        self._next_ms = self._clock.now_ms() + self.interval_ms

    def look_now(self) -> None:
        self._next_ms = min(self._next_ms, self._clock.now_ms())


class Scheduler:
    """Runs jobs when they are due. Belongs to the loop thread. Call `poke` after anything that brings a due time forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.jobs: list[ScheduledTask] = []
        self._wake = asyncio.Event()
        self._settling: list[asyncio.Future[list[str]]] = []
        self._told: dict[str, str] = {}
        """The logged error of each job whose last run failed."""
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, job: ScheduledTask) -> None:
        """Add a job. Callable from any thread: some components are created in one, because of their imports."""
        self.jobs.append(job)
        self._poke_from_thread()

    def every(
        self, name: str, interval_ms: int, run: Callable[[], Awaitable[None]], initial_delay_ms: int | None = None
    ) -> None:
        """Add a job that runs every `interval_ms`."""
        period = Periodic(self._clock, interval_ms, initial_delay_ms)

        async def run_and_count() -> None:
            period.done()
            await run()

        self.add(ScheduledTask(name, period.due_ms, run_and_count, period.look_now))

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if isinstance(self._clock, SettableClock):
            self._clock.on_change.append(self._poke_from_thread)
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Let the job in progress finish, and start no further job."""
        if isinstance(self._clock, SettableClock) and self._poke_from_thread in self._clock.on_change:
            self._clock.on_change.remove(self._poke_from_thread)
        task, self._task = self._task, None
        if task is not None:
            self._wake.set()
            await task
        for future in self._settling:
            future.cancel()

    async def settled(self) -> list[str]:
        """Run every job regardless of its interval, and wait until no job is due at the clock's current time.

        Returns the names of failed jobs, without waiting for their retries. `stop` cancels the wait.
        """
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        for job in self.jobs:
            if job.look_now is not None:
                job.look_now()
        self._settling.append(future)
        if self._task is None:
            future.cancel()
        self.poke()
        return await future

    @property
    def is_due(self) -> bool:
        """True if a job is due at the clock's current time."""
        now_ms = self._clock.now_ms()
        return any(_is_due(job, now_ms) for job in self.jobs)

    def poke(self) -> None:
        """Make the scheduler check the due times again."""
        self._wake.set()

    def _poke_from_thread(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.poke)

    async def _run(self) -> None:
        while self._task is not None:
            self._wake.clear()
            failed: list[str] = []
            settling, self._settling = self._settling, []
            due = [job for job in self.jobs if _is_due(job, self._clock.now_ms())]
            for job in due:
                try:
                    await job.run()
                except Exception as error:
                    self._log_failure(job.name, error)
                    failed.append(job.name)
                else:
                    self._told.pop(job.name, None)
            if due and not failed:
                self._settling = settling + self._settling  # this run may have made other jobs due
            else:
                _tell(settling, failed)
            if failed:
                await self._sleep(FAILED_JOB_DELAY_S)
            elif due:
                await asyncio.sleep(0)
            else:
                await self._sleep(self._until_next_s())

    def _log_failure(self, name: str, error: Exception) -> None:
        """Log a failure, with its traceback unless it is an OSError. A repeated failure is logged once until the job succeeds."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get(name) != text:
            self._told[name] = text
            logger.error("%s failed: %s", name, error, exc_info=None if isinstance(error, OSError) else error)

    def _until_next_s(self) -> float:
        if is_frozen(self._clock):
            return MAX_SLEEP_S  # moving the clock wakes us; sleeping until a job due in 1 ms would be busy waiting
        now_ms = self._clock.now_ms()
        times = [due_ms - now_ms for job in self.jobs if (due_ms := job.due_ms()) is not None]
        return min(max(min(times, default=1 << 40), 1) / 1000, MAX_SLEEP_S)

    async def _sleep(self, delay_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()


def _tell(settling: list[asyncio.Future[list[str]]], failed: list[str]) -> None:
    for future in settling:
        if not future.done():
            future.set_result(failed)


def _is_due(job: ScheduledTask, now_ms: int) -> bool:
    due_ms = job.due_ms()
    return due_ms is not None and due_ms <= now_ms
