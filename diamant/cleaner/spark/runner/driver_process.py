"""Controls a driver, which is a process that receives jobs, reports progress, and has scratch directories.

For use on the loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from diamant.cleaner.runners.child_process import ChildProcess
from diamant.cleaner.runners.worker_messages import MAX_LINE_BYTES
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner.driver_scratch import DriverScratch
from diamant.json_types import JsonObject

STOP_TIMEOUT_S = 5.0
"""Maximum time to wait for a driver's exit after its last message."""


class DriverProcess:
    """A driver process, running or ended."""

    def __init__(self, child: ChildProcess, scratch: DriverScratch, settings: SparkSettings) -> None:
        self.settings = settings
        """The settings of its session."""
        self._child = child
        self._scratch = scratch
        self._is_done = True

    @classmethod
    async def start(cls, scratch: DriverScratch, settings: SparkSettings, program: str, niceness: int) -> DriverProcess:
        """Start a driver in the directories of `scratch`. Raises SparkError."""
        try:
            child = await ChildProcess.start(
                program,
                niceness=niceness,
                what="the Spark driver",
                name="driver",
                level=logging.INFO,
                max_line_bytes=MAX_LINE_BYTES,
                environment=scratch.environment,
            )
        except OSError as error:
            raise SparkError(f"the Spark driver cannot be started: {error}") from error
        driver = cls(child, scratch, settings)
        child.send(
            {
                "master": settings.master,
                "conf": scratch.conf,
                "executor_timeout_ms": settings.executor_timeout_ms,
            }
        )
        return driver

    @property
    def pid(self) -> int:
        """Process id, and session id, of the driver."""
        return self._child.pid

    @property
    def is_usable(self) -> bool:
        """True if its job succeeded, and it can run another one."""
        return self._is_done and not self._child.has_ended

    def send_job(self, job: JsonObject) -> None:
        """Send a job."""
        self._is_done = False
        self._child.send(job)

    async def receive(self, timeout_s: float) -> JsonObject | None:
        """Return the next message; None if the driver has ended. Raises TimeoutError if no message arrives in time."""
        message = await self._child.receive(timeout_s)
        self._is_done = message is not None and message["type"] in ("manifest", "error")
        return message

    async def death(self) -> str:
        """Wait until a driver that sends no more messages has exited. Return the reason why it ended."""
        with suppress(TimeoutError):
            await self._child.wait(STOP_TIMEOUT_S)
        await self._kill()
        return self._child.obituary()

    async def end(self) -> None:
        """Stop the driver, then remove its directories. It is killed if a job is in progress, or after `STOP_TIMEOUT_S`."""
        if self._is_done:
            self._child.end_input()
            with suppress(TimeoutError):
                await self._child.wait(STOP_TIMEOUT_S)
        await self._kill()
        with ThreadPoolExecutor(1, "spark-scratch") as thread:
            await asyncio.get_running_loop().run_in_executor(thread, self._scratch.remove)

    async def _kill(self) -> None:
        # The JVM belongs to the driver's process session. It would end by itself, but only a moment later.
        self._child.kill(with_children=True)
        await self._child.wait()
        await self._child.read_rest(STOP_TIMEOUT_S)
