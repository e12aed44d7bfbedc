"""Reads a segment into one buffer in chunks of whole batches; each batch gets a row for the kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.kernels import in_large_pages, numbers
from diamant.kernels.batches import find_packed, next_with, next_with_step, read_headers
from diamant.kernels.constants.fields import FIELDS, IS_UNPACKED, NO_FAULT, PAYLOAD_END, PAYLOAD_START
from diamant.protocol.batches.header import HEADER_SIZE, HEADER_SIZE_UP_TO_MAGIC, LOG_OVERHEAD
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.storage.env.env import ReadableFile


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of adjacent whole batches, with a row of fields for each batch."""

    path: str
    """The segment's file."""
    position: int
    """Position of the first batch in the segment."""
    size: int
    """Total size of the batches in bytes."""
    data: memoryview
    """The reader's buffer, or a view of batches in memory."""
    rows: memoryview[int]
    """int64[FIELDS, n] as in `kernels.constants.fields`; positions count from the start of `data`."""
    count: int
    """Number of rows in use, at least one."""
    together: int
    """Bitwise OR of the attributes of all batches, and LEGACY if there are batches in old formats."""
    fault: int = NO_FAULT
    """BAD_HEADER if the bytes that follow are not a batch."""

    def column(self, field: int) -> memoryview[int]:
        """Return the values of one field, for all rows in use."""
        start = field * (self.rows.nbytes // (8 * FIELDS))
        return self.rows.cast("B").cast("q")[start : start + self.count]

    def with_attributes(self, bits: int, first: int = 0, end: int | None = None) -> Iterator[int]:
        """Yield the rows of batches that have at least one of these bits in their attributes."""
        if self.together & bits:
            row, end = first, self.count if end is None else end
            while (row := next_with(self.rows, row, end, bits)) < end:
                yield row
                row += 1

    def with_step(self, step: int, first: int = 0, end: int | None = None) -> Iterator[int]:
        """Yield the rows with this STEP. The caller may change STEP between rows."""
        row, end = first, self.count if end is None else end
        while (row := next_with_step(self.rows, row, end, step)) < end:
            yield row
            row += 1

    def packed(self, first: int, end: int, step: int, field: int) -> list[tuple[int, int, int, int]]:
        """Return (row, codec, `field`, the field after it) for each row with this STEP and compressed records."""
        found = numbers("q", end - first + 1, 4)
        count = find_packed(self.rows, first, end, step, field, found)
        flat = found.cast("B").cast("q")[: 4 * count].tolist()
        return [*zip(flat[0::4], flat[1::4], flat[2::4], flat[3::4], strict=True)]

    def places(self) -> tuple[memoryview[int], memoryview[int], memoryview[int]]:
        """Return the columns that `set_place` writes: IS_UNPACKED, PAYLOAD_START, PAYLOAD_END.

        Loops over many small batches write to these columns, which takes 60 ns for a row; `set_place` takes 180 ns, because it
        indexes a two-dimensional array three times.
        """
        return self.column(IS_UNPACKED), self.column(PAYLOAD_START), self.column(PAYLOAD_END)

    def set_place(self, row: int, place: tuple[int, int]) -> None:
        """Set the (start, end) of a row's unpacked records."""
        self.rows[IS_UNPACKED, row] = 1
        self.rows[PAYLOAD_START, row], self.rows[PAYLOAD_END, row] = place


class BatchesInMemory:
    """A `ReadableFile` of batches that are already in memory. Chunks are views of the batches, not copies."""

    def __init__(self, path: str, data: memoryview) -> None:
        self.path = path
        self.data = data

    def pread(self, count: int, position: int) -> bytes:
        """Return up to `count` bytes from `position` on."""
        return bytes(self.data[position : position + count])

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.data)

    def fileno(self) -> None:
        """Return None, because there is no descriptor."""

    def close(self) -> None:
        """Do nothing."""


class ChunkReader:
    """Reads chunks. Memory: `read_bytes` or one larger batch, and a row of 200 bytes for every 61 bytes of `read_bytes`."""

    def __init__(self, read_bytes: int = ENGINE_LIMITS.read_bytes) -> None:
        self._buffer = in_large_pages(numbers("B", read_bytes))
        self._rows = numbers("q", FIELDS, read_bytes // HEADER_SIZE + 1)

    def chunks(self, file: ReadableFile, position: int, end: int) -> Iterator[Rows]:
        """Yield a segment's batches in chunks, from byte `position`, where a batch starts, to byte `end`, the segment's size.

        Each chunk overwrites the previous one. Raises CorruptLog like `strict_reader.read_chunks`.
        """
        while position < end:
            chunk = self.read(file, position, end)
            if chunk.fault != NO_FAULT or not chunk.count:
                _fail(file, position, end)
            yield chunk
            position += chunk.size

    def read(self, file: ReadableFile, position: int, end: int) -> Rows:
        """Return the whole batches from byte `position` on that fit into the buffer; the first batch even if it does not fit."""
        chunk = self._read(file, position, self._buffer[: end - position])
        if chunk.fault != NO_FAULT or chunk.count or not (size := _size_of_one(file, position, end)):
            return chunk
        return self._read(file, position, numbers("B", size))

    def _read(self, file: ReadableFile, position: int, data: memoryview) -> Rows:
        if isinstance(file, BatchesInMemory):
            data = file.data[position : position + len(data)]
            size = len(data)
        else:
            size = _read_into(file, position, data)
        fault, count, used, together = read_headers(data, 0, size, self._rows)
        return Rows(file.path, position, used, data, self._rows, count, together, fault)


def _size_of_one(file: ReadableFile, position: int, end: int) -> int:
    """Return the size of the batch at `position`; 0 if the bytes there are not a batch."""
    prefix = file.pread(HEADER_SIZE_UP_TO_MAGIC, position)
    size = int.from_bytes(prefix[8:12], "big", signed=True) + LOG_OVERHEAD
    is_sound = len(prefix) == HEADER_SIZE_UP_TO_MAGIC <= size <= end - position
    return size if is_sound else 0


def _fail(file: ReadableFile, position: int, end: int) -> NoReturn:
    """Raise the error that the plain reader raises at this position."""
    for _ in read_chunks(file, position, end, ENGINE_LIMITS.read_bytes):
        pass
    raise CorruptLog(file.path, position, "no batch can be read here")


def _read_into(file: ReadableFile, position: int, target: memoryview) -> int:
    """Fill `target` from the file; return the number of bytes read, which is smaller at the end of the file."""
    fd = file.fileno()
    if fd is None:
        data = file.pread(len(target), position)
        target[: len(data)] = data
        return len(data)
    at = 0
    while at < len(target):
        count = os.preadv(fd, (target[at:],), position + at)
        if not count:
            break
        at += count
    return at
