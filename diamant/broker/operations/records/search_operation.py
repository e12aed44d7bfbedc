"""Reads a topic's records, skipping damage: newest first over all partitions (`newest_first`), or from an offset (`from_offset`).

`newest_first` reads each partition backwards, in blocks that double from `FIRST_BYTES` to `BLOCK_BYTES`. The next block always
comes from the partition whose unread part is the newest. So records are yielded by descending timestamp, provided that
timestamps ascend within each partition. A thread reads one block at a time, while writing and cleaning continue.

Bounds: `MAX_AT_ONCE` readers. Each holds one block (or one larger batch), its decompressed data, and twice as many records as
its caller wants, with keys and values truncated to the size that the caller wants.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.operation_errors import TooMany
from diamant.cleaner.queries.matching_records import Wanted
from diamant.cleaner.queries.sound_batches import Damage, SegmentPart, SegmentPlace, sound_batches
from diamant.cleaner.segments.tolerant_reader import Batch
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

if TYPE_CHECKING:
    from diamant.broker.operations.records.explain_operation import ExplainOperation

MAX_AT_ONCE = 4
FIRST_BYTES = 64 * 1024
BLOCK_BYTES = 4 * 1024 * 1024


class PlacedRecord(NamedTuple):
    """A record with its partition. Key and value may be truncated; `key_bytes` and `value_bytes` are their full sizes."""

    partition: int
    record: Record
    key_bytes: int
    value_bytes: int
    header: BatchHeader
    """The header of the record's batch."""


class PlacedDamage(NamedTuple):
    """A range of offsets in a partition that cannot be read."""

    partition: int
    damage: Damage


Found = PlacedRecord | PlacedDamage


class FoundPage(NamedTuple):
    """A page of records and damaged ranges, newest first, and the number of bytes read for it."""

    found: tuple[Found, ...]
    bytes_read: int


class _Rank(NamedTuple):
    """A record or a damaged range with its sort key: the newest sorts first."""

    age: int
    partition: int
    back: int
    found: Found


class _Tail:
    """The unread part of one partition, which is read from its end to its start."""

    def __init__(self, log: Log, before: int | None) -> None:
        self.log = log
        self.before = log.log_end_offset if before is None else min(before, log.log_end_offset)
        self._segment: Segment | None = None
        self._stop = 0
        self._count = FIRST_BYTES
        self.newest_ms = max((one.max_timestamp for one in log.segments if one.base_offset < self.before), default=-1)

    @property
    def is_over(self) -> bool:
        """True if nothing is left to read."""
        return self.before <= self.log.log_start_offset or self.log.is_deleted

    def next_part(self) -> Callable[[], SegmentPart] | None:
        """Return a function, to be called in a thread, that determines the next part; None if the segment is empty."""
        index = max(0, self.log.floor_segment(self.before - 1))
        segment = self.log.segments[index]
        if not segment.size:
            self.before = min(self.before, segment.base_offset)
            return None
        place = SegmentPlace.of(self.log, index)
        stop = self._stop if segment is self._segment else segment.size
        self._segment = segment
        count, before = self._count, self.before
        self._count = min(2 * count, BLOCK_BYTES)
        return lambda: place.before(stop, count, before)

    def was_read(self, part: SegmentPart, newest_ms: int | None) -> None:
        """Record that a part was read. `newest_ms`: the maximum timestamp of its first batch; None if it has no batch."""
        self._stop = part.start
        self.before = min(self.before, part.first_offset if part.start else part.segment.base_offset)
        if newest_ms is not None:
            self.newest_ms = min(self.newest_ms, newest_ms)


