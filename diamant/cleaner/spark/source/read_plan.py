"""Plans the tasks of the data source `kafka-log`: finds the parts of files that a query must read.

There is a task for each segment that can hold requested records. Segments larger than `split_bytes` are split at batches that are
in their offset index. Filters and isolation exclude segments and parts of them:

    topic, partition      by the names of directories
    offset, log start     by the names of segments, and within a segment by its offset index
    minimum timestamp     by the time index, if all records up to the offset of an entry are older
    stable offset         by the names of segments

The index entries used are compared with the batches in the file. A damaged index fails the query; in mode PERMISSIVE it is
reported in a row, and the segment is read without the index. A damaged header is reported by the task that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diamant.cleaner.segments.tolerant_reader import PartitionFiles, SegmentFile
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.source.filter_bounds import GREATEST, LEAST, FilterBounds
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.partition_logs import find_partitions, place_of
from diamant.cleaner.spark.source.segment_indexes import OFFSET_ENTRY_BYTES, WITHOUT, read_offset_index, read_time_index
from diamant.cleaner.spark.source.stable_offset import NOTHING_KNOWN, Decided, read_decided
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_at_entry

if TYPE_CHECKING:
    from diamant.storage.env.env import ReadableFile

    pass

_LISTING_THREADS = 8
_MIN_INDEXED_BYTES = 64 * 1024
"""Segments smaller than this are read whole, which is faster than reading an index first."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a segment's file. A batch begins at its start."""

    location: Location
    start: int
    end: int
    """Start of the next part, or the size that the file had when it was listed."""
    size: int
    """Size of the whole file when it was listed."""
    is_last: bool
    """True if the file is the partition's last segment. It may still be written to, so a torn batch at its end is no damage."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadTask:
    """The complete input of one task. Can be sent to another process."""

    topic: str
    partition: int
    ranges: tuple[Range, ...]
    """One range; with `latest_per_key` all ranges of the partition."""
    bounds: FilterBounds
    """The query's bounds. They exclude records below the log start, unless such records are requested."""
    stable_offset: int | None
    """Exclusive end of the visible records; None without a limit."""
    aborted: NDArray[np.int64]
    """int64[n, ABORTED_FIELDS]: aborted transactions that can have records in the ranges."""
    open: NDArray[np.int64]
    """int64[n, 2]: producer id and first offset of each open transaction; empty unless outcomes are requested."""
    damage: tuple[tuple[str, int], ...] = ()
    """Mode PERMISSIVE: errors in indexes that this task reports, with their byte positions."""

    @property
    def size(self) -> int:
        """Maximum number of bytes that the task reads."""
        return sum(one.end - one.start for one in self.ranges)


def plan_tasks(options: SourceOptions, bounds: FilterBounds, *, with_outcomes: bool = False) -> list[ReadTask]:
    """Return the tasks of a query, largest first. Raises SparkError, OSError, CorruptLog.

    `with_outcomes`: the tasks need the outcomes of transactions.
    """
    logs = [log for log in find_partitions(options.paths, options.topics) if bounds.holds(log.topic, log.partition)]
    found = plan_logs(logs, options, bounds, [with_outcomes] * len(logs))
    return sorted((task for tasks in found for task in tasks), key=lambda task: -task.size)


def plan_logs(
    logs: Sequence[PartitionFiles], options: SourceOptions, bounds: FilterBounds, with_outcomes: Sequence[bool]
) -> list[list[ReadTask]]:
    """Return the tasks for each log (`plan_partition`); `with_outcomes` has a flag for each log."""

    def plan(log: PartitionFiles, is_asked: bool, /) -> list[ReadTask]:
        return plan_partition(log, options, bounds, with_outcomes=is_asked)

    with ThreadPoolExecutor(_LISTING_THREADS) as threads:
        return list(threads.map(plan, logs, with_outcomes))


def plan_partition(
    log: PartitionFiles, options: SourceOptions, bounds: FilterBounds, *, with_outcomes: bool = False
) -> list[ReadTask]:
    """Return the tasks for one partition, in offset order. `with_outcomes`: the tasks need the outcomes of transactions."""
    if not log.segments:
        return []
    decided = NOTHING_KNOWN
    damage: list[CorruptLog] = []
    if options.is_committed or with_outcomes:
        log, decided = read_decided(
            log, trust_indexes=options.trust_indexes, damage=damage if options.is_permissive else None
        )
    stable_offset = decided.stable_offset if options.is_committed else None
    if not options.include_below_log_start:
        bounds = replace(bounds, min_offset=max(bounds.min_offset, log.log_start_offset))
    # Any later record may supersede a requested one, so only the minimum offset can limit what is read.
    reading = replace(FilterBounds(), min_offset=bounds.min_offset) if options.latest_per_key else bounds
    end_offset = GREATEST if stable_offset is None else stable_offset - 1
    ranges = [
        part
        for segment in log.segments
        if segment.base_offset <= end_offset
        for part in _readable_ranges(log, segment, reading, options, damage)
    ]
    if not ranges:
        # Make a task that reads no records and only reports the damage.
        last = log.segments[-1]
        ranges = [Range(place_of(log, last.path), 0, 0, last.size, last.is_last)] if damage else []
    if not ranges:
        return []
    groups = [tuple(ranges)] if options.latest_per_key else [(part,) for part in ranges]
    return [
        ReadTask(
            log.topic,
            log.partition,
            group,
            bounds,
            stable_offset,
            _aborted_in(decided, log, group),
            decided.open,
            () if number else tuple((str(error), error.position) for error in damage),
        )
        for number, group in enumerate(groups)
    ]


