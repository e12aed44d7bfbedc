"""Runs one round of the cleaner as a single Spark task: the compiled engine, which reads and writes files through `TaskFiles`.

A divided round (`job`) reads and hashes the same data, but also sends hashes and offsets through the JVM and merges them. With
small records this takes two to three times the CPU time. So a round is not divided if other partitions keep the cores busy, or
if there are few cores.

Memory of the task: that of the local engine, including a map of `log.cleaner.dedupe.buffer.size`. The map spills to Spark's local
directory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import DirtyStart, dirty_start, map_dirty_range
from diamant.cleaner.engines.offset_map import open_spill_file
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.segments.row_records import RowRecords
from diamant.cleaner.spark.clean.group_rewrite import staged_outputs
from diamant.cleaner.spark.clean.manifest import Manifest, error_of, fields_of, is_final
from diamant.cleaner.spark.clean.progress import CountingThrottle, Done, JobProgress
from diamant.cleaner.spark.clean.task_files import TaskFiles
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.clean.tasks import Job, attempt, job_of
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.shipped_code import Versions
from diamant.cleaner.spark.environment.spark_settings import LOCAL_DIRS
from diamant.json_types import JsonObject
from diamant.storage.env.env import Env, RealEnv

if TYPE_CHECKING:
    from pyspark import SparkContext

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.spark.environment.locations import Location


class WholeRound:
    """One round; the arguments are those of `CleanJob`. `at_once`: number of concurrent rounds, which share the rate limit."""

    def __init__(
        self,
        context: SparkContext,
        plan: CleanPlan,
        *,
        source: Location,
        target: Location,
        env: Env | None = None,
        limits: TaskLimits = TASK_LIMITS,
        new_throttle: Callable[[float], Throttle] = Throttle,
        at_once: int = 1,
    ) -> None:
        self.progress = JobProgress(context, target)
        self._context = context
        self._plan = plan
        target.make_directory()
        # Find the start here in the driver, because executors that read copies of the segments have no indexes.
        self._start = dirty_start(RealEnv() if env is None else env, plan) if plan.has_dirty_range else None
        self._job = Job(
            plan_text=plan.to_json(),
            source=source,
            target=target,
            bytes_per_second=plan.io_max_bytes_per_second / at_once,
            versions=Versions.here(),
            limits=limits,
            new_throttle=new_throttle,
        )

    def run(self) -> Manifest:
        """Run the round. Raises the errors of `CleanJob.run`."""
        return run_whole(self._context, self._plan, self._job, self._start, self.progress)


def run_whole(
    context: SparkContext, plan: CleanPlan, job: Job, start: DirtyStart | None, progress: JobProgress
) -> Manifest:
    """Run a round as one task. Raises the errors of `CleanJob.run`."""
    # A round reads the log twice.
    progress.begin("cleaning", 2 * sum(segment.size for segment in plan.segments), job.bytes_per_second)
    sent = context.broadcast(job)
    [found] = context.parallelize([0], 1).map(whole_round(sent, start, progress.done)).collect()
    if not isinstance(found, Manifest):
        raise error_of(found, f"{plan.topic}-{plan.partition}")
    # The times come from the clock of another machine, so convert them to this one's.
    stats = found.stats
    behind_s = time.monotonic() - stats.end_s
    stats.start_s += behind_s
    stats.map_complete_s += behind_s
    stats.end_s += behind_s
    return found


def whole_round(sent: Any, start: DirtyStart | None, done: Done) -> Callable[[int], Manifest | JsonObject]:
    """Return the task that runs a whole round."""

    def clean(_: int) -> Manifest | JsonObject:
        job = job_of(sent)
        directory = f"{0:08d}-{attempt()}"
        files = TaskFiles(job.plan, job.source, job.target.child(directory))
        with CountingThrottle(job.target, job.new_throttle(job.bytes_per_second)) as progress:
            work = RoundWork(files.env, job.plan, throttle=progress, limits=job.limits.engine)
            try:
                manifest = _clean(work, files, directory, start)
            except Exception as error:
                if not is_final(error):
                    raise
                return fields_of(error)
        done.add(progress.bytes)
        freeze_loaded()
        return manifest

    return clean


def _clean(work: RoundWork, files: TaskFiles, directory: str, start: DirtyStart | None) -> Manifest:
    """Run the round; `directory` is the name of its files' directory in the manifest."""
    plan, stats, records = work.plan, work.stats, RowRecords(work.limits)
    local_directory = os.environ.get(LOCAL_DIRS, "").partition(",")[0] or None
    stats.start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="diamant-map-", dir=local_directory) as scratch:
        key_map = CompiledMap(work, records, spill=lambda: open_spill_file(RealEnv(), scratch))
        try:
            map_dirty_range(work, key_map, start)
            stats.map_complete_s = time.monotonic()
            keys, end_offset = key_map.size, key_map.end_offset + 1
            rewriter = CompiledRewriter(work, records, MapSurvivors(plan, key_map))
            groups = group_segments(plan, segments_to_clean(plan, end_offset))
            outputs = tuple(
                output for group in groups for output in staged_outputs(work, files, rewriter, group, directory)
            )
        finally:
            key_map.close()
    stats.end_s = time.monotonic()
    return Manifest(end_offset, outputs, stats, keys)
