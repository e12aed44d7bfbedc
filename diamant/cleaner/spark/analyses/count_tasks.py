"""Spark tasks of a count: counting tasks count the records of parts by kind, merging tasks combine the keys of divided logs.

A counting task counts records (`RecordCounter`) and distinct keys. If the part is a whole log, nothing else is needed. If the log
is divided, the task also outputs the part's keys, distributed by hash over `SLICES` slices (`key_blocks`). A merging task merges
the keys of some slices, one slice at a time, in the order of the parts, so that later records supersede earlier ones.

A counting task needs the memory of a `RangeReader` plus `table_bytes`, or 1.5 times `table_bytes` if it outputs keys. A merging
task needs `table_bytes` plus the memory in which Spark sorts shuffled blocks (spark.python.worker.memory). All other data is in
temporary files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.queries.key_tables import ENTRY, entries_in
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.tolerant_reader import fail
from diamant.cleaner.spark.analyses.key_blocks import SLICES, Block, KeyBlocks, bytes_of
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.read_plan import ReadTask

if TYPE_CHECKING:
    from diamant.cleaner.queries.record_counter import RecordCounter

_COUNTED = -1
"""The block number in a row that has a part's counts instead of a block."""


class LogCount(NamedTuple):
    """Counts of a log, or of a part of it."""

    kinds: Kinds = Kinds()
    log_end_offset: int | None = None
    """Offset after the last batch that still exists; None if there are no batches."""

    def plus(self, other: LogCount) -> LogCount:
        """Add the counts of another part."""
        ends = [one.log_end_offset for one in (self, other) if one.log_end_offset is not None]
        return LogCount(self.kinds + other.kinds, max(ends, default=None))


@dataclass(frozen=True, slots=True)
class CountedPart:
    """The input of one task."""

    log: int
    """Index of the part's log."""
    number: int
    """Number of the part; the parts of a log are numbered in offset order."""
    is_alone: bool
    """True if the part is the whole log."""
    is_decided: bool
    """True if `tasks` include the outcomes of transactions; otherwise transactional records count as undecided."""
    log_start_offset: int
    tasks: tuple[ReadTask, ...]
    """The part's tasks, in offset order."""

    @property
    def size(self) -> int:
        """Number of bytes to read."""
        return sum(task.size for task in self.tasks)


Row: TypeAlias = "tuple[tuple[int, int, int, int], Block | LogCount]"
"""The numbers of the slice, log, part and block; then the block itself, or the part's counts."""


@dataclass(frozen=True, slots=True)
class CountJob:
    """The input that all tasks share."""

    options: SourceOptions
    secret: bytes
    """Secret of the hash that identifies keys."""
    versions: Versions
    table_bytes: int
    directory: str
    """Directory for blocks of keys if all tasks run on this machine; empty if the blocks go through Spark's shuffle."""


def slice_of(key: tuple[int, int, int, int]) -> int:
    """Return the slice of a row's key, by which the shuffle distributes rows."""
    return key[0]


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
    """Read a part and yield its counts. If it is not the whole log, yield blocks of its keys first."""
    # Imported here, because it loads the kernels, which the driver does not need.
    from diamant.cleaner.queries.record_counter import RecordCounter

    end_offset: int | None = None
    if part.is_alone:
        with KeyCensus(1, max_bytes=job.table_bytes) as census:
            counter = RecordCounter(census, 0, part.log_start_offset, fail)
            for end in _read(part, job, counter):
                end_offset = end
            of_keys = census.finish().kinds[0]
    else:
        keys = KeyBlocks(RandomHash(is_compiled=True, secret=job.secret), job.table_bytes, job.directory)
        counter = RecordCounter(keys, 0, part.log_start_offset, fail)
        for end in _read(part, job, counter):
            end_offset = end
            yield from _rows_of_keys(part, keys)
        keys.take()
        yield from _rows_of_keys(part, keys)
        of_keys = keys.finish().kinds[0]
    counted = LogCount(counter.kinds(with_deleted=True) + of_keys, end_offset)
    yield (part.log % SLICES, part.log, part.number, _COUNTED), counted


def _rows_of_keys(part: CountedPart, keys: KeyBlocks) -> Iterator[Row]:
    for number, slice_number, block in keys.blocks():
        yield (slice_number, part.log, part.number, number), block


def _read(part: CountedPart, job: CountJob, counter: RecordCounter) -> Iterator[int]:
    """Count the records of a part, one group of batches at a time; after each group, yield the offset that follows it."""
    from diamant.cleaner.segments.sound_rows import SoundRows
    from diamant.cleaner.segments.transaction_outcomes import Outcome
    from diamant.cleaner.spark.source.range_reader import Counters, RangeReader
    from diamant.kernels.batches import last_offset_in
    from diamant.kernels.constants import fields as row_fields

    end_offset = 0
    for task in part.tasks:
        [place] = task.ranges
        for rows, unpacked, first, end in RangeReader(task, place, job.options, Counters()).groups_to_map():
            rows.column(row_fields.STEP)[first:end] = rows.column(row_fields.KEPT)[first:end]
            if not part.is_decided:
                for row in rows.with_attributes(row_fields.TRANSACTIONAL, first, end):
                    rows.rows[row_fields.STEP, row] = Outcome.OPEN
            counter.add(str(place.location), SoundRows(rows, first, end, unpacked), Outcome.COMMITTED)
            if end > first:
                end_offset = max(end_offset, last_offset_in(rows.rows, first, end) + 1)
                yield end_offset
    counter.finish()


def put_together(sent: Any) -> Callable[[Iterable[Row]], Iterator[Row]]:
    """Return the task that merges keys. Its input is sorted by slice, log, part and block; it outputs a row per slice and log."""

    def work(rows: Iterable[Row]) -> Iterator[Row]:
        yield from totals_of(rows, sent.value)
        freeze_loaded()

    return work


def totals_of(rows: Iterable[Row], job: CountJob) -> Iterator[Row]:
    """Merge the rows of each slice and log into one. `rows` must be sorted by slice, log, part and block."""
    with KeyCensus(1, max_bytes=job.table_bytes) as census:
        for (slice_number, log), of_log in groupby(rows, key=lambda row: row[0][:2]):
            found = LogCount()
            for _, content in of_log:
                if isinstance(content, LogCount):
                    found = found.plus(content)
                else:
                    block = bytes_of(content)
                    census.put(entries_in(block), len(block) // ENTRY.size)
            of_keys = census.finish().kinds[0]
            census.restart()
            yield (slice_number, log, 0, _COUNTED), found.plus(LogCount(of_keys))
