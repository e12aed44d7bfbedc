"""The progress of a job. Its tasks report when they end; the task of a single-task job also reports while it runs.

Spark delivers accumulators only when a task ends, and its heartbeats carry no numbers from Python. So the task of a single-task
job writes its byte count to a file in the job's directory, from which the driver reads it. This is done on local and shared file
systems only, because in an object store each update would be a request. Attempts of the same task share the file.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark import SparkContext

    from diamant.cleaner.rules.result import Throttle
    from diamant.cleaner.spark.environment.locations import Location

PATIENCE_S = 1800.0
"""A job fails if no task ends within this time plus the time that the largest task takes at the slowest expected rate."""
SLOWEST_BYTES_PER_S = 1e6
"""Slowest expected rate of a task, unless its rate limit is lower."""
INTERVAL_S = 0.25
"""Minimum time between two updates by a task."""
_NAME = "progress"
_NUMBER_BYTES = 8


class Done(NamedTuple):
    """Two accumulators, which add up the tasks that have ended."""

    tasks: Any
    bytes: Any
    """Bytes read and written."""

    def add(self, size: int) -> None:
        """Count a task that has read and written `size` bytes."""
        self.tasks.add(1)
        self.bytes.add(size)


class JobProgress:
    """The progress of a job. Another thread may read the numbers while the job runs.

    `place`: the job's directory, if its single task reports progress there; None for jobs of several tasks.
    """

    def __init__(self, context: SparkContext, place: Location | None = None) -> None:
        self.stage = "starting"
        """Name of the current stage."""
        self.patience_s = PATIENCE_S
        """A job in which no task ends within this time is considered hung."""
        self.done = Done(context.accumulator(0), context.accumulator(0))
        """Updated by tasks."""
        self._place = place
        self._told = 0

    def begin(self, stage: str, task_bytes: int, bytes_per_second: float = math.inf) -> None:
        """Begin a stage. Its largest task reads `task_bytes` bytes, and writes at most as many."""
        self.stage = stage
        self.patience_s = PATIENCE_S + 2 * task_bytes / min(SLOWEST_BYTES_PER_S, bytes_per_second)

    @property
    def bytes(self) -> int:
        """Bytes read and written by the tasks that have ended, or so far by the only task. Never decreases."""
        if self._place is not None and not self.tasks:
            self._told = max(self._told, bytes_told(self._place))
        ended: int = self.done.bytes.value
        return max(self._told, ended)

    @property
    def tasks(self) -> int:
        """Number of tasks that have ended."""
        count: int = self.done.tasks.value
        return count


class CountingThrottle:
    """A wrapper around a task's throttle that counts the bytes read and written. A context manager.

    Writes the count to a file in `place`, the job's directory. Failing to write the file is not an error.
    """

    def __init__(self, place: Location, throttle: Throttle, *, interval_s: float = INTERVAL_S) -> None:
        self.bytes = 0
        self._throttle = throttle
        self._interval_s = interval_s
        self._next_s = time.monotonic()
        self._file = -1
        if place.is_local:
            with suppress(OSError):
                self._file = os.open(place.child(_NAME).path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> CountingThrottle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __call__(self, count: int) -> None:
        """Throttle and count `count` bytes."""
        self._throttle(count)
        self.bytes += count
        if self._file >= 0 and time.monotonic() >= self._next_s:
            with suppress(OSError):
                os.pwrite(self._file, self.bytes.to_bytes(_NUMBER_BYTES, "little"), 0)
            self._next_s = time.monotonic() + self._interval_s


def bytes_told(place: Location) -> int:
    """Return the number of bytes that the task of a single-task job has read and written so far; 0 if it is unknown."""
    if not place.is_local:
        return 0
    try:
        with open(place.child(_NAME).path, "rb") as file:
            return int.from_bytes(file.read(_NUMBER_BYTES), "little")
    except OSError:
        return 0
