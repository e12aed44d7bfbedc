"""Reads the sound parts of a segment for kernels, and leaves other parts to the tolerant reader.

Sound batches (magic 2, a valid checksum, ascending offsets) are yielded as rows, and decompressed on request. The tolerant reader
yields other batches one by one, and reports problems; if kernels are not compiled, it yields all batches.

Memory: that of `row_reader` and `tolerant_reader`, and 1 MiB of decompressed records, or one larger batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.segments.tolerant_reader import (
    Advance,
    Batch,
    Problem,
    Report,
    SegmentFile,
    Walk,
    iter_open_batches,
)
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants import fields
from diamant.protocol.batches.batch_records import iter_payload
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import CURRENT_MAGIC, MAX_OFFSET, BatchHeader, Record, parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env, File

if TYPE_CHECKING:
    from diamant.cleaner.segments.row_reader import Rows


@dataclass(frozen=True, slots=True)
class SoundRows:
    """Adjacent batches, as rows for kernels. The next read overwrites them."""

    chunk: Rows
    first: int
    """Row of the first batch."""
    end: int
    unpacked: memoryview
    """The decompressed records of the rows with IS_UNPACKED, for kernels."""

    @property
    def last_offset(self) -> int:
        """Last offset of the last batch."""
        return self.chunk.rows[fields.LAST_OFFSET, self.end - 1]

    def below(self, offset: int) -> SoundRows:
        """Return the batches that begin below an offset."""
        bases = self.chunk.column(fields.BASE_OFFSET)
        return replace(self, end=bisect_left(bases, offset, self.first, self.end))

    def with_offset(self, offset: int) -> range:
        """Return a range with the row of the batch that covers an offset; an empty range if no batch does."""
        lasts = self.chunk.column(fields.LAST_OFFSET)
        row = bisect_left(lasts, offset, self.first, self.end)
        is_there = row < self.end and self.chunk.rows[fields.BASE_OFFSET, row] <= offset
        return range(row, row + is_there)

    def with_attributes(self, bits: int) -> Iterator[int]:
        """Yield the rows of batches that have at least one of these bits in their attributes."""
        return self.chunk.with_attributes(bits, self.first, self.end)

    def decide(self, outcome: Callable[[BatchHeader], int]) -> None:
        """Set the STEP of each transactional data batch to the outcome of its transaction; other rows keep STEP 0."""
        for row in self.with_attributes(fields.TRANSACTIONAL):
            header = self.header(row)
            self.chunk.rows[fields.STEP, row] = 0 if header.is_control else outcome(header)

    def header(self, row: int) -> BatchHeader:
        """Return the header of a row's batch."""
        return parse_header(self.chunk.data, self.chunk.rows[fields.POSITION, row])

    def position(self, row: int) -> int:
        """Return the position of a row's batch in the segment."""
        return self.chunk.position + self.chunk.rows[fields.POSITION, row]

    def batch(self, row: int) -> Batch:
        """Return a copy of the batch of a row."""
        at, size = self.chunk.rows[fields.POSITION, row], self.chunk.rows[fields.SIZE, row]
        return Batch(self.position(row), self.header(row), True, bytes(self.chunk.data[at : at + size]), 0)

    def record(self, row: int, start: int, end: int) -> Record:
        """Return the record in bytes `start` to `end` of a row's payload. Raises CorruptBatch."""
        data = self.unpacked if self.chunk.rows[fields.IS_UNPACKED, row] else self.chunk.data
        [record] = iter_payload(bytes(data[start:end]), self.header(row)._replace(record_count=1))
        return record


Piece: TypeAlias = SoundRows | Batch
"""The unit in which a segment is read."""


