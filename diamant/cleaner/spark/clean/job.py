"""Runs one round of the cleaner as Spark jobs: from a plan to files in the staging location, and their manifest.

    walk        each part: its transaction events, from headers only. Runs if the dirty range is empty or has aborted
                transactions
    map         each part: tuples of hash and offset, partitioned by hash                  → shuffle
    reduce      each partition: the kept offsets                                           → shuffle, by group of segments
    rewrite     each group: the outputs, by the compiled engine

Map is a job of its own, because its statistics and transaction events, which have a separate partition, are needed first. Reduce
and rewrite form a second job, which continues from the same shuffle. If a task has several attempts, only the one whose result
Spark accepts counts in the statistics.

In mode kafka, a round ends where Kafka's map would be full. If the statistics of the map step show that the map would fill up, a
single task finds the offset: it reads the dirty range like the local engines, with a map of Kafka's size. Then map runs again.

Memory of the driver: the manifest (about 500 bytes per output), the plan, 24 bytes for each producer in each part, and a few
times that for each aborted transaction (`transaction_cuts`). It does not grow with records, keys or committed transactions.
Memory of tasks: see `key_tuples`, `survivors`, `engines.compiled_rewriter`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from diamant.cleaner.engines.dirty_range import DirtyStart, dirty_start, map_dirty_range
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan, aborted_from
from diamant.cleaner.rules.result import CleanStats
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.segments.strict_reader import RecordsOutOfOrder
from diamant.cleaner.spark.clean.key_tuples import ERROR, PartFigures
from diamant.cleaner.spark.clean.manifest import GroupResult, Manifest, add_stats, error_of
from diamant.cleaner.spark.clean.parts import (
    PART_BYTES,
    Part,
    cut,
    records_per_byte,
    segments_of,
)
from diamant.cleaner.spark.clean.progress import Done, JobProgress
from diamant.cleaner.spark.clean.survivors import partitions_for
from diamant.cleaner.spark.clean.task_files import TaskFiles
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.clean.tasks import NO_LIMIT, Job, group_results, part_events, part_rows, reduce_rows
from diamant.cleaner.spark.clean.transaction_cuts import EVENT_FIELDS, ResumableTracker, TrackerState
from diamant.cleaner.spark.clean.whole_round import run_whole
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.shipped_code import Versions
from diamant.json_types import JsonObject
from diamant.storage.env.env import Env, RealEnv

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark import SparkContext

T = TypeVar("T")

_NO_EVENTS = np.empty((0, EVENT_FIELDS), np.int64)


class CleanJob:
    """One round. Executors read the segments in the directory `source`, and write outputs to `target`, the job's directory.

    Creates `target`. Raises FileNotFoundError if its parent does not exist.
    """

    def __init__(
        self,
        context: SparkContext,
        plan: CleanPlan,
        *,
        source: Location,
        target: Location,
        env: Env | None = None,
        part_bytes: int = PART_BYTES,
        partitions: int | None = None,
        limits: TaskLimits = TASK_LIMITS,
        new_throttle: Callable[[float], Throttle] = Throttle,
    ) -> None:
        self.progress = JobProgress(context)
        self._context = context
        self._plan = plan
        self._env = RealEnv() if env is None else env
        self._name = f"{plan.topic}-{plan.partition}"
        target.make_directory()
        self._start = dirty_start(self._env, plan) if plan.has_dirty_range else DirtyStart(0, 0, 0)
        self._parts = cut(self._env, plan, self._start.position, part_bytes)
        total = sum(part.end - part.position for part in self._parts)
        if partitions is None:
            partitions = partitions_for(total * records_per_byte(self._env, plan), context.defaultParallelism)
        self._job = Job(
            plan_text=plan.to_json(),
            source=source,
            target=target,
            parts=self._parts,
            partitions=partitions,
            bytes_per_second=plan.io_max_bytes_per_second / max(1, context.defaultParallelism),
            versions=Versions.here(),
            limits=limits,
            new_throttle=new_throttle,
        )
        self._stats = CleanStats()

    def run(self) -> Manifest:
        """Run the round. Raises the errors of engines (CorruptLog, OutputOverflow, OSError), SegmentChanged, and Spark's own."""
        plan, stats = self._plan, self._stats
        stats.start_s = time.monotonic()
        if not plan.has_dirty_range:
            events = self._walk(self._parts)
            return self._rewrite(plan.first_dirty_offset - 1, events, None, 0)
        map_end_offset = plan.segments[-1].next_base_offset - 1
        try:
            shuffled, events, figures = self._map(NO_LIMIT)
        except RecordsOutOfOrder:
            # If offsets are out of order, only the order of the records tells which of a key is the last; a shuffle loses it.
            return run_whole(self._context, plan, self._job, self._start, self.progress)
        mapped = sum(figure.mapped for figure in figures)
        dirty = {part.index for part in self._parts if part.is_dirty}
        stats.map_bytes_read = sum(figure.bytes_read for figure in figures if figure.index in dirty)
        stats.map_messages_read = sum(figure.messages_read for figure in figures if figure.index in dirty)
        if plan.is_kafka and mapped >= plan.map_max_entries:
            full = self._find_end()
            stats.map_bytes_read, stats.map_messages_read = full.map_bytes_read, full.map_messages_read
            if full.is_full:
                map_end_offset = full.map_end_offset
                shuffled, events, figures = self._map(map_end_offset)
        stats.map_complete_s = time.monotonic()
        tuples = sum(figure.mapped + figure.asked for figure in figures)
        return self._rewrite(map_end_offset, events, shuffled, tuples)

    # -- the steps -------------------------------------------------------------------------------------------------------

    def _walk(self, parts: Sequence[Part]) -> dict[int, NDArray[np.int64]]:
        """Run the walk step. Return the transaction events of each part, by the part's index."""
        if not parts:
            return {}
        self._begin("reading transactions", max(part.end - part.position for part in parts))
        sent = self._context.broadcast(self._job)
        found = self._context.parallelize(parts, len(parts)).map(part_events(sent, self.progress.done)).collect()
        self._raise_first((index, error) for index, _, error in found if error is not None)
        return {index: events for index, events, _ in found if events is not None}

    def _map(self, map_end_offset: int) -> tuple[Any, dict[int, NDArray[np.int64]], list[PartFigures]]:
        """Run the map step. Return the shuffled RDD, each part's events, and the statistics."""
        states = self._states_of_parts()
        self._begin("map", max((part.end - part.position for part in self._parts), default=0))
        self._job = replace(self._job, map_end_offset=map_end_offset)
        job = self._job
        work = [(part, states.get(part.index)) for part in self._parts]
        sent = self._context.broadcast(job)
        rows = self._context.parallelize(work, max(1, len(work))).mapPartitions(part_rows(sent, self.progress.done))
        shuffled = rows.partitionBy(job.partitions + 1, _itself)
        # This runs the whole map step, but fetches only the last partition of its shuffle.
        told: list[tuple[int, int, int, Any]] = self._context.runJob(shuffled, _values, [job.partitions])
        self._raise_first((part, content) for kind, part, _, content in told if kind == ERROR)
        events = {part: np.frombuffer(raw, np.int64).reshape(-1, EVENT_FIELDS) for _, part, _, (_, raw) in told}
        return shuffled, events, [figures for _, _, _, (figures, _) in told]

    def _find_end(self) -> _FullMap:
        """Find the offset at which Kafka's map is full."""
        dirty_bytes = sum(part.end - part.position for part in self._parts if part.is_dirty)
        self._begin("finding where the map is full", dirty_bytes)
        sent = self._context.broadcast(self._job)
        look = _find_end_of_map(sent, self._start, self.progress.done)
        found: _FullMap | JsonObject = self._context.parallelize([0], 1).map(look).collect()[0]
        if isinstance(found, _FullMap):
            return found
        raise error_of(found, self._name)

    def _rewrite(
        self, map_end_offset: int, events: dict[int, NDArray[np.int64]], shuffled: Any, tuples: int
    ) -> Manifest:
        plan, stats, context = self._plan, self._stats, self._context
        groups = group_segments(plan, segments_to_clean(plan, map_end_offset + 1))
        self._begin("rewrite", max((sum(segment.size for segment in group) for group in groups), default=0))
        place_of = {segment.base_offset: place for place, segment in enumerate(plan.segments)}
        self._job = job = replace(
            self._job,
            map_end_offset=map_end_offset,
            groups=tuple(tuple(place_of[segment.base_offset] for segment in group) for group in groups),
        )
        results: list[GroupResult] = []
        if groups:
            sent = context.broadcast(job)
            states = context.broadcast(self._states_of_groups(groups, events))
            stay: Any
            if shuffled is None:
                stay = context.parallelize(range(len(groups)), len(groups))
            else:
                stay = shuffled.mapPartitionsWithIndex(reduce_rows(sent, self.progress.done)).partitionBy(
                    len(groups), _itself
                )
            rewrite = group_results(sent, states, self.progress.done, has_survivors=shuffled is not None)
            results = stay.mapPartitionsWithIndex(rewrite).collect()
        self._raise_first((rewritten.group, rewritten.error) for rewritten in results if rewritten.error is not None)
        results.sort(key=lambda one: one.group)
        for one in results:
            add_stats(stats, one.stats)
        keys = sum(rewritten.keys for rewritten in results)
        if shuffled is not None:
            stats.map_utilization = plan.map_utilization(keys)
        stats.end_s = time.monotonic()
        outputs = tuple(output for rewritten in results for output in rewritten.outputs)
        return Manifest(map_end_offset + 1, outputs, stats, keys, tuples)

    # -- transactions ----------------------------------------------------------------------------------------------------

    def _states_of_parts(self) -> dict[int, TrackerState]:
        """Return the map step's tracker state before each dirty part, by part index; empty if no transaction there aborted."""
        plan = self._plan
        if not plan.has_aborted:
            return {}
        first = self._start.segment
        aborted = list(aborted_from(plan, first, plan.first_uncleanable_offset))
        if not plan.is_kafka:
            # As in `dirty_range`.
            aborted = [txn for txn in aborted if txn.last_offset >= self._start.offset]
        if not aborted:
            return {}
        events = self._walk([part for part in self._parts if part.is_dirty])
        tracker = ResumableTracker()
        tracker.add_aborted(aborted)
        parts = segments_of(self._parts)
        states = {}
        for place in range(first, len(plan.segments)):
            segment = plan.segments[place]
            if plan.quarantined:
                tracker.skip_to(segment.base_offset)
            for part in parts.get(place, []):
                if part.is_dirty:
                    states[part.index] = tracker.state(segment.next_base_offset)
                    tracker.replay(events[part.index])
        return states

    def _states_of_groups(
        self, groups: Sequence[Sequence[SegmentPlan]], events: dict[int, NDArray[np.int64]]
    ) -> list[TrackerState]:
        """Return the state of the rewrite's tracker before each group."""
        plan = self._plan
        place_of = {segment.base_offset: place for place, segment in enumerate(plan.segments)}
        parts = segments_of(self._parts)
        tracker = ResumableTracker()
        states = []
        for group in groups:
            states.append(tracker.state())
            for segment in group:
                place = place_of[segment.base_offset]
                if plan.quarantined:
                    tracker.skip_to(segment.base_offset)
                tracker.add_aborted(aborted_from(plan, place, segment.next_base_offset))
                for part in parts.get(place, []):
                    tracker.replay(events.get(part.index, _NO_EVENTS))
        return states

    def _begin(self, step: str, task_bytes: int) -> None:
        self.progress.begin(step, task_bytes, self._job.bytes_per_second)

    def _raise_first(self, errors: Iterator[tuple[int, JsonObject]]) -> None:
        """Raise the error of the first failed part or group, if any."""
        found = min(errors, key=lambda one: one[0], default=None)
        if found is not None:
            raise error_of(found[1], self._name)


