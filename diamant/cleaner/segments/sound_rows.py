"""Reads the sound parts of a segment for kernels, and leaves the others to the tolerant reader.

Sound parts come as rows: batches of magic 2 with the right checksum, whose offsets lie above those before, decompressed on
demand. Old formats and odd batches come one by one from the reader that says what is wrong. Without kernels all batches do.

Memory: as `row_reader` and `tolerant_reader`, and 1 MiB of decompressed records or those of one batch.
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
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import CURRENT_MAGIC, BatchHeader, Record, parse_header
from diamant.protocol.batches.records import iter_payload
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env, File

if TYPE_CHECKING:
    from diamant.cleaner.segments.row_reader import Rows


@dataclass(frozen=True, slots=True)
class SoundRows:
    """Batches in a row, for kernels. Overwritten by what is read next."""

    chunk: Rows
    first: int
    """Row of the first one."""
    end: int
    unpacked: memoryview
    """Where kernels find the records of rows that are marked so."""

    @property
    def last_offset(self) -> int:
        """Of the last batch."""
        return self.chunk.rows[fields.LAST_OFFSET, self.end - 1]

    def below(self, offset: int) -> SoundRows:
        """Return the batches that begin below an offset."""
        bases = self.chunk.column(fields.BASE_OFFSET)
        return replace(self, end=bisect_left(bases, offset, self.first, self.end))

    def with_offset(self, offset: int) -> range:
        """Return the row of the batch that covers an offset, if there is one."""
        lasts = self.chunk.column(fields.LAST_OFFSET)
        row = bisect_left(lasts, offset, self.first, self.end)
        is_there = row < self.end and self.chunk.rows[fields.BASE_OFFSET, row] <= offset
        return range(row, row + is_there)

    def with_attributes(self, bits: int) -> Iterator[int]:
        """Yield the rows of batches with one of these bits in their attributes."""
        return self.chunk.with_attributes(bits, self.first, self.end)

    def decide(self, outcome: Callable[[BatchHeader], int]) -> None:
        """Set STEP of each row to what became of its batch, 0 unless it is transactional data."""
        for row in self.with_attributes(fields.TRANSACTIONAL):
            header = self.header(row)
            self.chunk.rows[fields.STEP, row] = 0 if header.is_control else outcome(header)

    def header(self, row: int) -> BatchHeader:
        """Return the header of a row's batch."""
        return parse_header(self.chunk.data, self.chunk.rows[fields.POSITION, row])

    def position(self, row: int) -> int:
        """Return where a row's batch begins in the segment."""
        return self.chunk.position + self.chunk.rows[fields.POSITION, row]

    def batch(self, row: int) -> Batch:
        """Return the batch of a row, in memory of its own."""
        at, size = self.chunk.rows[fields.POSITION, row], self.chunk.rows[fields.SIZE, row]
        return Batch(self.position(row), self.header(row), True, bytes(self.chunk.data[at : at + size]), 0)

    def record(self, row: int, start: int, end: int) -> Record:
        """Return the record in these bytes of a row's payload. CorruptBatch."""
        data = self.unpacked if self.chunk.rows[fields.IS_UNPACKED, row] else self.chunk.data
        [record] = iter_payload(bytes(data[start:end]), self.header(row)._replace(record_count=1))
        return record


Piece: TypeAlias = SoundRows | Batch
"""What is read of a segment at a time."""


class PieceReader:
    """Owned by one thread; one segment at a time."""

    def __init__(
        self,
        *,
        with_records: bool = True,
        is_compiled: bool = ARE_COMPILED,
        limits: EngineLimits = ENGINE_LIMITS,
    ) -> None:
        """`with_records`: data is decompressed for kernels."""
        self._with_records = with_records
        self._is_compiled = is_compiled
        self._limits = limits
        self._rows: _RowSource | None = None

    def pieces_of(
        self, env: Env, segment: SegmentFile, report: Report, advance: Advance | None = None
    ) -> Iterator[Piece]:
        """Yield the batches of a segment; reports as of `iter_batches`."""
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
        """Yield the batches in the first `size` bytes of a segment's open file; batches and reports as of `iter_open_batches`."""
        if not self._is_compiled:
            yield from iter_open_batches(file, segment, size, report, advance, self._limits.read_bytes)
            return
        if self._rows is None:
            self._rows = _RowSource(self._limits, with_records=self._with_records)
        yield from self._rows.pieces(file, Walk(file, segment, size, report, advance, self._limits.read_bytes), size)


class _RowSource:
    """Buffers, and the kernels that fill them."""

    def __init__(self, limits: EngineLimits, *, with_records: bool) -> None:
        from diamant.cleaner.segments.payload_buffer import Unpacker
        from diamant.cleaner.segments.row_reader import ChunkReader

        self._limits = limits
        self._with_records = with_records
        self._reader = ChunkReader(limits.read_bytes)
        self._unpacker = Unpacker()

    def pieces(self, file: File, walk: Walk, size: int) -> Iterator[Piece]:
        """Yield what is left of a segment."""
        while walk.position < size:
            walk.count(walk.position)
            # Of a larger batch the plain reader says that it is too large.
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
                if walk.position > stop:  # The file was cut while it was read.
                    return
        walk.position = chunk.position + chunk.size

    def _ready(self, chunk: Rows, first: int, end: int) -> Iterator[Piece]:
        """Yield rows, after as many as fit the buffer were decompressed; those that cannot be are left to the plain reader."""
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
        """Decompress the records of a row, if there are any; False if they cannot be."""
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
