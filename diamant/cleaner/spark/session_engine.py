"""Plans carried out one after the other in a Spark session of this process: for whole directories, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diamant.cleaner.plan import CleanPlan
from diamant.cleaner.result import CleanResult, OnOutput, never_done
from diamant.cleaner.spark.clean_job import CleanJob, Progress
from diamant.cleaner.spark.errors import SparkError
from diamant.cleaner.spark.session import first_line
from diamant.cleaner.spark.staged_outputs import take_over
from diamant.cleaner.spark.staging import new_place, remove_leftovers, remove_place, source_for
from diamant.storage.env import Env
from diamant.storage.errors import StorageError


def session_engine(
    context: Any, staging: str = "", on_progress: Callable[[Progress], object] = lambda _: None
) -> Callable[[Env, CleanPlan, OnOutput], CleanResult]:
    """Return an engine (`cleaner.offline`) that works in the session of `context`, a SparkContext.

    `on_progress` is given what tells of a job's progress as the job begins. Raises as engines do, and SparkError.
    """

    def engine(env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        place = new_place(plan, staging)
        try:
            remove_leftovers(plan, place)
            source = source_for(env, plan, place, never_done)
            job = CleanJob(context, plan, source=source, target=place, env=env)
            on_progress(job.progress)
            manifest = job.run()
            for staged in manifest.outputs:
                on_output(take_over(env, plan, staged, place, never_done))
            return manifest.result()
        except (StorageError, OSError):
            raise
        except Exception as error:
            raise SparkError(f"{plan.topic}-{plan.partition}: the job on Spark failed: {first_line(error)}") from error
        finally:
            remove_place(place)

    return engine