class PieceReader:
    """Reads the pieces of one segment at a time. Owned by one thread."""

    def __init__(
        self,
        *,
        with_records: bool = True,
        is_compiled: bool = ARE_COMPILED,
        limits: EngineLimits = ENGINE_LIMITS,
    ) -> None:
        """`with_records`: the records of rows are decompressed."""
        self._with_records = with_records
        self._is_compiled = is_compiled
        self._limits = limits
        self._rows: _RowSource | None = None

    def pieces_of(
        self, env: Env, segment: SegmentFile, report: Report, advance: Advance | None = None
    ) -> Iterator[Piece]:
        """Yield the batches of a segment. Problems are reported as by `iter_batches`."""
        try:
            file = env.open(segment.path, read_only=True)
        except OSError as error:
            report(Problem(segment.path, None, f"cannot be read: {error.strerror or error}"))
            return
        try:
            yield from self.pieces(file, segment, file.size(), report, advance)
        finally:
            file.close()

    def pieces(
        self, file: File, segment: SegmentFile, size: int, report: Report, advance: Advance | None = None
    ) -> Iterator[Piece]:
        """Yield the batches in the first `size` bytes of an open file. Problems are reported as by `iter_open_batches`."""
        if not self._is_compiled:
            yield from iter_open_batches(file, segment, size, report, advance, self._limits.read_bytes)
            return
        if self._rows is None:
            self._rows = _RowSource(self._limits, with_records=self._with_records)
        yield from self._rows.pieces(file, Walk(file, segment, size, report, advance, self._limits.read_bytes), size)


class _RowSource:
    """Reads rows with kernels into buffers that are reused."""

    def __init__(self, limits: EngineLimits, *, with_records: bool) -> None:
        from diamant.cleaner.segments.payload_buffer import Unpacker
        from diamant.cleaner.segments.row_reader import ChunkReader

        self._limits = limits
        self._with_records = with_records
        self._reader = ChunkReader(limits.read_bytes)
        self._unpacker = Unpacker()

    def pieces(self, file: File, walk: Walk, size: int) -> Iterator[Piece]:
        """Yield the batches of a segment from the position of `walk` on."""
        while walk.position < size:
            walk.count(walk.position)
            # A batch above the limit is left to the plain reader, which reports that it is too large.
            chunk = self._reader.read(file, walk.position, min(size, walk.position + MAX_BATCH_BYTES))
            if chunk.count:
                yield from self._pieces_of(chunk, walk)
            else:
                yield from walk.batches(walk.position + 1)
        walk.count(size)

    def _pieces_of(self, chunk: Rows, walk: Walk) -> Iterator[Piece]:
        from diamant.kernels.batches import end_of_sound

        rows = chunk.rows
        row = 0
        while row < chunk.count:
            first = row
            row, last_offset = end_of_sound(chunk.data, rows, first, chunk.count, walk.last_offset)
            if first < row and last_offset == MAX_OFFSET:
                row -= 1  # the plain reader reports the batch with this offset
                last_offset = rows[fields.LAST_OFFSET, row - 1] if first < row else walk.last_offset
            if first < row:
                walk.last_offset = last_offset
                yield from self._ready(chunk, first, row)
            if row < chunk.count:
                walk.position = chunk.position + rows[fields.POSITION, row]
                row += 1
                while row < chunk.count and rows[fields.MAGIC, row] < CURRENT_MAGIC:
                    row += 1
                stop = chunk.position + (chunk.size if row == chunk.count else rows[fields.POSITION, row])
                yield from walk.batches(stop)
                if walk.position > stop:  # The file was truncated while it was read.
                    return
        walk.position = chunk.position + chunk.size

    def _ready(self, chunk: Rows, first: int, end: int) -> Iterator[Piece]:
        """Decompress rows and yield them, as many at a time as fit the buffer. Batches that fail are yielded as copies."""
        unpacker = self._unpacker
        unpacker.clear()
        rows = SoundRows(chunk, first, end, unpacker.buffer)
        for row in rows.with_attributes(fields.CODEC_MASK) if self._with_records else ():
            is_sound = self._unpack(chunk, row)
            if is_sound and unpacker.at < self._limits.unpack_bytes:
                continue
            if first < row + is_sound:
                yield SoundRows(chunk, first, row + is_sound, unpacker.buffer)
            if not is_sound:
                yield rows.batch(row)
            unpacker.clear()
            first = row + 1
        if first < end:
            yield SoundRows(chunk, first, end, unpacker.buffer)

    def _unpack(self, chunk: Rows, row: int) -> bool:
        """Decompress the records of a row, if it has any. Return False if they cannot be decompressed."""
        rows = chunk.rows
        attributes = rows[fields.ATTRIBUTES, row]
        if attributes & fields.CONTROL or not rows[fields.RECORD_COUNT, row]:
            return True
        data = chunk.data[rows[fields.PAYLOAD_START, row] : rows[fields.PAYLOAD_END, row]]
        try:
            chunk.set_place(row, self._unpacker.unpack(attributes & fields.CODEC_MASK, data, MAX_BATCH_BYTES))
        except CorruptBatch:
            return False
        return True
