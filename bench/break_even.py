"""From which size on, and on how many cores, a round is done sooner on Spark than by the process runner.

    process runner    size / P
    Spark             S + size / (c · R)

P is what the process runner gets through, R what one core does on Spark, c the number of cores, S what passes until the session
is there and what each of its jobs costs in any case. They come from straight lines through what was measured at several sizes.
Spark is ahead from S / (1/P - 1/(c · R)) bytes on if c · R > P, else never. It holds for as long as c cores get c times as
much done, that is until the disk, or the network of a cluster, is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

SIZES_GB = (1, 5, 20, 64, 100, 200, 500)
CORES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class BreakEven:
    """P and R in GB/s, S in seconds."""

    process: float
    core: float
    start_s: float

    def size_gb(self, cores: int) -> float:
        """Return the size from which on Spark is ahead; infinite if it never is."""
        gain = 1 / self.process - 1 / (cores * self.core)
        return self.start_s / gain if gain > 0 else math.inf

    def is_spark_ahead(self, size_gb: float, cores: int) -> bool:
        """Tell whether Spark is done first."""
        return self.start_s + size_gb / (cores * self.core) < size_gb / self.process


def straight_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return seconds per GB and seconds whatever the size; of a single point all of it is the former."""
    if len({gb for gb, _ in points}) < 2:
        return sum(seconds for _, seconds in points) / sum(gb for gb, _ in points), 0.0
    import numpy as np

    slope, start = np.polyfit([gb for gb, _ in points], [seconds for _, seconds in points], 1)
    return float(slope), float(start)


def break_even(measured: Iterable[dict[str, Any]], cores: int) -> BreakEven | None:
    """Return what follows from measurements of cleaning, with Spark on `cores` cores (`local[N]`); None if any is missing."""
    rows = list(measured)
    process = [(row["gb"], row["seconds"]) for row in rows if row["engine"] == "process"]
    on_spark = [row for row in rows if row["engine"] == f"local[{cores}]"]
    if not process or not on_spark:
        return None
    per_gb, _ = straight_line(process)
    per_gb_on_spark, fixed_s = straight_line([(row["gb"], row["seconds"]) for row in on_spark])
    session_s = sum(row["start_s"] for row in on_spark) / len(on_spark)
    return BreakEven(1 / per_gb, 1 / (per_gb_on_spark * cores), session_s + max(0.0, fixed_s))


def disagreements(found: BreakEven) -> list[str]:
    """Return for which sizes and cores the runner's own estimate says something else than `found`, a line for each choice."""
    from diamant.cleaner.spark.environment.settings import SparkSettings, is_worth_it

    lines = []
    for cores in CORES:
        settings = SparkSettings(master=f"local[{cores}]", min_bytes=0)
        wrong: dict[bool, list[int]] = {True: [], False: []}
        for gb in SIZES_GB:
            segment = SimpleNamespace(base_offset=0, size=gb * 10**9)
            plan: Any = SimpleNamespace(segments=[segment], untouched=frozenset(), quarantined=frozenset())
            is_ahead = found.is_spark_ahead(gb, cores)
            if is_worth_it(plan, settings) != is_ahead:
                wrong[is_ahead].append(gb)
        for is_ahead, sizes in wrong.items():
            if sizes:
                ahead, chosen = ("Spark", "the process runner") if is_ahead else ("the process runner", "Spark")
                of = ", ".join(map(str, sizes))
                lines.append(
                    f"The runner's own estimate is wrong on {cores} cores for {of} GB: {ahead} is ahead, it takes {chosen}."
                )
    return lines
