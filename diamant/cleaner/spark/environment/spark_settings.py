"""The settings for cleaning on Spark, by a broker or a command, and the rule for when to use Spark. Does not import Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.rules.plan import CleanPlan

START_S = 12.0
"""Time to start a session and load the engine in its Python workers."""
CORE_BYTES_PER_S = 150e6
"""Rate of one executor core, over both passes and the shuffle: a third of the process runner's rate. Measurements gave two thirds
with large records, and a quarter with tiny records that are all kept (docs/reference/measurements-spark.md)."""
PROCESS_BYTES_PER_S = 470e6
"""Rate of the process runner."""

EXECUTOR_TIMEOUT_MS = 120_000
"""Time that a job waits for executors, both for their first answer and whenever all of them are lost."""

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Environment variable with Spark's directories for temporary files, separated by commas. It is set in executors, too."""

_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:\s*,\s*[0-9]+)?\])?$")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings `diamant.cleaner.spark.*`."""

    master: str = "local[*]"
    staging: str = ""
    """URI of the staging location; empty to write outputs into the partition's own directory."""
    min_bytes: int = 64 * 1024**3
    """Size below which plans go to Spark only on request; -1: no plan goes to Spark without a request."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own configuration. May contain secrets."""
    executor_timeout_ms: int = EXECUTOR_TIMEOUT_MS
    driver_max_idle_ms: int = 0
    """Time that a driver is kept idle after its job; 0 if it ends with the job."""

    @property
    def is_local(self) -> bool:
        """True if the driver itself does all the work, on this machine."""
        return is_local(self.master)


def is_local(master: str) -> bool:
    """Return whether the driver is the only executor of a session on `master`."""
    return _LOCAL.match(master) is not None


def cores(settings: SparkSettings) -> int | None:
    """Return the number of cores for tasks; None if a cluster decides."""
    match = _LOCAL.match(settings.master)
    if match is not None:
        if match[1] is None:
            return 1
        return os.cpu_count() or 1 if match[1] == "*" else max(1, int(match[1]))
    text = settings.conf.get("spark.cores.max", "")
    return int(text) if text.isdigit() and int(text) else None


def is_worth_it(plan: CleanPlan, settings: SparkSettings) -> bool:
    """Return whether a plan is worth running on Spark: whether it is large enough, and faster there than in a worker process.

    A cluster with an unknown number of cores is assumed to be faster. Segments that the round leaves untouched do not count,
    because no engine reads them.
    """
    left_alone = plan.untouched | plan.quarantined
    size = sum(segment.size for segment in plan.segments if segment.base_offset not in left_alone)
    if settings.min_bytes < 0 or size < settings.min_bytes:
        return False
    count = cores(settings)
    return count is None or START_S + size / (CORE_BYTES_PER_S * count) < size / PROCESS_BYTES_PER_S