class _FullMap(NamedTuple):
    """Whether Kafka's map is full, the last offset that it covers, and the statistics of reading up to there."""

    is_full: bool
    map_end_offset: int
    map_bytes_read: int
    map_messages_read: int


def _find_end_of_map(sent: Any, start: DirtyStart, done: Done) -> Callable[[int], _FullMap | JsonObject]:
    def find(_: int) -> _FullMap | JsonObject:
        from diamant.cleaner.engines.compiled_map import CompiledMap
        from diamant.cleaner.segments.row_records import RowRecords
        from diamant.cleaner.spark.clean.manifest import fields_of, is_final

        job: Job = sent.value
        # No other task runs at the same time, so this one gets the whole rate.
        throttle = job.new_throttle(job.plan.io_max_bytes_per_second)
        work = RoundWork(TaskFiles(job.plan, job.source).env, job.plan, throttle=throttle, limits=job.limits.engine)
        key_map = CompiledMap(work, RowRecords(work.limits))
        try:
            is_full = map_dirty_range(work, key_map, start)
            done.add(work.stats.map_bytes_read)
            return _FullMap(is_full, key_map.end_offset, work.stats.map_bytes_read, work.stats.map_messages_read)
        except Exception as error:
            if not is_final(error):
                raise
            return fields_of(error)
        finally:
            key_map.close()

    return find


def _itself(key: int) -> int:
    return key


def _values(rows: Iterable[tuple[int, T]]) -> list[T]:
    return [value for _, value in rows]
