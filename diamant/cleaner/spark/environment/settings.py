"""The settings for cleaning on Spark, by a broker or a command, and the rule for its use. Imports nothing of Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.rules.plan import CleanPlan

START_S = 12.0
"""Until a session is there and its Python workers have loaded the engine."""
CORE_BYTES_PER_S = 150e6
"""Rate of one core of executors, both passes and the shuffle: a third of the process runner's rate, between what was
measured with large records (two thirds) and with tiny ones of which all stay (a quarter). Figures:
docs/reference/measurements-cleaning.md."""
PROCESS_BYTES_PER_S = 470e6
"""Rate of the process runner."""

EXECUTOR_TIMEOUT_MS = 120_000
"""Time that a job waits for executors: until they have answered first, and whenever all of them are lost."""

_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:\s*,\s*[0-9]+)?\])?$")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`diamant.cleaner.spark.*`."""

    master: str = "local[*]"
    staging: str = ""
    """URI of the staging place; empty: beside the segments that are cleaned."""
    min_bytes: int = 64 * 1024**3
    """Plans below this are never sent to Spark on their own account; -1: none is."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Passed on to Spark. May hold secrets."""
    executor_timeout_ms: int = EXECUTOR_TIMEOUT_MS
    driver_max_idle_ms: int = 0
    """Time for which a driver is kept after its job; 0: it is not."""

    @property
    def is_local(self) -> bool:
        """True if the driver does all the work itself, on this machine."""
        return is_local(self.master)


def is_local(master: str) -> bool:
    """Tell whether a session on `master` has no executors but its driver."""
    return _LOCAL.match(master) is not None


def cores(settings: SparkSettings) -> int | None:
    """Return on how many cores tasks will run; None if that is up to a cluster."""
    match = _LOCAL.match(settings.master)
    if match is not None:
        if match[1] is None:
            return 1
        return os.cpu_count() or 1 if match[1] == "*" else max(1, int(match[1]))
    text = settings.conf.get("spark.cores.max", "")
    return int(text) if text.isdigit() and int(text) else None


def is_worth_it(plan: CleanPlan, settings: SparkSettings) -> bool:
    """Tell whether a plan is for Spark: large enough, and done sooner there than by a worker process.

    A cluster that does not say how many cores it will give is taken to be quicker: that is what it was named for. Segments that
    the round leaves alone do not count: no engine reads them.
    """
    left_alone = plan.untouched | plan.quarantined
    size = sum(segment.size for segment in plan.segments if segment.base_offset not in left_alone)
    if settings.min_bytes < 0 or size < settings.min_bytes:
        return False
    count = cores(settings)
    return count is None or START_S + size / (CORE_BYTES_PER_S * count) < size / PROCESS_BYTES_PER_S
