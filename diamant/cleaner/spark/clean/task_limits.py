"""The limits in memory of a job's tasks."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Those of every job; where they are smaller, only tests have made them so."""

    engine: EngineLimits = ENGINE_LIMITS
    table_bytes: int = 16 * 1024 * 1024
    """Keys that a part has seen and not handed on."""
    map_bytes: int = 96 * 1024 * 1024
    """The map of a partition."""
    spool_bytes: int = 64 * 1024 * 1024
    """Tuples of a partition, before they go to a file."""


TASK_LIMITS = TaskLimits()
