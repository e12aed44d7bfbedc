"""A schedule of compactions, as values: when the cleaner runs between a consumer's fetches, and on what."""

from __future__ import annotations

from dataclasses import dataclass, fields


def _short(value: Compaction | Schedule) -> str:
    """Return the call that makes a value, with those arguments alone that differ from their default."""
    values = ((one, getattr(value, one.name)) for one in fields(value))
    named = (f"{one.name}={found!r}" for one, found in values if found != one.default)
    return f"{type(value).__name__}({', '.join(named)})"


@dataclass(frozen=True, slots=True)
class Compaction:
    """One run of the cleaner over a partition."""

    fetches: int = 0
    """How many fetches of the partition come before it, since the compaction before it."""
    share: int = 100
    """Up to where it cleans: percent of the segments that are closed, 1 to 99; 100 is everything that was written."""
    is_late: bool = False
    """Whether `delete.retention.ms` goes by before it, so that tombstones and transaction markers are removed, too."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.fetches < 0 or not 1 <= self.share <= 100:
            raise ValueError(f"{self}: expected fetches of 0 or more, and a share from 1 to 100")


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to each partition of each compacted topic. The default is that nothing happens."""

    compactions: tuple[Compaction, ...] = ()
    """In their order; each partition counts its own fetches."""
    batch_records: int = 0
    """How many records a batch has at most: larger ones are stored as several, as if they had been sent so. 0: as sent."""
    segment_records: int = 0
    """How many offsets a segment has before the next batch begins another; 0: as configured."""
    is_one_batch_per_fetch: bool = False
    """Whether each fetch of a partition gets one batch."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.batch_records < 0 or self.segment_records < 0:
            raise ValueError(f"{self}: expected numbers of records, 0 or more")
