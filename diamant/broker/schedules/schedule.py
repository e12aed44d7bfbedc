"""A schedule of compactions: the times between a consumer's fetches at which the cleaner runs, and its range."""

from __future__ import annotations

from dataclasses import dataclass, fields


def _short(value: Compaction | Schedule) -> str:
    """Return the call that creates a value, with only those arguments that differ from their default."""
    values = ((field, getattr(value, field.name)) for field in fields(value))
    named = (f"{field.name}={found!r}" for field, found in values if found != field.default)
    return f"{type(value).__name__}({', '.join(named)})"


ALL = 100


@dataclass(frozen=True, slots=True)
class Compaction:
    """One run of the cleaner over a partition."""

    fetches: int = 0
    """The number of fetches of the partition between the previous compaction and this one."""
    share: int = ALL
    """The share of the closed segments to clean, in percent, 1 to 99; `ALL`: all records written, but for the last batch in a
    topic without transactional writers."""
    is_late: bool = False
    """True if `delete.retention.ms` passes before it, so that tombstones and transaction markers are removed, too."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.fetches < 0 or not 1 <= self.share <= ALL:
            raise ValueError(f"{self}: expected fetches of 0 or more, and a share from 1 to 100")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The events of each partition of each compacted topic; by default none."""

    compactions: tuple[Compaction, ...] = ()
    """In order; each partition counts its own fetches."""
    batch_records: int = 0
    """The most records of a batch; a larger one is stored as several. 0: stored as sent."""
    segment_records: int = 0
    """The number of offsets after which the next batch starts a new segment; 0: as configured."""
    is_one_batch_per_fetch: bool = False
    """True if each fetch of a partition returns one batch."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.batch_records < 0 or self.segment_records < 0:
            raise ValueError(f"{self}: expected numbers of records, 0 or more")
