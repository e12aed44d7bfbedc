"""Runs a task of a query: returns the records of a range, or with `latest_per_key` the latest record of each key in a partition.

With `latest_per_key`, a first pass over the task's input adds the hash and offset of each key to the cleaner's own map. Records
without a key are left out, as in a compacted log.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.cleaner.engines.offset_map import LatestOffsets, OffsetMap, open_spill_file
from diamant.cleaner.spark.source.arrow_columns import ArrowColumns
from diamant.cleaner.spark.source.filter_bounds import GREATEST, FilterBounds
from diamant.cleaner.spark.source.range_reader import Counters, RangeReader
from diamant.kernels import numbers, offset_map
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import LAST_SEEN, ROW, STATE_FIELDS
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    import pyarrow

    from diamant.cleaner.spark.source.options import SourceOptions
    from diamant.cleaner.spark.source.read_plan import ReadTask

_TUPLES = 64 * 1024


def read_task(
    task: ReadTask, options: SourceOptions, columns: tuple[str, ...], counters: Counters
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a task as Arrow batches. Raises CorruptLog, SegmentChanged, OSError."""
    if options.latest_per_key:
        with _find_latest(task, options, counters) as latest:
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


@contextmanager
def _find_latest(task: ReadTask, options: SourceOptions, counters: Counters) -> Iterator[LatestOffsets]:
    """Yield the offset of each key's latest record, from the minimum offset on. Raises CorruptLog, SegmentChanged, OSError.

    Memory: `options.map_bytes`. Further keys go to an unnamed temporary file (cleaner/engines/offset_map.py).
    """
    with tempfile.TemporaryDirectory(prefix="diamant-latest-") as directory:
        env = RealEnv()
        offsets = OffsetMap(
            os.urandom(16), memory_bytes=options.map_bytes, spill=lambda: open_spill_file(env, directory)
        )
        try:
            # Later records supersede earlier ones, even if the later ones are not requested.
            _read(replace(task, bounds=FilterBounds(min_offset=task.bounds.min_offset)), options, counters, offsets)
            yield offsets.latest()
        finally:
            offsets.close()


def _read(task: ReadTask, options: SourceOptions, counters: Counters, offsets: OffsetMap) -> None:
    tuples = numbers("Q", _TUPLES, 3)
    end_offset = GREATEST if task.stable_offset is None else task.stable_offset
    for part in task.ranges:
        reader = RangeReader(task, part, options, counters)
        state = array("q", bytes(8 * STATE_FIELDS))
        state[LAST_SEEN] = -1
        for rows, unpacked, first, end in reader.groups_to_map():
            state[ROW] = first
            fault = fields.BUFFER_FULL
            while fault == fields.BUFFER_FULL:
                fault, count = offset_map.hash_records(
                    rows.data,
                    unpacked,
                    rows.rows,
                    end,
                    state,
                    tuples,
                    offsets.k0,
                    offsets.k1,
                    task.bounds.min_offset,
                    end_offset,
                )
                if fault not in (fields.NO_FAULT, fields.BUFFER_FULL):
                    raise reader.fault(rows, state[ROW])
                offsets.add(tuples, count)
