"""Reads a segment in chunks of whole batches. Memory: the buffer, or less than twice the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import HEADER_SIZE_UP_TO_MAGIC, LOG_OVERHEAD, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import ReadableFile
from diamant.storage.errors import CorruptLog


class RecordsOutOfOrder(CorruptLog):
    """The offsets of a batch's records do not ascend, or lie outside the batch's range of offsets."""

    def __init__(self, path: str, position: int, consequence: str = "") -> None:
        super().__init__(
            path, position, f"the offsets of the records do not ascend up to the batch's last{consequence}"
        )


class Chunk(NamedTuple):
    """Adjacent whole batches."""

    path: str
    """The segment's file."""
    position: int
    """Position of the first batch in the segment."""
    data: bytes
    """The batches, possibly followed by a part of the next batch."""
    headers: list[tuple[int, BatchHeader]]
    """Position in `data` and header of each batch; at least one."""
    size: int
    """Total size of the batches in bytes."""

    def batches(self, max_bytes: int = MAX_BATCH_BYTES) -> Iterator[ChunkBatch]:
        """Yield the batches one by one. Each may decompress to at most `max_bytes`."""
        for at, header in self.headers:
            yield ChunkBatch(self.path, self.position, self.data, at, header, max_bytes=max_bytes)


class _Sized(Protocol):
    @property
    def size(self) -> int:
        """Total size of the whole batches in bytes; 0 if there are none."""
        ...


ChunkT = TypeVar("ChunkT", bound=_Sized)


def read_chunks(file: ReadableFile, position: int, end: int, buffer_bytes: int) -> Iterator[Chunk]:
    """Yield a segment's batches in chunks, from byte `position`, where a batch starts, to byte `end`, the segment's size.

    As in Kafka, the buffer doubles until a batch fits, and keeps that size until the end of the segment. Raises CorruptLog if the
    bytes are not a batch, or if the last batch goes beyond `end`: the cleaner must not mistake a damaged segment for a short one.
    CRCs are not checked.
    """
    return parsed_chunks(file, position, end, buffer_bytes, _parse)


def parsed_chunks(
    file: ReadableFile, position: int, end: int, buffer_bytes: int, parse: Callable[[ReadableFile, int, bytes], ChunkT]
) -> Iterator[ChunkT]:
    """Read a segment like `read_chunks`, but yield what `parse` returns for the file, a position and the bytes there."""
    while position < end:
        chunk = parse(file, position, file.pread(min(buffer_bytes, end - position), position))
        if chunk.size:
            yield chunk
            position += chunk.size
            continue
        size = _batch_size(file, position, end)
        if size <= buffer_bytes:
            raise CorruptLog(file.path, position, f"the {size} bytes here are not a whole batch")
        while buffer_bytes < size:
            buffer_bytes *= 2


def _parse(file: ReadableFile, position: int, data: bytes) -> Chunk:
    try:
        headers = [(at, checked(header, at)) for at, header in iter_headers(data)]
    except CorruptBatch as error:
        raise CorruptLog(file.path, position + error.position, error.reason) from error
    size = headers[-1][0] + headers[-1][1].size if headers else 0
    return Chunk(file.path, position, data, headers, size)


def checked(header: BatchHeader, at: int) -> BatchHeader:
    """Return `header`. Raises CorruptBatch if its last offset exceeds 64 bits; the kernels also refuse that."""
    if not -(1 << 63) <= header.last_offset < 1 << 63:
        raise CorruptBatch(at, f"the batch's last offset {header.last_offset} exceeds 64 bits")
    return header


def check_order(path: str, position: int, offsets: tuple[int, int], last_offset: int) -> None:
    """Raise CorruptLog unless a batch's first offset is above `last_offset` and not above its last offset.

    The checksum does not show this, because it does not cover the base offset.
    """
    first, last = offsets
    if not last_offset < first <= last:
        reason = f"the offsets of the batches do not ascend: {first} to {last} after {last_offset}"
        raise CorruptLog(path, position, reason)


def _batch_size(file: ReadableFile, position: int, end: int) -> int:
    prefix = file.pread(HEADER_SIZE_UP_TO_MAGIC, position)
    if len(prefix) < HEADER_SIZE_UP_TO_MAGIC or end - position < HEADER_SIZE_UP_TO_MAGIC:
        raise CorruptLog(file.path, position, f"{end - position} bytes at the end are not a batch")
    size = int.from_bytes(prefix[8:12], "big", signed=True) + LOG_OVERHEAD
    if size > end - position:
        raise CorruptLog(file.path, position, f"a batch has {size} bytes, only {end - position} are left")
    return size
