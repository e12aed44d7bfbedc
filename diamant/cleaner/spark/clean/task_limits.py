"""The memory limits of a job's tasks."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Memory limits. All jobs use the defaults; only tests set smaller limits."""

    engine: EngineLimits = ENGINE_LIMITS
    table_bytes: int = 32 * 1024 * 1024
    """Size of the table with the keys that a task has seen in its part since the last flush."""
    map_bytes: int = 96 * 1024 * 1024
    """Size of the map of a partition."""
    spool_bytes: int = 64 * 1024 * 1024
    """Size up to which a partition's tuples are kept in memory, before they are written to a file."""


TASK_LIMITS = TaskLimits()
