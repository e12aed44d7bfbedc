"""Reads a segment into one buffer, chunk after chunk of whole batches, with a row for the kernels for each batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.kernels.batches import read_headers
from diamant.kernels.constants.fields import FIELDS, NO_FAULT
from diamant.protocol.batches.header import HEADER_SIZE, HEADER_SIZE_UP_TO_MAGIC, LOG_OVERHEAD
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.storage.env.env import File


@dataclass(frozen=True, slots=True)
class Rows:
    """Whole batches in a row."""

    path: str
    """The segment's file."""
    position: int
    """Start of the first one in the segment."""
    size: int
    """Bytes of the whole batches."""
    data: NDArray[np.uint8]
    """The reader's buffer."""
    rows: NDArray[np.int64]
    """int64[FIELDS, n], see `kernels.fields`; positions count from the start of `data`."""
    count: int
    """Rows in use, one at least."""
    together: int
    """The attributes of all batches, and LEGACY."""
    fault: int = NO_FAULT
    """BAD_HEADER if what follows is no batch."""


class ChunkReader:
    """Memory: the buffer, `read_bytes` or one larger batch, and 200 bytes for each batch of at least 61 bytes that fits it."""

    def __init__(self, read_bytes: int = ENGINE_LIMITS.read_bytes) -> None:
        self._buffer = np.empty(read_bytes, np.uint8)
        self._rows = np.zeros((FIELDS, read_bytes // HEADER_SIZE + 1), np.int64)

    def chunks(self, file: File, position: int, end: int) -> Iterator[Rows]:
        """Yield the batches of a segment from byte `position`, the start of one, up to `end`, the segment's size.

        What is yielded is overwritten by the next. CorruptLog as `strict_reader.read_chunks` has it.
        """
        while position < end:
            chunk = self.read(file, position, end)
            if chunk.fault != NO_FAULT or not chunk.count:
                _fail(file, position, end)
            yield chunk
            position += chunk.size

    def read(self, file: File, position: int, end: int) -> Rows:
        """Return the whole batches from byte `position` on, as many as fit the buffer, one at least; none if there is none."""
        chunk = self._read(file, position, self._buffer[: end - position])
        if chunk.fault != NO_FAULT or chunk.count or not (size := _size_of_one(file, position, end)):
            return chunk
        return self._read(file, position, np.empty(size, np.uint8))

    def _read(self, file: File, position: int, data: NDArray[np.uint8]) -> Rows:
        size = _read_into(file, position, data)
        fault, count, used, together = read_headers(data, 0, size, self._rows)
        return Rows(file.path, position, used, data, self._rows, count, together, fault)


def _size_of_one(file: File, position: int, end: int) -> int:
    """Return the size of the batch at `position`; 0 if it cannot be one."""
    prefix = file.pread(HEADER_SIZE_UP_TO_MAGIC, position)
    size = int.from_bytes(prefix[8:12], "big", signed=True) + LOG_OVERHEAD
    is_sound = len(prefix) == HEADER_SIZE_UP_TO_MAGIC <= size <= end - position
    return size if is_sound else 0


def _fail(file: File, position: int, end: int) -> NoReturn:
    """Raise what the plain reader raises here."""
    for _ in read_chunks(file, position, end, ENGINE_LIMITS.read_bytes):
        pass
    raise CorruptLog(file.path, position, "no batch can be read here")


def _read_into(file: File, position: int, target: NDArray[np.uint8]) -> int:
    """Fill `target` from the file, as far as it goes; return how far."""
    fd = file.fileno()
    if fd is None:
        data = file.pread(len(target), position)
        target[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)
    view = target.data
    at = 0
    while at < len(view):
        count = os.preadv(fd, (view[at:],), position + at)
        if not count:
            break
        at += count
    return at
