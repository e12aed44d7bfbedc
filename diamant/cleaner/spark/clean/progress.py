"""The progress of a job, reported by its tasks when they end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkContext

PATIENCE_S = 1800.0
"""A job fails if no task ends within this time plus that of the largest task at the slowest rate."""
SLOWEST_BYTES_PER_S = 1e6
"""Slowest expected rate of a task, unless a lower one is set."""


class Done(NamedTuple):
    """Two accumulators for the ended tasks."""

    tasks: Any
    bytes: Any
    """Bytes read and written."""

    def add(self, size: int) -> None:
        """Count a task that has read and written `size` bytes."""
        self.tasks.add(1)
        self.bytes.add(size)


class JobProgress:
    """The progress of a job. Another thread may read the numbers while the job runs."""

    def __init__(self, context: SparkContext) -> None:
        self.step = "starting"
        """The current step, in a word."""
        self.patience_s = PATIENCE_S
        """If no task ends for this time, the job hangs."""
        self.done = Done(context.accumulator(0), context.accumulator(0))
        """Updated by tasks."""

    def begin(self, step: str, task_bytes: int, bytes_per_second: float = math.inf) -> None:
        """Begin a step. Its largest task reads `task_bytes` bytes, and writes at most as many."""
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
