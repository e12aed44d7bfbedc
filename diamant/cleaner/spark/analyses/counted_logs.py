"""The contents of logs by kind, counted part by part in tasks: what `diamant log stats` counts, for as much as a cluster reads.

A part is some neighbouring segments, or whole batches of a large one. Its task counts records (`RecordCounter`) and
gathers keys in a table. Of a log of one part that is all. Of others each part hands on its keys, spread by their hashes over
`SLICES`; a second task puts those of a slice together, part after part, so that later records supersede earlier ones.

How transactions ended, a producer snapshot tells and the headers behind it. Of a log without one that would be all headers, read
in the driver: its transactional records are counted as undecided, and only if there are any it is counted again, with outcomes.

Shuffled are 24 bytes for each key of a part (again for each time that its table was full), and one row for each part. No key
and no value leaves a task.

Memory of a task: `RangeReader`, one and a half times `TABLE_BYTES`; of one that puts keys together `CENSUS_BYTES`, and what
Spark takes to sort blocks of 24 KB (spark.python.worker.memory). The rest is in temporary files. In the driver: the parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from diamant.cleaner.queries.key_counts import LEAST_KEYS, KeyCensus, KeyCounts
from diamant.cleaner.queries.key_tables import (
    ANY_SOURCE,
    BUCKETS,
    ENTRY,
    LIVE,
    SUPERSEDED,
    TOMBSTONES,
    CompiledKeyTable,
    Numbers,
    entries_in,
)
from diamant.cleaner.segments.random_hash import HASH_BYTES, RandomHash
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.source.filter_bounds import FilterBounds
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.read_plan import ReadTask, plan_logs
from diamant.kernels.constants import counts
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from pyspark import SparkContext

    from diamant.cleaner.segments.tolerant_reader import Problem
    from diamant.cleaner.spark.source.partition_logs import PartitionLog

PART_BYTES = 256 * 1024 * 1024
MAX_PART_BYTES = 8 * PART_BYTES
PARTS_PER_CORE = 3
"""More of them share the work more evenly, and repeat more keys. One core shares with none: it has one part."""
TABLE_BYTES = 96 * 1024 * 1024
CENSUS_BYTES = 96 * 1024 * 1024
SLICES = BUCKETS
SLICE_SHIFT = 28
"""Of a hash's second half, the bits that choose the slice (`KeyTable.take`)."""
BYTES_OF_A_SLICE = 512 * 1024 * 1024
"""For so much of a log one more task puts keys together, up to `SLICES`."""
_COUNTED = -1
"""In place of the number of a block: the counts of the part."""


@dataclass(slots=True)
class KindCounts:
    """Of a log, or of a part of it."""

    records: int = 0
    live: int = 0
    superseded: int = 0
    tombstones: int = 0
    aborted: int = 0
    undecided: int = 0
    keyless: int = 0
    below_log_start: int = 0
    control_records: int = 0
    log_end_offset: int | None = None
    """After the last batch that is there; None: there is none."""

    def add(self, other: KindCounts) -> None:
        """Count those of another part."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.log_end_offset is not None:
            self.log_end_offset = max(self.log_end_offset or 0, other.log_end_offset)


COUNTS = tuple(one.name for one in fields(KindCounts) if one.name != "log_end_offset")


@dataclass(frozen=True, slots=True)
class CountedPart:
    """The input of one task."""

    log: int
    """Place of its log."""
    number: int
    """Ascending with the offsets of a log."""
    is_alone: bool
    """True if it is all of its log."""
    is_decided: bool
    """True if its tasks know how transactions ended."""
    log_start_offset: int
    tasks: tuple[ReadTask, ...]
    """In the order of offsets."""

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(task.size for task in self.tasks)


Row: TypeAlias = "tuple[tuple[int, int, int, int], bytes | KindCounts]"
"""Slice, log, part and number of a block; then entries (`key_tables`), or the part's counts."""


@dataclass(frozen=True, slots=True)
class CountJob:
    """The input that all tasks share."""

    options: SourceOptions
    secret: bytes
    """Of the hash by which keys are known."""
    versions: Versions
    table_bytes: int


