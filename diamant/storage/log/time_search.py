"""Records found by their time: what ListOffsets asks of a log.

A search is a row of steps, to be run in order until one finds a record. Steps that are light may run on the loop; the others may
take long (much to decompress, or a whole segment to pass over) and are for a thread. The row itself is drawn on the loop.

Kafka looks into one segment: the first whose largest timestamp is late enough, or for timestamp -3 the one with the largest. But
a segment may promise a time that no record of it has: the cleaner and redaction keep batches without records for what their
headers say of producers, and after DeleteRecords the record of that time may lie below the log start. Kafka then answers that
there is no such record; here the search continues.

Source: UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.batches.records import iter_records
from diamant.storage.segments.segment import FileSlice, Segment, floor_position, scan_headers

# A step in more than this is for a thread, and so is what follows after so many headers.
LIGHT_RECORDS = 1000
LIGHT_COMPRESSED_BYTES = 32 * 1024
LIGHT_HEADERS = 500


class TimestampOffset(NamedTuple):
    """A record found by time: its timestamp in ms and its offset."""

    timestamp: int
    offset: int


class BatchSearch(NamedTuple):
    """A batch that may hold the first record with timestamp >= `target` ms and offset >= `min_offset`."""

    batch: FileSlice
    header: BatchHeader
    target: int
    min_offset: int

    @property
    def is_light(self) -> bool:
        """True if `run` takes a few milliseconds at most."""
        return self.header.record_count <= LIGHT_RECORDS and (
            self.header.codec == 0 or self.batch.size <= LIGHT_COMPRESSED_BYTES
        )

    def run(self) -> TimestampOffset | None:
        """Decode the batch, in any thread; None if its header promised what no record keeps."""
        for record in iter_records(self.batch.read()):
            if record.timestamp >= self.target and record.offset >= self.min_offset:
                return TimestampOffset(record.timestamp, record.offset)
        return None


class StretchSearch(NamedTuple):
    """A stretch of whole batches in which to look for the first record as `BatchSearch` does."""

    stretch: FileSlice
    target: int
    min_offset: int

    @property
    def is_light(self) -> bool:
        """Never: it may be a whole segment."""
        return False

    def run(self) -> TimestampOffset | None:
        """Look into one batch after the other, in any thread. CorruptLog where bytes cannot be a batch."""
        for search in _candidates(self.stretch, self.target, self.min_offset):
            if (found := search.run()) is not None:
                return found
        return None


@dataclass(slots=True)
class LargestSurvey:
    """Segments that are passed over, one a step, for the first batch with records that has the largest timestamp of all."""

    stretch: FileSlice | None = None
    """The segments that the next step passes over."""
    best: BatchSearch | None = None

    @property
    def is_light(self) -> bool:
        """Never: it is a whole segment."""
        return False

    @property
    def timestamp(self) -> int:
        """The largest so far, in ms; -1 if none has been seen."""
        return self.best.target if self.best is not None else -1

    def run(self) -> TimestampOffset | None:
        """Pass over the stretch, in any thread; it finds nothing by itself. CorruptLog where bytes cannot be a batch."""
        assert self.stretch is not None
        file, position, size = self.stretch
        for at, header in scan_headers(file, position, position + size):
            if header.record_count and (header.max_timestamp, -header.base_offset) > self._rank():
                self.best = BatchSearch(FileSlice(file, at, header.size), header, header.max_timestamp, 0)
        return None

    def _rank(self) -> tuple[int, int]:
        return (self.best.target, -self.best.header.base_offset) if self.best is not None else (-1, 1)


class Searched(Protocol):
    """A log, as far as it is searched."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Its segments, in the order of their offsets."""
        ...

    @property
    def active(self) -> Segment:
        """The last of them."""
        ...

    log_start_offset: int

    def floor_segment(self, offset: int) -> int:
        """The index of the segment that has an offset; -1 below the first."""
        ...


Step = BatchSearch | StretchSearch | LargestSurvey


def at_or_after(log: Searched, timestamp: int) -> Iterator[Step]:
    """Steps to the first record at or after `timestamp` ms that is not below the log start.

    Segments may be exchanged for cleaned ones between two steps: the search goes by offsets, not by segments.
    """
    offset = log.log_start_offset
    is_first = True
    while True:
        bases = range(max(0, log.floor_segment(offset)), len(log.segments))
        index = next(
            (i for i in bases if log.segments[i].size and log.segments[i].largest_timestamp >= timestamp), None
        )
        if index is None:
            return
        end = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else None
        yield from _in_segment(log.segments[index], timestamp, offset, is_first=is_first)
        if end is None:
            return
        offset, is_first = end, False


def with_largest_timestamp(log: Searched) -> Iterator[Step]:
    """Steps to the first record with the largest timestamp of all records, the log start notwithstanding (as Kafka)."""
    segment = max(log.segments, key=lambda segment: segment.max_timestamp)
    located = segment.locate(segment.offset_of_max_timestamp) if segment.max_timestamp >= 0 else None
    if located is not None and located[1].record_count:
        at, header = located
        yield BatchSearch(FileSlice(segment.file, at, header.size), header, segment.max_timestamp, 0)
        return
    survey = LargestSurvey()
    passed: set[Segment] = set()
    while True:
        # Looked up again for each step: segments may have been exchanged for cleaned ones since.
        left = [segment for segment in log.segments if segment not in passed]
        segment = max(left, key=lambda segment: segment.max_timestamp, default=log.active)
        if segment in passed or segment.max_timestamp < max(0, survey.timestamp):
            break
        passed.add(segment)
        survey.stretch = FileSlice(segment.file, 0, segment.size)
        yield survey
    if survey.best is not None:
        yield survey.best


def _in_segment(segment: Segment, timestamp: int, min_offset: int, *, is_first: bool) -> Iterator[Step]:
    """Steps in one segment. Of the first one the beginning is looked at here: it nearly always has the record."""
    _, indexed_offset = segment.time_index.lookup(timestamp)
    position = floor_position(segment, max(indexed_offset, min_offset))
    if is_first:
        for count, (at, header) in enumerate(scan_headers(segment.file, position, segment.size)):
            if count == LIGHT_HEADERS:
                position = at
                break
            if _may_hold(header, timestamp, min_offset):
                yield BatchSearch(FileSlice(segment.file, at, header.size), header, timestamp, min_offset)
        else:
            return
    yield StretchSearch(FileSlice(segment.file, position, segment.size - position), timestamp, min_offset)


def _candidates(stretch: FileSlice, timestamp: int, min_offset: int) -> Iterator[BatchSearch]:
    file, position, size = stretch
    for at, header in scan_headers(file, position, position + size):
        if _may_hold(header, timestamp, min_offset):
            yield BatchSearch(FileSlice(file, at, header.size), header, timestamp, min_offset)


def _may_hold(header: BatchHeader, timestamp: int, min_offset: int) -> bool:
    return header.max_timestamp >= timestamp and header.last_offset >= min_offset and header.record_count > 0
