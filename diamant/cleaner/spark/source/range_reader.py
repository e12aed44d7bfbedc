"""Reads the record batches of a task in offset order, and converts them to Arrow batches.

    for batch in read_task(task, options, columns, counters): ...

Batches that cannot hold requested records are neither decompressed nor checked. Reading stops after the last requested offset, or
at the stable offset.

Memory: a chunk (1 MiB, or one larger batch), a group of decompressed batches (`GROUP_BYTES`, or one larger batch of 256 MiB at
most), and its columns; with `latest_per_key` also the offset map (cleaner/engines/offset_map.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged
from diamant.cleaner.spark.source.arrow_columns import ArrowColumns, ColumnBuffers, RowSource
from diamant.cleaner.spark.source.filter_bounds import LEAST, FilterBounds
from diamant.kernels.batches import find_bad_crc
from diamant.kernels.constants import fields
from diamant.kernels.constants.columns import BOUNDS, MAX_OFFSET, MAX_TIMESTAMP, MIN_OFFSET, MIN_TIMESTAMP
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
)
from diamant.protocol.batches.legacy import parse_legacy_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.txn_index import AbortedTxn

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from diamant.cleaner.engines.offset_map import Offsets
    from diamant.cleaner.spark.source.options import SourceOptions
    from diamant.cleaner.spark.source.read_plan import Range, ReadTask
    from diamant.storage.env.env import ReadableFile

GROUP_BYTES = 8 * 1024 * 1024
"""Approximate size of an Arrow batch, in bytes of records."""
_SKIP = 0
READ = 1
"""STEP of a row to read; equal to `kernels.constants.tuples.MAP`."""
_CONVERT = 2
"""STEP of an old-format row to read, until it is converted."""
_NO_TYPE = -1
"""NOTE of a batch in the oldest format, which has no timestamps."""


@dataclass(slots=True)
class Counters:
    """The statistics of a task."""

    bytes_read: int = 0
    """Bytes read from files."""
    bytes_decoded: int = 0
    """Decompressed bytes of the parsed records."""
    bytes_copied: int = 0
    """Bytes of keys, values and headers in columns."""
    batches: int = 0
    batches_decoded: int = 0
    records: int = 0
    """Records passed to Spark."""
    records_walked: int = 0


def open_range(part: Range) -> ReadableFile:
    """Open the file of a range. Raises SegmentChanged if the planned file is gone or was replaced.

    Also finds a file that the cleaner or retention has removed, because it is only renamed for a while (`file.delete.delay.ms`).
    """
    for location in (part.location, part.location.parent.child(part.location.name + names.DELETED_SUFFIX)):
        try:
            file = location.open()
        except FileNotFoundError:
            continue
        if file.size() == part.size or (part.is_last and file.size() > part.size):
            return file
        file.close()
    raise SegmentChanged(
        f"{part.location} had {part.size} bytes when the query was planned, and has since been cleaned, deleted or truncated: "
        "run the query again, or read a copy of the directory"
    )


class RangeReader:
    """Reads one range of a file once."""

    def __init__(self, task: ReadTask, part: Range, options: SourceOptions, counters: Counters) -> None:
        self._task = task
        self._part = part
        self._options = options
        self._counters = counters
        self._unpacker = Unpacker()
        bounds = task.bounds
        self._end_offset = bounds.max_offset
        if task.stable_offset is not None:
            self._end_offset = min(self._end_offset, task.stable_offset - 1)
        self._bounds = bounds_array(replace(bounds, max_offset=self._end_offset))
        self._needles = [needle for needle in (bounds.key, options.containing.encode()) if needle]
        self._is_at_end = False
        self._outcomes = TransactionOutcomes(
            (AbortedTxn(producer_id, first, last, -1) for producer_id, first, last in task.aborted.tolist()),
            dict(task.open.tolist()),
        )
        self._refused: list[CorruptLog] = []
        """Mode PERMISSIVE: errors not yet reported as rows."""

    def arrow_batches(
        self, columns: tuple[str, ...], latest: LatestWindow | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the requested records; if `latest` is given, only those at the offsets that it returns."""
        task = self._task
        arrow = ArrowColumns(columns, task.topic, task.partition, self._part.location, self._options.schemas)
        with closing(open_range(self._part)) as file:
            try:
                for rows in self._sound_chunks(file):
                    yield from self._arrow_of(rows, arrow, latest)
                    if self._is_at_end:
                        return
            except CorruptLog as error:
                if not self._options.is_permissive:
                    raise
                yield arrow.corrupt(f"{error}; nothing was read from there to byte {self._part.end}", error.position)

    def groups_to_map(self) -> Iterator[tuple[Rows, memoryview, int, int]]:
        """Yield groups of rows: (rows, unpacked bytes, first row, end row). Rows whose STEP is not `READ` must be ignored."""
        with closing(open_range(self._part)) as file:
            for rows in self._sound_chunks(file):
                for unpacked, first, end, _ in self._groups(rows):
                    yield rows, unpacked, first, end
                if self._is_at_end:
                    return

    def fault(self, rows: Rows, row: int) -> CorruptLog:
        """Return the error that the plain Python reader raises for the records of a batch."""
        position = int(rows.rows[fields.POSITION, row])
        batch = rows.data[position : position + int(rows.rows[fields.SIZE, row])].tobytes()
        reason = "offsets of its records do not ascend within the batch"
        try:
            for _ in iter_records(batch):
                pass
        except CorruptBatch as error:
            reason = error.reason
        return CorruptLog(str(self._part.location), rows.position + position, reason)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _sound_chunks(self, file: ReadableFile) -> Iterator[Rows]:
        """Yield the chunks of the range, up to a torn batch at the end of a live log. Raises CorruptLog for other damage."""
        position = self._part.start
        try:
            for rows in self._chunks(file, position, self._part.end):
                yield rows
                position = rows.position + rows.size
        except CorruptLog as error:
            # A chunk with damage was not yielded, so read its sound part again, up to the damage.
            if error.position > position:
                yield from self._chunks(file, position, error.position)
            if not self._is_torn_end(file, error.position):
                raise

    def _chunks(self, file: ReadableFile, start: int, end: int) -> Iterator[Rows]:
        """Yield the chunks of a part of the range, with STEP set in the rows."""
        for rows in ChunkReader().chunks(file, start, end):
            self._counters.bytes_read += rows.size
            self._counters.batches += rows.count
            table = np.asarray(rows.rows, np.int64)[:, : rows.count]
            # The value of the column timestamp_type.
            table[fields.NOTE] = table[fields.ATTRIBUTES] & fields.LOG_APPEND_TIME != 0
            if rows.together & fields.LEGACY:
                self._read_legacy_headers(rows)
            self._mark(table)
            yield rows

    def _read_legacy_headers(self, rows: Rows) -> None:
        for row in np.flatnonzero(np.asarray(rows.column(fields.MAGIC)) < CURRENT_MAGIC).tolist():
            table = rows.rows
            table[fields.PRODUCER_ID, row] = -1
            try:
                header = parse_legacy_header(self._bytes_of(rows, row))
            except CorruptBatch as error:
                self._refuse(rows, row, error.reason)
                continue
            table[fields.BASE_OFFSET, row] = header.base_offset
            table[fields.LAST_OFFSET, row] = header.last_offset
            table[fields.MAX_TIMESTAMP, row] = header.max_timestamp
            table[fields.RECORD_COUNT, row] = header.record_count
            # In old formats each record has its own timestamp, so keep only the codec of the attributes.
            table[fields.ATTRIBUTES, row] = header.codec
            table[fields.NOTE, row] = bool(header.attributes & LOG_APPEND_TIME_FLAG) if header.magic else _NO_TYPE

    def _mark(self, table: NDArray[np.int64]) -> None:
        """Set STEP of each row."""
        bounds = self._task.bounds
        is_control = table[fields.ATTRIBUTES] & fields.CONTROL != 0
        base_offsets = table[fields.BASE_OFFSET]
        is_asked = (table[fields.RECORD_COUNT] != 0) & (table[fields.LAST_OFFSET] >= bounds.min_offset)
        is_asked &= base_offsets <= self._end_offset
        if not self._options.include_control:
            is_asked &= ~is_control
        if bounds.min_timestamp_ms > LEAST:
            is_asked &= table[fields.MAX_TIMESTAMP] >= bounds.min_timestamp_ms
        self._set_outcomes(table, is_asked & ~is_control)
        if self._options.is_committed:
            is_asked &= table[fields.KEPT] == Outcome.COMMITTED
        table[fields.STEP] = np.where(is_asked, np.where(table[fields.MAGIC] == 2, READ, _CONVERT), _SKIP)
        self._is_at_end = bool(base_offsets[-1] > self._end_offset)

    def _set_outcomes(self, table: NDArray[np.int64], is_data: NDArray[np.bool_]) -> None:
        """Set KEPT of each row to its `Outcome`."""
        table[fields.KEPT] = Outcome.COMMITTED
        rows = np.flatnonzero(is_data & (table[fields.ATTRIBUTES] & fields.TRANSACTIONAL != 0))
        batches = table[fields.PRODUCER_ID, rows].tolist(), table[fields.BASE_OFFSET, rows].tolist()
        table[fields.KEPT, rows] = [*map(self._outcomes.of_transactional, *batches)]

    def _is_torn_end(self, file: ReadableFile, position: int) -> bool:
        """Return whether the bytes from `position` on are a batch that is still being written, or was cut off by a crash."""
        part = self._part
        if not part.is_last or part.end != part.size:
            return False
        prefix = file.pread(min(HEADER_SIZE_UP_TO_MAGIC, part.size - position), position)
        if len(prefix) < HEADER_SIZE_UP_TO_MAGIC:
            return True
        size = int.from_bytes(prefix[8:12], "big", signed=True) + LOG_OVERHEAD
        return prefix[MAGIC] <= CURRENT_MAGIC and size > part.size - position

    # -- records -------------------------------------------------------------------------------------------------------

    def _arrow_of(self, rows: Rows, arrow: ArrowColumns, latest: LatestWindow | None) -> Iterator[pyarrow.RecordBatch]:
        chunk = RowSource(rows.position, np.asarray(rows.data, np.uint8), np.asarray(rows.rows, np.int64))
        for unpacked, first, end, size in self._groups(rows):
            table = chunk.rows[:, first:end]
            is_read = table[fields.STEP] == READ
            if is_read.any():
                # A record has at least seven bytes. This limits the memory that a forged record count can reserve.
                sizes = table[fields.PAYLOAD_END, is_read] - table[fields.PAYLOAD_START, is_read]
                counts = np.minimum(table[fields.RECORD_COUNT, is_read], sizes // fields.MIN_RECORD_BYTES)
                room = arrow.room(int(np.maximum(counts, 0).sum()), size)
                only = None if latest is None else _kept(latest, table[:, is_read])
                self._fill(rows, chunk, room, unpacked, (first, end), only, arrow)
                self._counters.records_walked += room.walked
                self._counters.records += room.count
                self._counters.bytes_copied += room.copied_bytes
                if room.count:
                    yield arrow.batch(room, chunk)
            for error in self._refused:
                yield arrow.corrupt(str(error), error.position)
            self._refused.clear()

    def _fill(
        self,
        rows: Rows,
        chunk: RowSource,
        room: ColumnBuffers,
        unpacked: memoryview,
        span: tuple[int, int],
        only: NDArray[np.int64] | None,
        arrow: ArrowColumns,
    ) -> None:
        row, end = span
        while row < end:
            fault, row = room.fill(
                chunk, np.asarray(unpacked, np.uint8), row, end, READ, self._bounds, only, arrow.want
            )
            if fault != fields.NO_FAULT:
                self._refuse(rows, row, self.fault(rows, row).reason)
                row += 1

    def _groups(self, rows: Rows) -> Iterator[tuple[memoryview, int, int, int]]:
        """Check and unpack the batches to read. Yield groups: (unpacked bytes, first row, end row, size of their records)."""
        table = np.asarray(rows.rows, np.int64)
        self._check(rows)
        self._unpacker.clear()
        if not (rows.together & (fields.CODEC_MASK | fields.LEGACY) or self._needles):
            is_read = table[fields.STEP, : rows.count] != _SKIP
            sizes = table[fields.PAYLOAD_END, : rows.count] - table[fields.PAYLOAD_START, : rows.count]
            size = int(sizes[is_read].sum())
            self._counters.batches_decoded += int(np.count_nonzero(is_read))
            self._counters.bytes_decoded += size
            yield self._unpacker.buffer, 0, rows.count, size
            return
        first = size = 0
        for row in np.flatnonzero(np.asarray(rows.column(fields.STEP)) != _SKIP).tolist():
            try:
                self._unpack(rows, row)
            except CorruptBatch as error:
                self._refuse(rows, row, error.reason)
                continue
            if self._needles and not self._may_hold(rows, row):
                table[fields.STEP, row] = _SKIP
                continue
            size += int(table[fields.PAYLOAD_END, row] - table[fields.PAYLOAD_START, row])
            self._counters.batches_decoded += 1
            if size >= GROUP_BYTES:
                self._counters.bytes_decoded += size
                yield self._unpacker.buffer, first, row + 1, size
                self._unpacker.clear()
                first, size = row + 1, 0
        self._counters.bytes_decoded += size
        yield self._unpacker.buffer, first, rows.count, size

    def _may_hold(self, rows: Rows, row: int) -> bool:
        """Return whether the records of a batch contain all the bytes searched for."""
        table = rows.rows
        source = self._unpacker.buffer if table[fields.IS_UNPACKED, row] else rows.data
        payload = source[int(table[fields.PAYLOAD_START, row]) : int(table[fields.PAYLOAD_END, row])].tobytes()
        return all(needle in payload for needle in self._needles)

    def _check(self, rows: Rows) -> None:
        """Check the checksums and record counts of the batches to read."""
        table = rows.rows
        row = 0
        while (row := find_bad_crc(rows.data, table, row, rows.count, READ)) >= 0:
            self._refuse(rows, row, "the batch's CRC is wrong")
        for row in rows.with_step(_CONVERT):
            batch = self._bytes_of(rows, row)
            if zlib.crc32(batch[MAGIC:]) != int.from_bytes(batch[LOG_OVERHEAD:MAGIC], "big"):
                self._refuse(rows, row, "the batch's CRC is wrong")
        for row in np.flatnonzero(np.asarray(rows.column(fields.RECORD_COUNT)) < 0).tolist():
            if table[fields.STEP, row] == READ:
                self._refuse(rows, row, f"record count is {table[fields.RECORD_COUNT, row]}")

    def _unpack(self, rows: Rows, row: int) -> None:
        """Prepare the records of a batch for the kernel."""
        table, unpacker = rows.rows, self._unpacker
        codec = int(table[fields.ATTRIBUTES, row]) & fields.CODEC_MASK
        if table[fields.STEP, row] == _CONVERT:
            records = list(iter_records(self._bytes_of(rows, row)))
            start, end = unpacker.append(build_batch(records)[HEADER_SIZE:])
            table[fields.BASE_OFFSET, row] = records[0].offset
            table[fields.BASE_TIMESTAMP, row] = records[0].timestamp
            table[fields.STEP, row] = READ
        elif codec:
            payload = rows.data[int(table[fields.PAYLOAD_START, row]) : int(table[fields.PAYLOAD_END, row])]
            start, end = unpacker.unpack(codec, payload, MAX_BATCH_BYTES)
        else:
            return
        table[fields.IS_UNPACKED, row] = 1
        table[fields.PAYLOAD_START, row] = start
        table[fields.PAYLOAD_END, row] = end

    def _refuse(self, rows: Rows, row: int, reason: str) -> None:
        """Skip a batch and record the reason; in mode FAILFAST raise CorruptLog."""
        error = CorruptLog(str(self._part.location), rows.position + int(rows.rows[fields.POSITION, row]), reason)
        if not self._options.is_permissive:
            raise error
        rows.rows[fields.STEP, row] = _SKIP
        rows.rows[fields.RECORD_COUNT, row] = 0
        self._refused.append(error)

    def _bytes_of(self, rows: Rows, row: int) -> bytes:
        start = int(rows.rows[fields.POSITION, row])
        return rows.data[start : start + int(rows.rows[fields.SIZE, row])].tobytes()


LatestWindow: TypeAlias = Callable[[int, int], "Offsets"]
"""Takes a first and a last offset. Returns all kept offsets between them, ascending, and possibly some outside this range."""


def bounds_array(bounds: FilterBounds) -> NDArray[np.int64]:
    """Return bounds in the kernel's layout."""
    found = np.empty(BOUNDS, np.int64)
    found[MIN_OFFSET] = bounds.min_offset
    found[MAX_OFFSET] = bounds.max_offset
    found[MIN_TIMESTAMP] = bounds.min_timestamp_ms
    found[MAX_TIMESTAMP] = bounds.max_timestamp_ms
    return found


def _kept(latest: LatestWindow, table: NDArray[np.int64]) -> NDArray[np.int64]:
    first, last = int(table[fields.BASE_OFFSET].min()), int(table[fields.LAST_OFFSET].max())
    kept = np.asarray(latest(first, last), np.int64)
    return np.ascontiguousarray(kept[np.searchsorted(kept, first) : np.searchsorted(kept, last, side="right")])
