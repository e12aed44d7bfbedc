"""Prepares the records of a chunk's rows for kernels: verifies and decompresses them, and converts them from old formats.

Memory: the chunk (`row_reader`), and `unpack_bytes` of decompressed records, or one larger batch of up to `batch_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.cleaner.segments.strict_reader import RecordsOutOfOrder, check_order
from diamant.kernels.batches import are_in_order, find_bad_crc
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import MAP
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import CURRENT_MAGIC, parse_header
from diamant.protocol.batches.legacy import parse_legacy_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.protocol.batches.header import BatchHeader
    from diamant.storage.env.env import Env

OLD_FORMAT = 2
"""A further STEP beside `tuples.SKIP` and `MAP`: the row must be converted from magic 0 or 1; then its STEP becomes MAP."""


class RowRecords:
    """Prepares the records of one chunk at a time. Owned by one thread."""

    def __init__(self, limits: EngineLimits = ENGINE_LIMITS, unpacker: Unpacker | None = None) -> None:
        self._limits = limits
        self._reader = ChunkReader(limits.read_bytes)
        self._unpacker = unpacker or Unpacker()

    @property
    def unpacked(self) -> memoryview:
        """The decompressed records, for kernels. Get the buffer again after each step of `ranges`, which may replace it."""
        return self._unpacker.buffer

    def chunks(self, env: Env, path: str, position: int, end: int) -> Iterator[Rows]:
        """Yield a segment's batches in chunks, from byte `position`, where a batch starts, to byte `end`, the segment's size.

        Each chunk overwrites the previous one. Raises OSError, and CorruptLog like `strict_reader.read_chunks` or if the
        offsets of batches do not ascend.
        """
        file = env.open(path, read_only=True)
        last_offset = -1
        try:
            for chunk in self._reader.chunks(file, position, end):
                self._read_old_headers(chunk)
                if not are_in_order(chunk.rows, chunk.count, last_offset):
                    _fail_order(chunk, last_offset)
                last_offset = chunk.rows[fields.LAST_OFFSET, chunk.count - 1]
                yield chunk
        finally:
            file.close()

    def ranges(self, chunk: Rows, first: int, end: int, step: int) -> Iterator[tuple[int, int]]:
        """Divide rows `first` to `end` into ranges. Yield each range once the records of its rows with `step` are ready."""
        unpacker = self._unpacker
        bad = find_bad_crc(chunk.data, chunk.rows, first, end, step)
        if bad >= 0:
            self.fail(chunk, bad)
        unpacker.clear()
        start = first
        if chunk.together & (fields.CODEC_MASK | fields.LEGACY):
            for stop in self._unpack_some(chunk, first, end, step):
                yield start, stop
                unpacker.clear()
                start = stop
        if start < end:
            yield start, end

    def batch(self, chunk: Rows, row: int) -> ChunkBatch:
        """Return the batch of a row, for code that handles batches one by one."""
        data, at = chunk.data, chunk.rows[fields.POSITION, row]
        header = parse_header(data, at) if chunk.rows[fields.MAGIC, row] == 2 else self._old_header(chunk, at)
        limits = self._limits
        return ChunkBatch(
            chunk.path,
            chunk.position,
            data,
            at,
            header,
            max_bytes=limits.batch_bytes,
            max_record_bytes=limits.record_bytes,
        )

    def fail(self, chunk: Rows, row: int) -> NoReturn:
        """Raise CorruptLog for the batch of a row. Reading its records one by one finds the reason."""
        batch = self.batch(chunk, row)
        batch.records()
        raise RecordsOutOfOrder(chunk.path, batch.position)

    def _old_header(self, chunk: Rows, at: int) -> BatchHeader:
        try:
            return parse_legacy_header(chunk.data, at)
        except CorruptBatch as error:
            raise CorruptLog(chunk.path, chunk.position + at, error.reason) from error

    def _read_old_headers(self, chunk: Rows) -> None:
        """Add offsets and record counts to the rows of batches of magic 0 and 1, which the kernel leaves out."""
        if not chunk.together & fields.LEGACY:
            return
        rows = chunk.rows
        for row, magic in enumerate(chunk.column(fields.MAGIC)):
            if magic < CURRENT_MAGIC:
                header = self._old_header(chunk, rows[fields.POSITION, row])
                rows[fields.BASE_OFFSET, row] = header.base_offset
                rows[fields.LAST_OFFSET, row] = header.last_offset
                rows[fields.RECORD_COUNT, row] = header.record_count

    def _unpack_some(self, chunk: Rows, first: int, end: int, step: int) -> Iterator[int]:
        """Decompress and convert records. Whenever the buffer is full, yield the number of the next row."""
        unpacker, limits, data = self._unpacker, self._limits, chunk.data
        found = chunk.packed(first, end, step, fields.PAYLOAD_START)
        if chunk.together & fields.LEGACY and step == MAP:
            found = sorted([*found, *((row, 0, 0, 0) for row in chunk.with_step(OLD_FORMAT, first, end))])
        is_unpacked, starts, ends = chunk.places()
        for row, codec, start, stop in found:
            if not codec:
                # A batch of an old format: its row has no attributes, and so no codec.
                chunk.set_place(row, self._convert(chunk, row))
            else:
                try:
                    starts[row], ends[row] = unpacker.unpack(codec, data[start:stop], limits.batch_bytes)
                    is_unpacked[row] = 1
                    if ends[row] - starts[row] > limits.record_bytes:
                        self.batch(chunk, row).records()
                except CorruptBatch as error:
                    raise CorruptLog(
                        chunk.path, chunk.position + chunk.rows[fields.POSITION, row], error.reason
                    ) from error
            if unpacker.at >= limits.unpack_bytes:
                yield row + 1

    def _convert(self, chunk: Rows, row: int) -> tuple[int, int]:
        """Convert a batch of magic 0 or 1 to the format that kernels read."""
        rows = chunk.rows
        records = self.batch(chunk, row).records()
        plain = build_batch(records)
        rows[fields.STEP, row] = MAP
        rows[fields.BASE_OFFSET, row] = records[0].offset if records else 0
        rows[fields.RECORD_COUNT, row] = len(records)
        return self._unpacker.append(memoryview(plain)[fields.HEADER_BYTES :])


def _fail_order(chunk: Rows, last_offset: int) -> NoReturn:
    """Raise CorruptLog for the first batch in the chunk whose offsets are not above `last_offset` and all earlier offsets."""
    rows = zip(*map(chunk.column, (fields.POSITION, fields.BASE_OFFSET, fields.LAST_OFFSET)), strict=True)
    for at, first, last in rows:
        check_order(chunk.path, chunk.position + at, (first, last), last_offset)
        last_offset = last
    raise AssertionError("the kernel found batches out of order")