def count_logs(
    context: SparkContext, paths: Sequence[str], logs: Sequence[PartitionLog], *, table_bytes: int = TABLE_BYTES
) -> list[KindCounts]:
    """Return the counts of each log. CorruptLog, SegmentChanged and OSError, as Spark wraps them."""
    are_decided = [bool(log.snapshots) for log in logs]
    found = _counted(context, paths, logs, are_decided, table_bytes)
    again = [place for place, one in enumerate(found) if one.undecided and not are_decided[place]]
    if again:
        counted = _counted(context, paths, [logs[place] for place in again], [True] * len(again), table_bytes)
        for place, one in zip(again, counted, strict=True):
            found[place] = one
    return found


def _counted(
    context: SparkContext,
    paths: Sequence[str],
    logs: Sequence[PartitionLog],
    are_decided: Sequence[bool],
    table_bytes: int,
) -> list[KindCounts]:
    """Return the counts of each log; of one that is not decided its transactional records are undecided."""
    total = sum(log.size for log in logs)
    cores = context.defaultParallelism
    part_bytes = min(MAX_PART_BYTES, max(PART_BYTES, total if cores == 1 else total // (PARTS_PER_CORE * cores)))
    options = SourceOptions(
        tuple(paths), (), include_control=True, include_below_log_start=True, split_bytes=part_bytes
    )
    planned = plan_logs(logs, options, FilterBounds(), are_decided)
    parts = [
        part
        for place, (log, tasks) in enumerate(zip(logs, planned, strict=True))
        for part in _parts(place, log, tasks, part_bytes, is_decided=are_decided[place])
    ]
    found = [KindCounts() for _ in logs]
    if not parts:
        return found
    sent = context.broadcast(CountJob(options, os.urandom(HASH_BYTES), Versions.here(), table_bytes))
    slices = max(1, min(SLICES, total // BYTES_OF_A_SLICE))
    rows = context.parallelize(sorted(parts, key=lambda part: -part.size), len(parts))
    counted = rows.mapPartitions(part_rows(sent)).repartitionAndSortWithinPartitions(slices, _slice_of)
    for place, more in counted.mapPartitions(put_together).collect():
        found[place].add(more)
    return found


def _parts(
    place: int, log: PartitionLog, tasks: Sequence[ReadTask], part_bytes: int, *, is_decided: bool
) -> list[CountedPart]:
    """Return the parts of a log: neighbouring tasks, together at least `part_bytes`."""
    groups: list[list[ReadTask]] = []
    room = 0
    for task in tasks:
        if room <= 0:
            groups.append([])
            room = part_bytes
        groups[-1].append(task)
        room -= task.size
    return [
        CountedPart(place, number, len(groups) == 1, is_decided, log.log_start_offset, tuple(group))
        for number, group in enumerate(groups)
    ]


def _slice_of(key: tuple[int, int, int, int]) -> int:
    return key[0]


# -- tasks ---------------------------------------------------------------------------------------------------------------


def part_rows(sent: Any) -> Callable[[Iterable[CountedPart]], Iterator[Row]]:
    """Return the task that counts parts."""

    def work(parts: Iterable[CountedPart]) -> Iterator[Row]:
        job: CountJob = sent.value
        check_versions(job.versions)
        for part in parts:
            yield from rows_of(part, job)
        freeze_loaded()

    return work


def rows_of(part: CountedPart, job: CountJob) -> Iterator[Row]:
    """Read a part; yield its keys, unless it is alone, and its counts."""
    # Loads numpy and the kernels, which the driver does without.
    from diamant.cleaner.queries.record_counter import RecordCounter
    from diamant.cleaner.segments.sound_rows import SoundRows
    from diamant.cleaner.segments.transaction_outcomes import Outcome
    from diamant.cleaner.spark.source.range_reader import Counters, RangeReader
    from diamant.kernels.batches import last_offset_in
    from diamant.kernels.constants import fields as row_fields

    keys = _Keys(RandomHash(is_compiled=True, secret=job.secret), job.table_bytes)
    counter = RecordCounter(keys, 0, part.log_start_offset, _fail)
    end_offset = None
    for task in part.tasks:
        [place] = task.ranges
        for rows, unpacked, first, end in RangeReader(task, place, job.options, Counters()).groups_to_map():
            rows.column(row_fields.STEP)[first:end] = rows.column(row_fields.KEPT)[first:end]
            if not part.is_decided:
                for row in rows.with_attributes(row_fields.TRANSACTIONAL, first, end):
                    rows.rows[row_fields.STEP, row] = Outcome.OPEN
            counter.add(str(place.location), SoundRows(rows, first, end, unpacked), Outcome.COMMITTED)
            if end > first:
                end_offset = max(end_offset or 0, last_offset_in(rows.rows, first, end) + 1)
            yield from keys.rows(part)
    counter.finish()
    if keys.has_taken or not part.is_alone:
        keys.take()
        yield from keys.rows(part)
    found = _counts(counter.sums, keys.finish())
    found.log_end_offset = end_offset
    yield (part.log % SLICES, part.log, part.number, _COUNTED), found


def put_together(rows: Iterable[Row]) -> Iterator[tuple[int, KindCounts]]:
    """The task that puts keys together: `(log, counts)` of rows by slice, log, part and block, ascending."""
    for (_, log), of_log in groupby(rows, key=lambda row: row[0][:2]):
        with KeyCensus(1, max_bytes=CENSUS_BYTES) as census:
            found = KindCounts()
            for _, content in of_log:
                if isinstance(content, KindCounts):
                    found.add(content)
                else:
                    census.put(entries_in(content), len(content) // ENTRY.size)
            keys = census.finish()
        found.add(KindCounts(live=keys.live[0], superseded=keys.superseded[0], tombstones=keys.tombstones[0]))
        yield log, found
    freeze_loaded()


class _Keys:
    """The keys of a part, in a table that is emptied into blocks when it is full. Stands where a `KeyCensus` does."""

    def __init__(self, hashed_by: RandomHash, table_bytes: int) -> None:
        self.hash = hashed_by
        self._counts = memoryview(bytearray(8 * 3)).cast("q", (3, 1))
        self._table = CompiledKeyTable(self._counts, LEAST_KEYS, table_bytes, is_one_log=False)
        self._blocks: list[tuple[int, bytes]] = []
        self._number = 0
        self.has_taken = False
        """True if keys were handed on."""

    def put(self, entries: Numbers, count: int) -> None:
        """Take the first `count` entries."""
        at = 0
        while (at := self._table.put(entries, at, count, ANY_SOURCE)) < count:
            self.take()

    def take(self) -> None:
        """Empty the table."""
        self._blocks += self._table.take(SLICE_SHIFT)
        self.has_taken = True

    def rows(self, part: CountedPart) -> Iterator[Row]:
        """Yield what was taken out since the last call."""
        for slice_number, block in self._blocks:
            yield (slice_number, part.log, part.number, self._number), block
            self._number += 1
        self._blocks.clear()

    def finish(self) -> KeyCounts:
        """Count what is in the table, and what was superseded in it."""
        keys, shared_keys = self._table.sum()
        live, tombstones, superseded = (self._counts[kind, 0] for kind in (LIVE, TOMBSTONES, SUPERSEDED))
        return KeyCounts([live], [tombstones], [superseded], keys, shared_keys)


def _counts(sums: memoryview[int], keys: KeyCounts) -> KindCounts:
    return KindCounts(
        records=sums[counts.RECORDS],
        live=keys.live[0],
        superseded=keys.superseded[0],
        tombstones=keys.tombstones[0],
        aborted=sums[counts.ABORTED],
        undecided=sums[counts.UNDECIDED],
        keyless=sums[counts.KEYLESS],
        below_log_start=sums[counts.BELOW_LOG_START],
        control_records=sums[counts.MARKERS],
    )


def _fail(problem: Problem) -> NoReturn:
    raise CorruptLog(problem.path, problem.position or 0, problem.reason)
