"""A schedule of compactions. It says between which fetches of a consumer the cleaner runs, and on which part of the log."""

from __future__ import annotations

from dataclasses import dataclass, fields


def _short(value: Compaction | Schedule) -> str:
    """Return a call that creates `value`, with only the arguments that differ from their defaults."""
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
    """The percentage of the closed segments to clean, 1 to 99, or `ALL`: all records written so far, except the last batch in a
    topic without transactional writers."""
    is_late: bool = False
    """True if `delete.retention.ms` passes before the compaction, so that it also removes tombstones and transaction markers."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.fetches < 0 or not 1 <= self.share <= ALL:
            raise ValueError(f"{self}: expected fetches to be at least 0, and share to be from 1 to 100")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The events to cause in each partition of each compacted topic; by default none."""

    compactions: tuple[Compaction, ...] = ()
    """The compactions in order. Each partition counts its own fetches."""
    batch_records: int = 0
    """The maximum number of records in a batch. A larger batch is split before it is stored. 0: batches are stored as sent."""
    segment_records: int = 0
    """The number of offsets after which the next batch starts a new segment. 0: segments roll as configured."""
    is_one_batch_per_fetch: bool = False
    """True if each fetch of a partition returns a single batch."""

    __repr__ = _short

    def __post_init__(self) -> None:
        if self.batch_records < 0 or self.segment_records < 0:
            raise ValueError(f"{self}: expected batch_records and segment_records to be at least 0")
