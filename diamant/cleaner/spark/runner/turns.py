"""Coordinates a broker's Spark runners: they take turns running drivers, keep drivers for the next job, and pause after failures.

A broker has a runner for each of `log.cleaner.threads`. With `local[*]` only one driver runs at a time, because a plan that suits
Spark there is divided among all cores (`in_session`), and two plans would only share them. While a driver runs, other plans go to
the local runner, unless Spark was requested. On a cluster each runner may have a driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diamant.cleaner.rules.result import CheckDone
from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner.driver_process import DriverProcess

REST_FIRST_S = 60.0
"""Pause after a failed job; it doubles with each further consecutive failure."""
REST_MAX_S = 3600.0
POLL_S = 0.1
"""Interval between calls of `check_done`."""


class SparkTurns:
    """The state that a broker's Spark runners share. For the loop thread only."""

    def __init__(self, settings: SparkSettings) -> None:
        self.last_failure: str | None = None
        """Reason of the last failure; None after a success."""
        self._driver = asyncio.Lock() if settings.is_local else None
        self._failures = 0
        self._rests_until_s = 0.0
        self._max_idle_s = settings.driver_max_idle_ms / 1000
        self._idle: dict[DriverProcess, asyncio.TimerHandle] = {}
        """Idle drivers, at most one per runner, with the timers that end them."""
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_free(self) -> bool:
        """True if a driver could be started now."""
        return self._driver is None or not self._driver.locked()

    @property
    def rests_for_s(self) -> float:
        """Remaining time of the pause after failed jobs."""
        return max(0.0, self._rests_until_s - time.monotonic())

    @asynccontextmanager
    async def driver(self, check_done: CheckDone) -> AsyncIterator[None]:
        """Wait for a turn to run a driver, and hold it inside the block. An error of `check_done` ends the wait."""
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
        """Return a kept driver whose session has `settings`, or None. End those that cannot be used."""
        while self._idle:  # other runners may take one during the wait
            driver, timer = self._idle.popitem()
            timer.cancel()
            if driver.is_usable and driver.settings == settings:
                return driver
            await driver.end()
        return None

    async def release(self, driver: DriverProcess) -> None:
        """Keep a driver for the next job if its last job succeeded and drivers are allowed to be idle; otherwise end it."""
        if not self._max_idle_s or not driver.is_usable:
            await driver.end()
            return
        self._idle[driver] = asyncio.get_running_loop().call_later(self._max_idle_s, self._end_later, driver)

    async def end_idle(self) -> None:
        """End the kept drivers."""
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
        """Record a job that failed through no fault of its log; return the pause in seconds."""
        self._failures += 1
        rest_s: float = min(REST_MAX_S, REST_FIRST_S * 2 ** min(self._failures - 1, 10))
        self._rests_until_s = time.monotonic() + rest_s
        self.last_failure = reason
        return rest_s

    def succeeded(self) -> None:
        """Record a successful job."""
        self._failures = 0
        self.last_failure = None
