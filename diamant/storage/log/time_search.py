"""Searches for records by timestamp, for ListOffsets.

A search is a sequence of steps, run in order until one finds a record. The loop thread iterates over the sequence and tries each
step; a step that would decompress much data or scan a whole segment raises HeavySearch, and must then run in another thread.

Kafka searches one segment: the first whose largest timestamp is late enough, or for timestamp -3 the one with the largest. But
that segment may have no matching record: the cleaner and redaction keep emptied batches for the producer state, and after
DeleteRecords the matching record may be below the log start. Kafka then finds no record, whereas we continue the search.

Source: UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import DecompressionBomb
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import FileSlice, Segment, floor_position, scan_headers

# Limits of a light step; a scan moves to a thread after LIGHT_HEADERS headers.
LIGHT_RECORDS = 1000
LIGHT_COMPRESSED_BYTES = 32 * 1024
LIGHT_BYTES = 1024 * 1024
LIGHT_HEADERS = 500


class HeavySearch(Exception):
    """The step is expensive. Run it in a thread, with `is_light` False."""


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
    max_record_bytes: int

    def run(self, *, is_light: bool = False) -> TimestampOffset | None:
        """Decode the batch and return the first match; None if no record matches, whatever the header says.

        Any thread may call it. Raises OversizedRecord if a record exceeds the limit; with `is_light`, raises HeavySearch if
        decoding would take more than a few milliseconds.
        """
        most_bytes = LIGHT_COMPRESSED_BYTES if self.header.codec else LIGHT_BYTES
        if is_light and (self.header.record_count > LIGHT_RECORDS or self.batch.size > most_bytes):
            raise HeavySearch
        max_bytes = LIGHT_BYTES if is_light else MAX_BATCH_BYTES
        try:
            for record in iter_records(self.batch.read(), max_bytes=max_bytes, max_record_bytes=self.max_record_bytes):
                if record.timestamp >= self.target and record.offset >= self.min_offset:
                    return TimestampOffset(record.timestamp, record.offset)
        except DecompressionBomb:
            if is_light:
                raise HeavySearch from None
            raise
        return None


class StretchSearch(NamedTuple):
    """A search in consecutive whole batches for the first record that `BatchSearch` would find."""

    stretch: FileSlice
    target: int
    min_offset: int
    max_record_bytes: int

    def run(self, *, is_light: bool = False) -> TimestampOffset | None:
        """Return the first match, or None. Any thread may call it. Raises CorruptLog; with `is_light`, always HeavySearch."""
        if is_light:
            raise HeavySearch
        for search in _candidates(self.stretch, self.target, self.min_offset, self.max_record_bytes):
            if (found := search.run()) is not None:
                return found
        return None


@dataclass(slots=True)
class LargestSurvey:
    """A scan of all segments, one per step, for the largest timestamp and the first batch with records that has it."""

    max_record_bytes: int
    stretch: FileSlice | None = None
    """The segment that the next step scans."""
    best: BatchSearch | None = None

    @property
    def timestamp(self) -> int:
        """The largest timestamp so far, in ms; -1 if there is none."""
        return self.best.target if self.best is not None else -1

    def run(self, *, is_light: bool = False) -> TimestampOffset | None:
        """Scan `stretch` and update `best`; return None. Raises CorruptLog if its bytes cannot be batches.

        Any thread may call it. With `is_light`, always raises HeavySearch, since a step scans a whole segment.
        """
        if is_light:
            raise HeavySearch
        assert self.stretch is not None
        file, position, size = self.stretch
        for at, header in scan_headers(file, position, position + size):
            if header.record_count and (header.max_timestamp, -header.base_offset) > self._rank():
                batch = FileSlice(file, at, header.size)
                self.best = BatchSearch(batch, header, header.max_timestamp, 0, self.max_record_bytes)
        return None

    def _rank(self) -> tuple[int, int]:
        return (self.best.target, -self.best.header.base_offset) if self.best is not None else (-2, 0)


class Searched(Protocol):
    """The part of a log that a search uses."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The log's segments, by ascending offset."""
        ...

    @property
    def active(self) -> Segment:
        """The last segment."""
        ...

    @property
    def config(self) -> LogConfig:
        """The log's settings."""
        ...

    log_start_offset: int

    def floor_segment(self, offset: int) -> int:
        """Return the index of the segment that covers an offset; -1 below the first."""
        ...


Step = BatchSearch | StretchSearch | LargestSurvey


def at_or_after(log: Searched, timestamp: int) -> Iterator[Step]:
    """Yield the steps of a search for the first record at or after `timestamp` ms that is not below the log start.

    The search tracks offsets, not segments, because cleaned segments may replace others between two steps.
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
        limit = log.config.max_decompressed_message_bytes
        yield from _in_segment(log.segments[index], timestamp, offset, limit, is_first=is_first)
        if end is None:
            return
        offset, is_first = end, False


def with_largest_timestamp(log: Searched) -> Iterator[Step]:
    """Yield the steps of a search for the first record with the largest timestamp; like Kafka, ignores the log start offset.

    If no record has a timestamp, the search finds the first record.
    """
    limit = log.config.max_decompressed_message_bytes
    segment = max(log.segments, key=lambda segment: segment.max_timestamp)
    located = segment.locate(segment.offset_of_max_timestamp) if segment.max_timestamp >= 0 else None
    if located is not None and located[1].record_count:
        at, header = located
        yield BatchSearch(FileSlice(segment.file, at, header.size), header, segment.max_timestamp, 0, limit)
        return
    survey = LargestSurvey(limit)
    passed: set[Segment] = set()
    while True:
        # Look up segments again for each step, since cleaned ones may have replaced others.
        left = [segment for segment in log.segments if segment not in passed]
        segment = max(left, key=lambda segment: segment.max_timestamp, default=log.active)
        if segment in passed or segment.max_timestamp < survey.timestamp:
            break
        if segment.max_timestamp < 0 and survey.best is not None:
            break  # no record has a timestamp, and the first record is known
        passed.add(segment)
        survey.stretch = FileSlice(segment.file, 0, segment.size)
        yield survey
    if survey.best is not None:
        yield survey.best


def _in_segment(
    segment: Segment, timestamp: int, min_offset: int, max_record_bytes: int, *, is_first: bool
) -> Iterator[Step]:
    """Yield the steps in one segment. In the first one, scan the start immediately, since it nearly always has the record."""
    _, indexed_offset = segment.time_index.lookup(timestamp)
    position = floor_position(segment, max(indexed_offset, min_offset))
    if is_first:
        for count, (at, header) in enumerate(scan_headers(segment.file, position, segment.size)):
            if count == LIGHT_HEADERS:
                position = at
                break
            if _may_hold(header, timestamp, min_offset):
                batch = FileSlice(segment.file, at, header.size)
                yield BatchSearch(batch, header, timestamp, min_offset, max_record_bytes)
        else:
            return
    stretch = FileSlice(segment.file, position, segment.size - position)
    yield StretchSearch(stretch, timestamp, min_offset, max_record_bytes)


def _candidates(stretch: FileSlice, timestamp: int, min_offset: int, max_record_bytes: int) -> Iterator[BatchSearch]:
    file, position, size = stretch
    for at, header in scan_headers(file, position, position + size):
        if _may_hold(header, timestamp, min_offset):
            yield BatchSearch(FileSlice(file, at, header.size), header, timestamp, min_offset, max_record_bytes)


def _may_hold(header: BatchHeader, timestamp: int, min_offset: int) -> bool:
    return header.max_timestamp >= timestamp and header.last_offset >= min_offset and header.record_count > 0
