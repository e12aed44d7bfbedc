"""Reads segments as chunks of parsed batches.

Both the map and the rewrite need the dirty segments. Within a memory limit, the chunks that were read for the map are kept for
the rewrite, so that a small round reads them only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.plain_batches import BATCH_BYTES, PlainRun, read_run
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.cleaner.segments.strict_reader import check_order, checked, parsed_chunks
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.cleaner.engines.plain_batches import PlainBatch
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.engine_limits import EngineLimits
    from diamant.cleaner.rules.plan import SegmentPlan
    from diamant.protocol.batches.header import BatchHeader
    from diamant.storage.env.env import File


class ParsedChunk(NamedTuple):
    """A part of a segment that consists of whole batches."""

    path: str
    position: int
    """Position of the first batch in the segment."""
    data: bytes
    """The batches, possibly followed by a part of the next one."""
    entries: list[PlainRun | ChunkBatch]
    size: int
    """Size of the whole batches, in bytes."""
    memory_bytes: int
    """Upper bound on the memory that the chunk takes."""


class ParsedChunks:
    """Reads and keeps the chunks of one round. Memory: `parsed_bytes` for the kept chunks, and the same for the current one."""

    def __init__(self, work: RoundWork) -> None:
        self.payloads = SmallPayloads()
        self._work = work
        self._room = work.limits.parsed_bytes
        """Memory left for further chunks, in bytes."""
        self._kept: dict[int, list[ParsedChunk]] = {}
        """Maps the base offset of each segment that was read as a whole to its chunks."""

    def read(self, segment: SegmentPlan, position: int) -> Iterator[ParsedChunk]:
        """Yield the chunks of a segment from a byte position on. Raises CorruptLog, OSError."""
        kept: list[ParsedChunk] = []
        room = self._room if position == 0 else -1
        for chunk in self._parse(segment, position):
            yield chunk
            room -= chunk.memory_bytes
            if room >= 0:
                kept.append(chunk)
            else:
                kept.clear()
        if room >= 0:
            self._kept[segment.base_offset], self._room = kept, room

    def take(self, segment: SegmentPlan) -> Iterable[ParsedChunk]:
        """Return the chunks of a whole segment, and stop keeping them. Raises CorruptLog, OSError."""
        kept = self._kept.pop(segment.base_offset, None)
        return self._parse(segment, 0) if kept is None else kept

    def single(self, chunk: ParsedChunk, batch: PlainBatch) -> ChunkBatch:
        """Return a batch of a run as a `ChunkBatch`, for code that handles batches one by one."""
        at = batch[0]
        header = parse_header(chunk.data, at)
        return _single(chunk.path, chunk.position, chunk.data, at, header, self.payloads, self._work.limits)

    def _parse(self, segment: SegmentPlan, position: int) -> Iterator[ParsedChunk]:
        work = self._work
        file = work.env.open(work.log_path(segment), read_only=True)
        try:
            parse_ = partial(parse, payloads=self.payloads, limits=work.limits)
            last_offset = -1
            for chunk in parsed_chunks(file, position, segment.size, work.plan.io_buffer_bytes, parse_):
                last_offset = _checked_order(chunk, last_offset)
                yield chunk
        finally:
            file.close()


def _checked_order(chunk: ParsedChunk, last_offset: int) -> int:
    """Return the last offset of a chunk. Raises CorruptLog unless its offsets ascend and are greater than `last_offset`."""
    for entry in chunk.entries:
        if isinstance(entry, PlainRun):
            # Offsets ascend within a run, so checking the first and the last one is enough.
            at = entry.batches[0][0]
            offsets = parse_header(chunk.data, at).base_offset, entry.batches[-1][4]
        else:
            at, offsets = entry.position - chunk.position, (entry.header.base_offset, entry.header.last_offset)
        check_order(chunk.path, chunk.position + at, offsets, last_offset)
        last_offset = offsets[1]
    return last_offset


def parse(file: File, position: int, data: bytes, payloads: SmallPayloads, limits: EngineLimits) -> ParsedChunk:
    """Return the whole batches in `data`, which was read at `position` of a segment's file. Raises CorruptLog like `read_chunks`.

    Plain batches are parsed into runs until these take `parsed_bytes` of memory.
    """
    room = limits.parsed_bytes
    entries: list[PlainRun | ChunkBatch] = []
    at, memory_bytes = 0, len(data)
    while True:
        run = read_run(data, at, payloads, room, limits.record_bytes)
        if run.batches:
            entries.append(run)
            room -= run.memory_bytes
            memory_bytes += run.memory_bytes
            at = run.end
        header = _header(file, position, data, at)
        if header is None:
            break
        entries.append(_single(file.path, position, data, at, header, payloads, limits))
        memory_bytes += BATCH_BYTES
        at += header.size
    return ParsedChunk(file.path, position, data, entries, at, memory_bytes)


def _single(
    path: str,
    position: int,
    data: bytes,
    at: int,
    header: BatchHeader,
    payloads: SmallPayloads,
    limits: EngineLimits,
) -> ChunkBatch:
    return ChunkBatch(path, position, data, at, header, payloads, limits.batch_bytes, limits.record_bytes)


def _header(file: File, position: int, data: bytes, at: int) -> BatchHeader | None:
    """Return the header of the batch, of any magic, at `at` in `data`; None if it is incomplete."""
    try:
        for _, header in iter_headers(data, at):
            return checked(header, at)
    except CorruptBatch as error:
        raise CorruptLog(file.path, position + error.position, error.reason) from error
    return None
