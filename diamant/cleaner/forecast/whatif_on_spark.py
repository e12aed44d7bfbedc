"""Forecasts (`whatif`) for all partitions of a log directory, one Spark task per partition, largest first.

    for outcome in run_trials(session, trials, now_ms=..., until_ms=None, key_bytes=...): ...

A task opens the segments in place: the directory must have the same path and contents on the driver and on every executor, and
tasks refuse files whose size differs from the driver's list. Tasks write to Spark's own directory for temporary files, which
Spark removes even if a worker is killed.

Memory: a task needs as much as `whatif`, and an executor runs one task per core. The driver holds all forecasts, each with up to
`partition_forecast.MAX_STEPS` events; Spark ends the job if they exceed spark.driver.maxResultSize (1 GiB).
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from diamant.cleaner.forecast.forecast import Forecast, Scenario
from diamant.cleaner.segments.tolerant_reader import PartitionFiles, Problem
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.cleaner.spark.environment.spark_settings import LOCAL_DIRS
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Trial:
    """A partition, and the scenarios for it."""

    partition: PartitionFiles
    checkpoint: int | None
    """Offset up to which the partition is clean; None if unknown."""
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial."""

    partition: PartitionFiles
    forecasts: tuple[Forecast, ...]
    """One forecast for each scenario; empty if the partition cannot be opened or read, for the reasons in `problems`."""
    problems: tuple[Problem, ...]


def run_trials(
    session: SparkSession, trials: Sequence[Trial], *, now_ms: int, until_ms: int | None, key_bytes: int
) -> list[TrialOutcome]:
    """Run the trials and return their outcomes, ordered by topic and partition."""
    context = session.sparkContext
    largest_first = sorted(trials, key=lambda trial: -trial.partition.size)
    task = partial(outcome, driver=Versions.here(), now_ms=now_ms, until_ms=until_ms, key_bytes=key_bytes)
    outcomes: list[TrialOutcome] = context.parallelize(largest_first, max(1, len(trials))).map(task).collect()
    return sorted(outcomes, key=lambda one: (one.partition.topic, one.partition.partition))


def outcome(trial: Trial, *, driver: Versions, now_ms: int, until_ms: int | None, key_bytes: int) -> TrialOutcome:
    """Run a trial as a task. Raises SparkError if the code or files on this machine differ from the driver's."""
    check_versions(driver)
    from diamant.cleaner.forecast.overlay_states import OverlayStates
    from diamant.cleaner.forecast.partition_forecast import forecast

    env = RealEnv()
    partition = trial.partition
    _demand_same_files(env, partition)
    problems: list[Problem] = []
    forecasts: tuple[Forecast, ...] = ()
    with tempfile.TemporaryDirectory(prefix="diamant-whatif-", dir=os.environ[LOCAL_DIRS].partition(",")[0]) as scratch:
        try:
            states = OverlayStates(
                env,
                partition,
                trial.checkpoint,
                now_ms,
                RealEnv(),
                scratch,
                max_key_bytes=key_bytes,
                report=problems.append,
            )
            forecasts = tuple(forecast(states, scenario, until_ms) for scenario in trial.scenarios)
        except (StorageError, OSError) as error:
            problems.append(Problem.of(partition.directory, error))
    return TrialOutcome(partition, forecasts, tuple(problems))


def _demand_same_files(env: RealEnv, partition: PartitionFiles) -> None:
    """Raise SparkError if this machine does not have the segments that the driver listed."""
    for segment in partition.segments:
        size = env.file_size(segment.path) if env.exists(segment.path) else None
        if size != segment.size:
            got = "is not there" if size is None else f"has {size} bytes"
            raise SparkError(
                f"{segment.path} {got} on {platform.node()}, expected the {segment.size} bytes that the driver sees: "
                "every executor needs the same directory at the same path, and nothing may write to it during the forecast"
            )