class SearchOperation:
    """The operation `search` of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, explaining: ExplainOperation) -> None:
        self._explaining = explaining
        self._running = 0

    async def newest_first(
        self,
        topic: str,
        partition: int | None,
        wanted: Wanted | None,
        *,
        most: int,
        cut_bytes: int,
        before: Mapping[int, int] | None = None,
    ) -> AsyncGenerator[FoundPage, None]:
        """Yield up to `most` wanted records and the damage between them, newest first. Raises NotFound, TooMany.

        `wanted`: None for all records, including markers. `before`: an offset by partition; only records below it are yielded.
        """
        logs = self._explaining.logs(topic, partition)
        with self.place():
            tails = [_Tail(log, (before or {}).get(log.partition)) for log in logs]
            waiting: list[_Rank] = []
            left = most
            while left > 0:
                tail = max((one for one in tails if not one.is_over), key=lambda one: one.newest_ms, default=None)
                read = 0
                if tail is not None:
                    part_of = tail.next_part()
                    if part_of is None:
                        continue
                    part, found, newest_ms = await self._read(tail, part_of, wanted, cut_bytes)
                    tail.was_read(part, newest_ms)
                    read = part.stop - part.start
                    waiting = heapq.nsmallest(2 * left, [*waiting, *found])
                unread_ms = max((one.newest_ms for one in tails if not one.is_over), default=None)
                ready = sum(1 for one in waiting if unread_ms is None or -one.age >= unread_ms)
                records = 0
                for count, one in enumerate(waiting[:ready], 1):
                    records += isinstance(one.found, PlacedRecord)
                    if records == left:
                        ready = count
                        break
                left -= records
                yield FoundPage(tuple(one.found for one in waiting[:ready]), read)
                waiting = waiting[ready:]
                if tail is None:
                    return

    @contextmanager
    def place(self) -> Iterator[None]:
        """Occupy one of the `MAX_AT_ONCE` slots for searches. Raises TooMany if all are in use."""
        if self._running >= MAX_AT_ONCE:
            raise TooMany(f"{MAX_AT_ONCE} searches are in progress, try again when one of them is done")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _read(
        self, tail: _Tail, part_of: Callable[[], SegmentPart], wanted: Wanted | None, cut_bytes: int
    ) -> tuple[SegmentPart, list[_Rank], int | None]:
        partition, least, newest_ms = tail.log.partition, tail.log.log_start_offset, tail.newest_ms

        def read() -> tuple[SegmentPart, list[_Rank], int | None]:
            self._explaining.check()
            part, ranks, first_ms = part_of(), [], None
            last_ms = newest_ms
            for one in sound_batches(part, _all if wanted is None else wanted.records_of):
                if isinstance(one, Damage):
                    if one.next_offset > least:
                        ranks.append(_Rank(-last_ms, partition, -one.first_offset, PlacedDamage(partition, one)))
                    continue
                batch, records = one
                first_ms = batch.header.max_timestamp if first_ms is None else first_ms
                last_ms = batch.header.max_timestamp
                for record in records:
                    if least <= record.offset < part.end_offset:
                        cut = _cut(partition, record, batch.header, cut_bytes)
                        ranks.append(_Rank(-record.timestamp, partition, -record.offset, cut))
            return part, ranks, first_ms

        return await asyncio.to_thread(read)

    async def from_offset(self, log: Log, offset: int, *, most: int, cut_bytes: int) -> tuple[list[Found], int]:
        """Return up to `most` records from an offset on, with the damage between them; also the offset to continue from."""
        found: list[Found] = []
        end_offset = log.log_end_offset
        while most > 0 and offset < end_offset:
            index = max(0, log.floor_segment(offset))
            place = SegmentPlace.of(log, index) if log.segments[index].size else None
            segment_end = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else end_offset
            if place is not None:
                more = await asyncio.to_thread(self._forward, log.partition, place, offset, most, cut_bytes)
                found += more
                records = [one for one in more if isinstance(one, PlacedRecord)]
                most -= len(records)
                if most <= 0:
                    return found, records[-1].record.offset + 1
            offset = max(segment_end, offset + 1)
        return found, offset

    def _forward(self, partition: int, place: SegmentPlace, offset: int, most: int, cut_bytes: int) -> list[Found]:
        self._explaining.check()
        found: list[Found] = []
        for one in sound_batches(place.from_offset(offset), _all):
            if isinstance(one, Damage):
                if one.next_offset > offset:
                    found.append(PlacedDamage(partition, one))
                continue
            batch, records = one
            for record in records:
                if record.offset >= offset:
                    found.append(_cut(partition, record, batch.header, cut_bytes))
                    most -= 1
                    if not most:
                        return found
        return found


def _all(batch: Batch) -> list[Record]:
    return list(batch.records()) if batch.header.record_count else []


def _cut(partition: int, record: Record, header: BatchHeader, most: int) -> PlacedRecord:
    key, value = record.key, record.value
    cut = record._replace(key=None if key is None else key[:most], value=None if value is None else value[:most])
    return PlacedRecord(partition, cut, len(key or b""), len(value or b""), header)
