"""The progress of a job, as its tasks tell of it when they have ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkContext

PATIENCE_S = 1800.0
"""Time without the end of any task before a job fails, beside the time that the largest one may take at the slowest."""
SLOWEST_BYTES_PER_S = 1e6
"""Slowest expected rate of a task, unless a lower one is set."""


class Done(NamedTuple):
    """Two accumulators: what the tasks have done that came to their end."""

    tasks: Any
    bytes: Any
    """Read and written."""

    def add(self, size: int) -> None:
        """Count a task that has read and written so many bytes."""
        self.tasks.add(1)
        self.bytes.add(size)


class JobProgress:
    """The progress of a job; its numbers are read by another thread while it runs."""

    def __init__(self, context: SparkContext) -> None:
        self.step = "starting"
        """The current step, in a word."""
        self.patience_s = PATIENCE_S
        """If for so long no task comes to its end, something hangs."""
        self.done = Done(context.accumulator(0), context.accumulator(0))
        """For tasks."""

    def begin(self, step: str, task_bytes: int, bytes_per_second: float = math.inf) -> None:
        """Begin with a step, of whose tasks the largest reads so many bytes, and writes as many at most."""
        self.step = step
        self.patience_s = PATIENCE_S + 2 * task_bytes / min(SLOWEST_BYTES_PER_S, bytes_per_second)

    @property
    def bytes(self) -> int:
        """Bytes read and written by tasks that have ended."""
        count: int = self.done.bytes.value
        return count

    @property
    def tasks(self) -> int:
        """Number of tasks that have ended."""
        count: int = self.done.tasks.value
        return count
