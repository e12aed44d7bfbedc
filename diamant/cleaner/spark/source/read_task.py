"""One task of a read: the rows of a range of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diamant.cleaner.spark.source.arrow_columns import ArrowColumns

if TYPE_CHECKING:
    import pyarrow

    from diamant.cleaner.spark.source.options import SourceOptions
    from diamant.cleaner.spark.source.read_plan import ReadTask
from diamant.cleaner.spark.source.range_reader import Counters, RangeReader


def read_task(
    task: ReadTask, options: SourceOptions, columns: tuple[str, ...], counters: Counters
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a task as Arrow batches. Raises CorruptLog, SegmentChanged, OSError."""
    if options.latest_per_key:
        from diamant.cleaner.spark.source.latest_per_key import find_latest

        with find_latest(task, options, counters) as latest:
            for part in task.ranges:
                yield from RangeReader(task, part, options, counters).arrow_batches(columns, latest.window)
        return
    for part in task.ranges:
        if task.damage:
            arrow = ArrowColumns(columns, task.topic, task.partition, part.location)
            for reason, position in task.damage:
                yield arrow.corrupt(reason, position)
        if part.end > part.start:
            yield from RangeReader(task, part, options, counters).arrow_batches(columns)
