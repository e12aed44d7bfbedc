"""Ends the jobs of a session that has had no executor for too long. Spark itself would wait forever, without a clear error.

Spark replaces killed executors and repeats their tasks. But if no executor is left (workers are gone, or another application
holds their cores), tasks and their callers wait. A thread of the driver checks for this periodically. `local[*]` does not need
it, because there the driver is the executor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_LOOKS_PER_TIMEOUT = 4
"""Minimum number of checks within the timeout."""


class ExecutorWatch:
    """A context manager that watches a session. `clock` returns monotonic seconds."""

    def __init__(self, context: Any, timeout_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.reason: str | None = None
        """The reason why jobs were ended; None if no job was ended."""
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._missing_since_s: float | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executor-watch", daemon=True)

    def __enter__(self) -> ExecutorWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Do not join the thread, because it may wait for a JVM that does not answer.
        self._is_over.set()

    def look(self) -> None:
        """Count the executors, and end the current jobs if there has been no executor for too long."""
        jobs = self._context.statusTracker().getActiveJobsIds()
        # The driver counts as one executor.
        if not jobs or self._context._jsc.sc().getExecutorMemoryStatus().size() > 1:
            self._missing_since_s = None
            return
        now_s = self._clock()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        if now_s - self._missing_since_s >= self._timeout_s:
            self.reason = (
                f"there was no executor for {self._timeout_s:g} s on {self._context.master}: are there workers with free cores "
                "and memory?"
            )
            self._missing_since_s = None
            self._context.cancelAllJobs()

    def _run(self) -> None:
        while not self._is_over.wait(min(_LOOK_EVERY_S, self._timeout_s / _LOOKS_PER_TIMEOUT)):
            try:
                self.look()
            except Exception as error:  # any error of a JVM that is ending
                logger.debug("executors cannot be counted: %s", error)