def _readable_ranges(
    log: PartitionFiles, segment: SegmentFile, bounds: FilterBounds, options: SourceOptions, damage: list[CorruptLog]
) -> list[Range]:
    """Like `_ranges`, but in mode PERMISSIVE, ignore damaged indexes and add their errors to `damage`."""
    try:
        return _ranges(log, segment, bounds, options)
    except CorruptLog as error:
        if not options.is_permissive:
            raise
        damage.append(error)
        return _ranges(log, segment, bounds, replace(options, trust_indexes=False))


def _aborted_in(decided: Decided, log: PartitionFiles, group: Sequence[Range]) -> NDArray[np.int64]:
    if not len(decided.aborted):
        return decided.aborted
    of = {segment.path: segment for segment in log.segments}
    first = of[group[0].location.path].base_offset
    end = of[group[-1].location.path].end_offset
    aborted = decided.aborted
    return aborted[(aborted[:, 2] > first) & (aborted[:, 1] < (GREATEST if end is None else end))]


def _ranges(log: PartitionFiles, segment: SegmentFile, bounds: FilterBounds, options: SourceOptions) -> list[Range]:
    """Return the parts of a segment that can hold requested records."""
    last_offset = GREATEST if segment.end_offset is None else segment.end_offset - 1
    if not segment.size or segment.base_offset > bounds.max_offset or last_offset < bounds.min_offset:
        return []
    place = place_of(log, segment.path)
    whole = Range(place, 0, segment.size, segment.size, segment.is_last)
    if not options.trust_indexes or segment.size < _MIN_INDEXED_BYTES:
        return [whole]
    min_offset = bounds.min_offset
    if bounds.min_timestamp_ms > LEAST:
        older_to = _older_to(log, segment, bounds.min_timestamp_ms)
        if older_to == GREATEST:
            return []
        min_offset = max(min_offset, older_to + 1)
    is_split = 0 < options.split_bytes < segment.size
    if min_offset <= segment.base_offset and bounds.max_offset >= last_offset and not is_split:
        return [whole]
    location = place_of(log, segment.index(names.INDEX_SUFFIX))
    if not log.has(location.name):
        return [whole]
    index = read_offset_index(location, segment.base_offset, segment.size, is_growing=segment.is_last)
    first = int(np.searchsorted(index[0], min_offset, side="right")) - 1
    last = int(np.searchsorted(index[0], bounds.max_offset, side="left")) + 1
    end = int(index[1, last]) if last < index.shape[1] else segment.size
    used = [first] if first >= 0 else []
    starts = [int(index[1, first]) if first >= 0 else 0]
    if is_split:
        # Cut at the first entry at which a range is long enough, unless the rest would be too short.
        while (number := int(np.searchsorted(index[1], starts[-1] + options.split_bytes))) < index.shape[1]:
            position = int(index[1, number])
            if end - position < options.split_bytes // 2:
                break
            used.append(number)
            starts.append(position)
    try:
        with closing(place.open(read_ahead_bytes=0)) as file:
            if not segment.is_last and file.size() != segment.size:
                return [whole]  # changed since it was listed; the task reports this
            # The last segment may have grown since it was listed.
            for number in used:
                _check_entry(file, location, index, number)
            if last < index.shape[1]:
                _check_entry(file, location, index, last, above=bounds.max_offset)
    except FileNotFoundError:
        return [whole]  # cleaned or deleted since; the task reports this, or reads the renamed file
    ends = [*starts[1:], end]
    return [Range(place, start, stop, segment.size, segment.is_last) for start, stop in zip(starts, ends, strict=True)]


def _check_entry(
    file: ReadableFile, location: Location, index: NDArray[np.int64], number: int, *, above: int = LEAST
) -> None:
    """Check an entry of the offset index at `location`: its batch must be in its place, and have a base offset above `above`.

    Raises CorruptLog otherwise, because a read that begins or ends at this entry would then miss records.
    """
    offset, position = index[:, number].tolist()
    batches = scan_at_entry(file, file.size(), offset, position)
    first = None if batches is None else next(batches, None)
    if first is None or first[1].base_offset <= above:
        raise CorruptLog(
            str(location),
            number * OFFSET_ENTRY_BYTES,
            f"the entry for offset {offset} has position {position}, but that batch is not there{WITHOUT}",
        )


def _older_to(log: PartitionFiles, segment: SegmentFile, timestamp_ms: int) -> int:
    """Return an offset up to which all records of the segment are older than `timestamp_ms`.

    Return `GREATEST` if all records are older, `LEAST` if no such offset is known.
    """
    location = place_of(log, segment.index(names.TIME_INDEX_SUFFIX))
    if not log.has(location.name):
        return LEAST
    index = read_time_index(location, segment.base_offset)
    count = int(np.searchsorted(index[0], timestamp_ms, side="left"))
    if not count:
        return LEAST
    if count == index.shape[1] and not segment.is_last:
        # The last entry of a closed segment has its greatest timestamp.
        return GREATEST
    return int(index[1, count - 1])
