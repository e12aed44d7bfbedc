"""Runs rounds in a Spark session of this process, each as one task or divided among cores; has an engine for offline cleaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput, never_done
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.contract import remove_cleaned_files
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.progress import JobProgress
from diamant.cleaner.spark.clean.staged_outputs import check_manifest, take_over
from diamant.cleaner.spark.clean.staging import new_place, remove_leftovers, remove_place, source_for
from diamant.cleaner.spark.clean.whole_round import WholeRound
from diamant.cleaner.spark.environment.shares import largest_share
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.cleaner.spark.environment.spark_settings import CORE_BYTES_PER_S, PROCESS_BYTES_PER_S
from diamant.cleaner.spark.session.session import reason_of
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from pyspark import SparkContext

    from diamant.cleaner.spark.environment.locations import Location

WHOLE_BYTES = 512 * 1024 * 1024
"""Up to this size, a single task takes about as long as the three steps of a divided round, however many cores there are."""


def whole_bytes(sizes: Sequence[int], cores: int) -> int:
    """Return the size up to which rounds need not be divided, for partitions of `sizes` bytes."""
    if cores * CORE_BYTES_PER_S < PROCESS_BYTES_PER_S:
        return max(sizes, default=0)
    return max(WHOLE_BYTES, largest_share(sizes, cores))


def size_of(plan: CleanPlan) -> int:
    """Return the total size of a plan's segments, in bytes."""
    return sum(segment.size for segment in plan.segments)


def new_round(
    context: SparkContext,
    plan: CleanPlan,
    *,
    source: Location,
    target: Location,
    whole_bytes: int,
    env: Env | None = None,
    at_once: int = 1,
) -> CleanJob | WholeRound:
    """Return the round of a plan: a `WholeRound` if the segments have at most `whole_bytes` in total, otherwise a `CleanJob`.

    `at_once`: number of concurrent rounds, which share the rate limit.
    """
    if size_of(plan) > whole_bytes:
        return CleanJob(context, plan, source=source, target=target, env=env)
    return WholeRound(context, plan, source=source, target=target, env=env, at_once=at_once)


def session_engine(
    context: Any,
    staging: str = "",
    on_progress: Callable[[JobProgress], object] = lambda _: None,
    *,
    whole_bytes: int = -1,
    at_once: int = 1,
) -> Callable[[Env, CleanPlan, OnOutput], CleanResult]:
    """Return an engine for `cleaner.offline` that runs rounds in the session of `context`, a SparkContext.

    Rounds of up to `whole_bytes` are not divided. `at_once` is the number of threads that use the engine. `on_progress` is called
    with the progress object of each job before it runs. The engine raises the same errors as other engines, and SparkError.
    """

    def engine(env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        place = new_place(env, plan, staging)
        throttle = Throttle(plan.io_max_bytes_per_second)
        is_done = False
        try:
            remove_leftovers(env, plan, place)
            source = source_for(env, plan, place, never_done, throttle)
            job = new_round(
                context, plan, source=source, target=place, whole_bytes=whole_bytes, env=env, at_once=at_once
            )
            on_progress(job.progress)
            manifest = job.run()
            check_manifest(plan, manifest)
            for staged in manifest.outputs:
                on_output(take_over(env, plan, staged, place, never_done, throttle))
            is_done = True
            return manifest.result()
        except (StorageError, OSError):
            raise
        except Exception as error:
            reason = reason_of(context, error)
            raise SparkError(f"{plan.topic}-{plan.partition}: the job on Spark failed: {reason}") from error
        finally:
            remove_place(env, plan, place)
            if not is_done:
                remove_cleaned_files(env, plan)

    return engine
