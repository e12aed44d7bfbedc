"""The counts of a partition's records by kind, made at one moment, and their sums, which are kept longer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from diamant.cleaner.queries.segment_census import SegmentCensus, SegmentRecords
from diamant.storage.log.log import Log


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """The counts of a partition at one moment."""

    log: Log
    log_start_offset: int
    sizes: tuple[tuple[int, int], ...]
    """The base offset and size of each segment that is not empty."""
    census: SegmentCensus
    counted_s: float
    """The time of the count, on the monotonic clock."""
    took_s: float
    """The CPU time that the count took."""

    @property
    def by_base_offset(self) -> dict[int, SegmentRecords]:
        """The counts of each segment."""
        return {one.base_offset: one for one in self.census.segments}

    @property
    def is_current(self) -> bool:
        """True if nothing was written or removed since the count."""
        return self.log_start_offset == self.log.log_start_offset and self.sizes == sizes_of(self.log)


def sizes_of(log: Log) -> tuple[tuple[int, int], ...]:
    """Return the base offset and size of each segment that is not empty."""
    return tuple((segment.base_offset, segment.size) for segment in log.segments if segment.size)


class CountedSums(NamedTuple):
    """The sums of a partition: a few numbers, kept for far more partitions than full counts."""

    log: Log
    bytes: int
    end_offset: int
    records: int
    superseded: int
    counted_s: float
    """The time of the count, on the monotonic clock."""
    took_s: float

    @classmethod
    def of(cls, counted: CountedPartition, end_offset: int) -> CountedSums:
        """Return the sums of a count."""
        return cls(
            counted.log,
            sum(size for _, size in counted.sizes),
            end_offset,
            sum(one.kinds.records for one in counted.census.segments),
            sum(one.kinds.superseded for one in counted.census.segments),
            counted.counted_s,
            counted.took_s,
        )

    @property
    def is_current(self) -> bool:
        """True if nothing was written or removed since the count, judged by end offset and size."""
        return (self.bytes, self.end_offset) == (self.log.size, self.log.log_end_offset)


class SupersededShare(NamedTuple):
    """The share of superseded records in several partitions, as of the last count of each."""

    partitions: int
    """The number of partitions that are not empty."""
    counted: int
    """The number of these partitions that were counted."""
    records: int
    superseded: int

    @property
    def ratio(self) -> float | None:
        """The share, from 0 to 1; None until all partitions are counted, or if there are no records."""
        return self.superseded / self.records if self.records and self.counted == self.partitions else None


def share_of(sums: Iterable[CountedSums | None]) -> SupersededShare:
    """Return the share over several partitions. `sums` holds the sums of each non-empty partition, or None if uncounted."""
    partitions = counted = records = superseded = 0
    for one in sums:
        partitions += 1
        if one is not None:
            counted += 1
            records += one.records
            superseded += one.superseded
    return SupersededShare(partitions, counted, records, superseded)
