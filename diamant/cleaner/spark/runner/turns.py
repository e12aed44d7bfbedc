"""Turns among a broker's Spark runners: who may have a driver at a time, drivers kept for the next job, pauses after failures.

A broker has a runner for each of `log.cleaner.threads`. With `local[*]` a driver takes the whole machine, so there is one at a
time; on a cluster there are as many as there are runners.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diamant.cleaner.rules.result import CheckDone
from diamant.cleaner.spark.environment.settings import SparkSettings
from diamant.cleaner.spark.runner.driver_process import DriverProcess

REST_FIRST_S = 60.0
"""Spark is left alone for so long after a job that failed; twice as long after each further one in a row."""
REST_MAX_S = 3600.0
POLL_S = 0.1
"""Interval between calls of `check_done`."""


class SparkTurns:
    """Loop thread only."""

    def __init__(self, settings: SparkSettings) -> None:
        self.last_failure: str | None = None
        """Why the last job failed that did not succeed."""
        self._driver = asyncio.Lock() if settings.is_local else None
        self._failures = 0
        self._rests_until_s = 0.0
        self._max_idle_s = settings.driver_max_idle_ms / 1000
        self._idle: dict[DriverProcess, asyncio.TimerHandle] = {}
        """Drivers without a job, one for each runner at most, with the end of each."""
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_free(self) -> bool:
        """True if a driver could be started at once."""
        return self._driver is None or not self._driver.locked()

    @property
    def rests_for_s(self) -> float:
        """Time for which Spark is left alone from now on."""
        return max(0.0, self._rests_until_s - time.monotonic())

    @asynccontextmanager
    async def driver(self, check_done: CheckDone) -> AsyncIterator[None]:
        """Wait until a driver may be started, and then keep others from it. What `check_done` raises ends the wait."""
        lock = self._driver
        if lock is None:
            yield
            return
        acquired = asyncio.get_running_loop().create_task(lock.acquire())
        try:
            while True:
                check_done()
                done, _ = await asyncio.wait({acquired}, timeout=POLL_S)
                if done:
                    break
            yield
        finally:
            if not acquired.cancel() and not acquired.cancelled():
                lock.release()

    async def take(self, settings: SparkSettings) -> DriverProcess | None:
        """Return a driver that was kept and has a session with `settings`. End the others that are of no use."""
        while self._idle:  # others may take one while this one waits
            driver, timer = self._idle.popitem()
            timer.cancel()
            if driver.is_usable and driver.settings == settings:
                return driver
            await driver.end()
        return None

    async def release(self, driver: DriverProcess) -> None:
        """Keep a driver whose job ended well for the next one, for a while, or end it."""
        if not self._max_idle_s or not driver.is_usable:
            await driver.end()
            return
        self._idle[driver] = asyncio.get_running_loop().call_later(self._max_idle_s, self._end_later, driver)

    async def end_idle(self) -> None:
        """End the drivers that are kept."""
        for driver in list(self._idle):
            self._end_later(driver)
        while self._ending:
            await asyncio.wait(self._ending)

    def _end_later(self, driver: DriverProcess) -> None:
        self._idle.pop(driver).cancel()
        task = asyncio.get_running_loop().create_task(driver.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def failed(self, reason: str) -> float:
        """Record a job that failed through no fault of its log; return for how many seconds Spark is left alone."""
        self._failures += 1
        rest_s: float = min(REST_MAX_S, REST_FIRST_S * 2 ** min(self._failures - 1, 10))
        self._rests_until_s = time.monotonic() + rest_s
        self.last_failure = reason
        return rest_s

    def succeeded(self) -> None:
        """Record a job that ended well."""
        self._failures = 0
        self.last_failure = None
