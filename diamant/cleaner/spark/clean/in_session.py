"""Plans carried out one after the other in a Spark session of this process: for whole directories, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput, never_done
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.contract import remove_cleaned_files
from diamant.cleaner.spark.clean.job import CleanJob, JobProgress
from diamant.cleaner.spark.clean.staged_outputs import check_manifest, take_over
from diamant.cleaner.spark.clean.staging import new_place, remove_leftovers, remove_place, source_for
from diamant.cleaner.spark.environment.errors import SparkError
from diamant.cleaner.spark.session.session import reason_of
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError


def session_engine(
    context: Any, staging: str = "", on_progress: Callable[[JobProgress], object] = lambda _: None
) -> Callable[[Env, CleanPlan, OnOutput], CleanResult]:
    """Return an engine (`cleaner.offline`) that works in the session of `context`, a SparkContext.

    `on_progress` is given what tells of a job's progress as the job begins. Raises as engines do, and SparkError.
    """

    def engine(env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        place = new_place(env, plan, staging)
        throttle = Throttle(plan.io_max_bytes_per_second)
        is_done = False
        try:
            remove_leftovers(env, plan, place)
            source = source_for(env, plan, place, never_done, throttle)
            job = CleanJob(context, plan, source=source, target=place, env=env)
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
