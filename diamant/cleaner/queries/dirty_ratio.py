"""Computes the dirty ratio of a partition from its files alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from diamant.cleaner.rules.eligibility import cleanable_range
from diamant.cleaner.segments.tolerant_reader import PartitionFiles
from diamant.storage.segments.log_config import LogConfig

_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _SegmentSize:
    """A segment whose timestamps are unknown (`eligibility.SegmentView`)."""

    base_offset: int
    size: int
    largest_timestamp: int = -1
    last_append_ms: int = -1
    first_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class _LogExtent:
    """A log with default settings, which set no lags (`eligibility.LogView`)."""

    segments: tuple[_SegmentSize, ...]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    config: LogConfig = field(default_factory=LogConfig)


def dirty_ratio(
    partition: PartitionFiles, checkpoint: int | None, log_end_offset: int = _END, last_stable_offset: int = _END
) -> float | None:
    """Return the dirty ratio that the cleaner computes if `min.compaction.lag.ms` is 0; None if nothing can be cleaned."""
    if not partition.segments:
        return None
    segments = tuple(_SegmentSize(segment.base_offset, segment.size) for segment in partition.segments)
    log = _LogExtent(segments, partition.log_start_offset, log_end_offset, last_stable_offset)
    cleanable = cleanable_range(log, checkpoint, now_ms=0)
    return cleanable.dirty_ratio if cleanable.total_bytes else None
