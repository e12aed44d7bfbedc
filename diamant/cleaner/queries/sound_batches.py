"""Reads the sound batches in a part of a segment, skips damage, and reports it between the sound batches.

A batch is damaged if its frame, its checksum or its records are wrong. After a wrong frame or checksum, the position of the next
batch is unknown: it is found by the first bytes of its base offset, and confirmed by its checksum.

Memory: a window of `READ_BYTES`, or one batch if that is larger, and `SEARCH_BYTES` while searching for the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os.path import basename
from struct import Struct
from typing import NamedTuple, TypeVar

from diamant.cleaner.segments.tolerant_reader import Batch, Problem, SegmentFile, Walk
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD,
    MAGIC,
    MIN_ENTRY_LENGTH,
)
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import File
from diamant.storage.log.log import Log
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.segment import scan_at_entry

READ_BYTES = 1024 * 1024
SEARCH_BYTES = 1024 * 1024
MAX_ENTRIES = 32
"""Maximum number of index entries to try before a segment is read from its start."""

_OFFSET = Struct(">q")
_LENGTH = Struct(">i")

T = TypeVar("T")


class Damage(NamedTuple):
    """A range of offsets that cannot be read."""

    path: str
    position: int
    """Position of the first damaged byte."""
    first_offset: int
    next_offset: int
    """The first sound offset after the damage, or the end of the part."""
    reason: str

    @property
    def text(self) -> str:
        """The damage in words."""
        last = self.next_offset - 1
        which = f"offset {last:,}" if last <= self.first_offset else f"offsets {self.first_offset:,} to {last:,}"
        return f"{which} cannot be read, consumers stop here: {self.reason} ({basename(self.path)} at byte {self.position:,})"


class SegmentPart(NamedTuple):
    """A part of a segment: the batches that begin at byte `start` or later, and before byte `stop`."""

    file: File
    segment: SegmentFile
    start: int
    """Position at which a batch begins."""
    stop: int
    first_offset: int
    """Lower bound of the offsets in the part."""
    end_offset: int
    """Exclusive end of the offsets in the part."""


class SegmentPlace(NamedTuple):
    """A snapshot of a segment. Any thread may read the first `size` bytes of the segment."""

    file: File
    offsets: OffsetIndex
    segment: SegmentFile
    end_offset: int

    @classmethod
    def of(cls, log: Log, index: int) -> SegmentPlace:
        """Return a snapshot of a log's segment. Only the log's owner may call this."""
        segment = log.segments[index]
        end_offset = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else log.log_end_offset
        found = SegmentFile(segment.path, segment.base_offset, segment.size)
        return cls(segment.file, segment.offset_index, found, end_offset)

    def from_offset(self, offset: int) -> SegmentPart:
        """Return the part from a batch at or below an offset to the end of the segment."""
        return self._part(*self.offsets.lookup(offset), self.segment.size)

    def before(self, stop: int, count: int, end_offset: int) -> SegmentPart:
        """Return the part of about `count` bytes that ends at byte `stop`, where the batch of `end_offset` begins."""
        offset, position = self.offsets.lookup_position(max(0, stop - count))
        return self._part(offset, position, stop)._replace(end_offset=end_offset)

    def _part(self, offset: int, position: int, stop: int) -> SegmentPart:
        first, size = self.segment.base_offset, self.segment.size
        for _ in range(MAX_ENTRIES):
            headers = scan_at_entry(self.file, size, offset, position) if 0 < position < stop else None
            if headers is not None:
                return SegmentPart(
                    self.file, self.segment, position, stop, next(headers)[1].base_offset, self.end_offset
                )
            if position <= 0:
                break
            offset, position = self.offsets.lookup(offset - 1)  # the entry is wrong, or its batch is damaged
        return SegmentPart(self.file, self.segment, 0, stop, first, self.end_offset)


def sound_batches(part: SegmentPart, decode: Callable[[Batch], T]) -> Iterator[tuple[Batch, T] | Damage]:
    """Yield each sound batch with the result of `decode`, and the damage between sound batches. Blocking.

    `decode` raises CorruptBatch for records that cannot be read.
    """
    problems: list[Problem] = []
    segment = part.segment
    window = min(READ_BYTES, max(HEADER_SIZE_UP_TO_MAGIC, part.stop - part.start))
    walk = Walk(part.file, segment, segment.size, problems.append, None, window)
    walk.position, walk.last_offset = part.start, part.first_offset - 1
    expected = part.first_offset
    damaged: Problem | None = None
    while walk.position < part.stop:
        for batch in walk.batches(part.stop):
            damaged = damaged or next((one for one in problems if (one.position or 0) < batch.position), None)
            problems.clear()
            if not batch.crc_is_valid:
                problems.append(Problem(segment.path, batch.position, "the checksum of a batch is wrong"))
                break
            try:
                decoded = decode(batch)
            except CorruptBatch as error:
                damaged = damaged or Problem(segment.path, batch.position, error.reason)
                continue
            if damaged is not None:
                yield _damage(damaged, expected, batch.header.base_offset)
            expected, damaged = batch.header.next_offset, None
            yield batch, decoded
        if problems:  # the length of the damaged batch may be wrong, too
            damaged = damaged or problems[0]
            walk.position = _next_sound(part, (problems[-1].position or 0) + 1, expected)
            problems.clear()
    if damaged is not None:
        yield _damage(damaged, expected, part.end_offset)


def _damage(problem: Problem, first_offset: int, next_offset: int) -> Damage:
    return Damage(problem.path, problem.position or 0, first_offset, max(next_offset, first_offset), problem.reason)


def _next_sound(part: SegmentPart, position: int, least_offset: int) -> int:
    """Return the position of the next batch with a valid checksum and a fitting offset; the segment's size if there is none."""
    size = part.segment.size
    least, most = _OFFSET.pack(least_offset), _OFFSET.pack(max(least_offset, part.end_offset - 1))
    prefix = least[: next((at for at in range(8) if least[at] != most[at]), 8)]
    while position < size:
        data = part.file.pread(min(SEARCH_BYTES + HEADER_SIZE_UP_TO_MAGIC, size - position), position)
        at = data.find(prefix)
        while at >= 0 and at + HEADER_SIZE_UP_TO_MAGIC <= len(data):
            if least <= data[at : at + 8] <= most and _is_sound(part, position + at, data, at):
                return position + at
            at = data.find(prefix, at + 1)
        position += SEARCH_BYTES
    return size


def _is_sound(part: SegmentPart, position: int, data: bytes, at: int) -> bool:
    length = _LENGTH.unpack_from(data, at + 8)[0]
    if data[at + MAGIC] > CURRENT_MAGIC or not MIN_ENTRY_LENGTH <= length <= MAX_BATCH_BYTES - LOG_OVERHEAD:
        return False
    walk = Walk(part.file, part.segment, part.segment.size, lambda _: None, None, HEADER_SIZE_UP_TO_MAGIC)
    walk.position = position
    return any(batch.crc_is_valid for batch in walk.batches(position + 1))
