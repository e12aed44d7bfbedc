"""The tasks: functions that Spark calls in its Python workers. All share a `Job`, which is sent once to each executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.spark.clean.group_rewrite import write_group
from diamant.cleaner.spark.clean.key_tuples import ERROR, FIGURES, PartKeys, Row, events_of
from diamant.cleaner.spark.clean.manifest import GroupResult, fields_of, is_final
from diamant.cleaner.spark.clean.parts import Part
from diamant.cleaner.spark.clean.progress import Done
from diamant.cleaner.spark.clean.survivors import GroupSurvivors, SurvivorRow, survivor_rows
from diamant.cleaner.spark.clean.task_files import TaskFiles
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.clean.transaction_cuts import TrackerState
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.json_types import JsonObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


NO_LIMIT = 2**63 - 2


@dataclass(frozen=True, slots=True)
class Job:
    """The input that every task of a round shares."""

    plan_text: str
    source: Location
    """Directory of the segments."""
    target: Location
    """Directory for outputs, with a subdirectory for each attempt."""
    bytes_per_second: float
    """Rate limit of each task."""
    versions: Versions
    """The driver's software."""
    parts: tuple[Part, ...] = ()
    """This field and the next three are for divided rounds only."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Groups of segments, by index, each rewritten into one output."""
    partitions: int = 0
    """Number of partitions to which keys are distributed by hash."""
    map_end_offset: int = NO_LIMIT
    """Last offset whose record is added to the map."""
    limits: TaskLimits = TASK_LIMITS
    new_throttle: Callable[[float], Throttle] = Throttle

    @property
    def plan(self) -> CleanPlan:
        """The plan, parsed once in each process."""
        return _parsed(self.plan_text)

    @property
    def group_of(self) -> dict[int, int]:
        """Index of each segment's group, by the segment's index."""
        return {place: index for index, group in enumerate(self.groups) for place in group}

    def segments(self, group: int) -> list[SegmentPlan]:
        """Return the segments of a group."""
        segments = self.plan.segments
        return [segments[place] for place in self.groups[group]]


@lru_cache(maxsize=2)
def _parsed(text: str) -> CleanPlan:
    return CleanPlan.from_json(text)


def job_of(sent: Any) -> Job:
    """Return the broadcast job. Raises SparkError if this process's software differs from the driver's."""
    job: Job = sent.value
    check_versions(job.versions)
    return job


def attempt() -> int:
    """Return the number of this attempt, which is unique among the attempts of all tasks in the application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


def read_to_the_end(rows: Iterable[object]) -> None:
    """Read the rest of a task's rows. Otherwise Spark ends the worker, and the next worker must load the engine again."""
    for _ in rows:
        pass


def part_events(sent: Any, done: Done) -> Callable[[Part], tuple[int, NDArray[np.int64] | None, JsonObject | None]]:
    """Return the task that reads a part's transaction events. Its result is `(part index, events, error)`."""

    def work(part: Part) -> tuple[int, NDArray[np.int64] | None, JsonObject | None]:
        job = job_of(sent)
        throttle = job.new_throttle(job.bytes_per_second)
        try:
            events = events_of(TaskFiles(job.plan, job.source), job.plan, part, throttle, job.limits)
        except Exception as error:
            if not is_final(error):
                raise
            return part.index, None, fields_of(error)
        done.add(part.end - part.position)
        return part.index, events, None

    return work


def part_rows(sent: Any, done: Done) -> Callable[[Iterable[tuple[Part, TrackerState | None]]], Iterator[Row]]:
    """Return the task of the first pass."""

    def work(parts: Iterable[tuple[Part, TrackerState | None]]) -> Iterator[Row]:
        job = job_of(sent)
        throttle = job.new_throttle(job.bytes_per_second)
        for part, state in parts:
            keys = PartKeys(
                TaskFiles(job.plan, job.source),
                job.plan,
                part,
                state=state,
                partitions=job.partitions,
                map_end_offset=job.map_end_offset,
                throttle=throttle,
                limits=job.limits,
            )
            try:
                yield from keys.rows()
            except Exception as error:
                if not is_final(error):
                    raise
                yield job.partitions, (ERROR, part.index, 0, fields_of(error))
            else:
                yield job.partitions, (FIGURES, part.index, 0, (keys.figures, keys.recorder.events.tobytes()))
            done.add(part.end - part.position)
        freeze_loaded()

    return work


def reduce_rows(sent: Any, done: Done) -> Callable[[int, Iterable[Any]], Iterator[SurvivorRow]]:
    """Return the task that finds the kept offsets of one hash partition."""

    def work(partition: int, rows: Iterable[Any]) -> Iterator[SurvivorRow]:
        job = job_of(sent)
        if partition < job.partitions:
            yield from survivor_rows(job.plan, job.parts, job.group_of, rows, job.limits)
            done.add(0)
        read_to_the_end(rows)
        freeze_loaded()

    return work


def group_results(
    sent: Any, states: Any, done: Done, *, has_survivors: bool
) -> Callable[[int, Iterable[SurvivorRow]], Iterator[GroupResult]]:
    """Return the task of the second pass. `states` has the tracker's state before each group."""

    def rewrite(group: int, rows: Iterable[SurvivorRow]) -> Iterator[GroupResult]:
        job = job_of(sent)
        directory = f"{group:08d}-{attempt()}"
        survivors = GroupSurvivors(job.parts, rows) if has_survivors else None
        read_to_the_end(rows)
        files = TaskFiles(job.plan, job.source, job.target.child(directory))
        throttle = job.new_throttle(job.bytes_per_second)
        work = RoundWork(files.env, job.plan, throttle=throttle, limits=job.limits.engine)
        keys = 0 if survivors is None else survivors.keys
        try:
            outputs = write_group(
                work,
                files,
                job.segments(group),
                directory,
                state=states.value[group],
                survivors=survivors,
                map_end_offset=job.map_end_offset,
            )
        except Exception as error:
            if not is_final(error):
                raise
            yield GroupResult(group, error=fields_of(error))
        else:
            yield GroupResult(group, outputs, work.stats, keys)
        done.add(work.stats.bytes_read + work.stats.bytes_written)
        freeze_loaded()

    return rewrite
