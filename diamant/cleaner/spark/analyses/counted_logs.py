"""Counts the records of logs by kind, as `diamant log stats` does, for any amount of data: Spark tasks count parts of logs.

If undivided logs keep all cores busy, each log is one part. Otherwise the parts of a large log consist of adjacent segments, or
of adjacent batches of large segments. The tasks are in `count_tasks`.

The driver finds the outcomes of transactions in the newest producer snapshot and the batch headers after it. Without a snapshot
it would have to read all headers. Instead, the tasks first count the log's transactional records as undecided. Only if there are
any, the driver reads the headers, and the log is counted again.

A part of a divided log outputs 24 bytes for each of its keys, and again for a key that recurs after the part's full table was
emptied. These go to files on one machine, otherwise to Spark's shuffle (`key_blocks`). Keys and values never leave a task. The
driver holds the list of parts in memory, and on one machine 200 bytes for each block. For the memory of tasks see `count_tasks`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil
from operator import itemgetter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from diamant.cleaner.queries.key_counts import DEFAULT_MAX_BYTES
from diamant.cleaner.segments.random_hash import HASH_BYTES
from diamant.cleaner.spark.analyses.count_tasks import (
    CountedPart,
    CountJob,
    LogCount,
    Row,
    part_rows,
    put_together,
    slice_of,
)
from diamant.cleaner.spark.analyses.key_blocks import SLICES
from diamant.cleaner.spark.environment.shares import are_shared_evenly
from diamant.cleaner.spark.environment.shipped_code import Versions
from diamant.cleaner.spark.environment.spark_settings import is_local
from diamant.cleaner.spark.source.filter_bounds import FilterBounds
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.read_plan import ReadTask, plan_logs

if TYPE_CHECKING:
    from pyspark import SparkContext

    from diamant.cleaner.segments.tolerant_reader import PartitionFiles

PART_BYTES = 256 * 1024 * 1024
MAX_PART_BYTES = 8 * PART_BYTES
"""Maximum size of a part on a cluster, where a task may be lost and run again."""
RANGES_PER_PART = 64
"""Minimum number of ranges in a part of a divided log. Parts differ in size by less than one range, so they are nearly equal."""
TABLE_BYTES = 96 * 1024 * 1024
"""Minimum memory for the keys of a task. With few cores, all tasks together use as much memory as `diamant log stats`."""


def count_logs(
    context: SparkContext,
    paths: Sequence[str],
    logs: Sequence[PartitionFiles],
    *,
    part_bytes: int = PART_BYTES,
    table_bytes: int | None = None,
) -> list[LogCount]:
    """Return the counts of each log. Raises CorruptLog, SegmentChanged and OSError, wrapped by Spark.

    `part_bytes`: minimum size of the parts of divided logs.
    """
    if table_bytes is None:
        table_bytes = max(TABLE_BYTES, DEFAULT_MAX_BYTES // context.defaultParallelism)
    count = partial(_counted, context, paths, least_bytes=part_bytes, table_bytes=table_bytes)
    are_decided = [bool(log.snapshots) for log in logs]
    found = count(logs, are_decided)
    again = [place for place, one in enumerate(found) if one.kinds.undecided and not are_decided[place]]
    if again:
        counted = count([logs[place] for place in again], [True] * len(again))
        for place, one in zip(again, counted, strict=True):
            found[place] = one
    return found


def _counted(
    context: SparkContext,
    paths: Sequence[str],
    logs: Sequence[PartitionFiles],
    are_decided: Sequence[bool],
    *,
    least_bytes: int,
    table_bytes: int,
) -> list[LogCount]:
    """Return the counts of each log. A log's transactional records count as undecided if its flag in `are_decided` is False."""
    most_bytes = sys.maxsize if is_local(str(context.master)) else MAX_PART_BYTES
    part_bytes = _part_bytes([log.size for log in logs], context.defaultParallelism, least_bytes, most_bytes)
    options = SourceOptions(
        tuple(paths),
        (),
        include_control=True,
        include_below_log_start=True,
        split_bytes=max(1, part_bytes // RANGES_PER_PART),
    )
    planned = plan_logs(logs, options, FilterBounds(), are_decided)
    parts = [
        part
        for place, (log, tasks) in enumerate(zip(logs, planned, strict=True))
        for part in _parts(place, log, tasks, part_bytes, is_decided=are_decided[place])
    ]
    found = [LogCount() for _ in logs]
    if not parts:
        return found
    largest_first = sorted(parts, key=lambda part: -part.size)
    is_divided = not all(part.is_alone for part in parts)
    with _shared_directory(context) if is_divided else nullcontext("") as directory:
        job = CountJob(options, os.urandom(HASH_BYTES), Versions.here(), table_bytes, directory)
        sent = context.broadcast(job)
        rows: Any = context.parallelize(largest_first, len(parts)).mapPartitions(part_rows(sent))
        if is_divided:
            rows = _by_slice(context, rows, has_blocks=not directory).mapPartitions(put_together(sent))
        told: list[tuple[tuple[int, int, int, int], LogCount]] = rows.collect()
    for (_, place, _, _), more in told:
        found[place] = found[place].plus(more)
    return found


def _by_slice(context: SparkContext, rows: Any, *, has_blocks: bool) -> Any:
    """Sort the rows and distribute them over tasks by slice. `has_blocks`: rows contain blocks, not just their places."""
    count = min(SLICES, context.defaultParallelism)
    if has_blocks:
        return rows.repartitionAndSortWithinPartitions(count, slice_of)
    # There are too few rows to justify a shuffle.
    of_tasks: list[list[Row]] = [[] for _ in range(count)]
    for row in sorted(rows.collect(), key=itemgetter(0)):
        of_tasks[slice_of(row[0]) % count].append(row)
    return context.parallelize(of_tasks, count).mapPartitions(chain.from_iterable)


@contextmanager
def _shared_directory(context: SparkContext) -> Iterator[str]:
    """Yield a temporary directory for the tasks' blocks of keys, or an empty string if tasks may run on other machines."""
    if not is_local(str(context.master)):
        yield ""
        return
    # If a task of a failed job still writes to the directory, the JVM removes it later, with Spark's own files.
    with TemporaryDirectory(prefix="diamant-keys-", dir=context._temp_dir, ignore_cleanup_errors=True) as directory:
        yield directory


def _part_bytes(sizes: Sequence[int], cores: int, least_bytes: int, most_bytes: int) -> int:
    """Return the size above which logs are divided, into parts of about this size.

    Most keys of a log occur in each of its parts, so each core gets at most one part unless `most_bytes` requires more.
    """
    if are_shared_evenly(sizes, cores):
        return max(sizes, default=0)
    return min(most_bytes, max(least_bytes, ceil(sum(sizes) / cores)))


def _parts(
    place: int, log: PartitionFiles, tasks: Sequence[ReadTask], part_bytes: int, *, is_decided: bool
) -> list[CountedPart]:
    """Group adjacent tasks of a log into parts of about the same size."""
    total = sum(task.size for task in tasks)
    count = max(1, ceil(total / max(1, part_bytes)))
    groups: list[list[ReadTask]] = [[] for _ in range(count)]
    start = 0
    for task in tasks:
        # Assign a task to the part that contains its middle byte.
        groups[min(count - 1, (2 * start + task.size) * count // max(1, 2 * total))].append(task)
        start += task.size
    filled = [group for group in groups if group]
    return [
        CountedPart(place, number, len(filled) == 1, is_decided, log.log_start_offset, _joined(group))
        for number, group in enumerate(filled)
    ]


def _joined(tasks: Sequence[ReadTask]) -> tuple[ReadTask, ...]:
    """Merge adjacent tasks that read the same file, so that it is opened only once. Each task has one range."""
    found: list[ReadTask] = []
    for task in tasks:
        [place] = task.ranges
        if found and found[-1].ranges[0].location == place.location:
            found[-1] = replace(found[-1], ranges=(replace(found[-1].ranges[0], end=place.end),))
        else:
            found.append(task)
    return tuple(found)
