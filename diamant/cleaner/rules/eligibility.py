"""The part of a log that a round may clean, whether the log is due, and which of several logs comes first.

    0 ... clean ... first_dirty ... dirty ... first_uncleanable ... not yet ... log end

Nothing at or above the last stable offset, in the active segment, or younger than `min.compaction.lag.ms` is touched. A log is
due if the dirty share of its bytes is above `min.cleanable.dirty.ratio`, or if something in it is older than
`max.compaction.lag.ms`. Everything goes by whole segments; no record is read (the first batch header of a segment may be).

Source: Kafka's LogCleanerManager and LogToClean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from diamant.cleaner.rules.modes import KAFKA
from diamant.storage.segments.log_config import LogConfig

T = TypeVar("T")


class SegmentView(Protocol):
    """The attributes needed of a segment (`storage.segments.segment.Segment`)."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...


class LogView(Protocol):
    """The attributes needed of a log (`storage.log.log.Log`); the last of `segments` is the active one."""

    @property
    def segments(self) -> Sequence[SegmentView]: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


LogT = TypeVar("LogT", bound=LogView)


class Limits(NamedTuple):
    """The limits of a round, one for each rule; it ends at the base of the segment that holds the lowest of them."""

    active_segment: int
    """Base offset of the active segment."""
    last_stable_offset: int
    """First offset of the oldest open transaction, else the log's end."""
    young_segment: int | None
    """Base offset of the first dirty segment with a record younger than `min.compaction.lag.ms`."""

    @property
    def offset(self) -> int:
        """The least of them."""
        bound = min(self.last_stable_offset, self.active_segment)
        return bound if self.young_segment is None else min(bound, self.young_segment)


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The range of a log's next round, and what speaks for having it."""

    first_dirty_offset: int
    is_checkpoint_reset: bool
    """The checkpoint lay outside of the log and is to be replaced by `first_dirty_offset` at once."""
    first_uncleanable_offset: int
    """Exclusive end of the round, a segment's base offset."""
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """By how much the oldest dirty record has outlived `max.compaction.lag.ms`; 0 if it has not."""
    min_dirty_ratio: float

    @property
    def total_bytes(self) -> int:
        """Bytes below `first_uncleanable_offset`; a segment that is partly clean counts twice, as in Kafka."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def dirty_ratio(self) -> float:
        """Cleanable share of the bytes, 0 to 1; 0 for a log without any."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_overdue(self) -> bool:
        """True if `max.compaction.lag.ms` demands a round."""
        return self.delay_ms > 0

    @property
    def is_eligible(self) -> bool:
        """True if the log is due. At exactly the ratio it is not."""
        return (self.is_overdue and self.cleanable_bytes > 0) or self.dirty_ratio > self.min_dirty_ratio


def overdue_by_records_ms(log: LogView, first_dirty_offset: int, now_ms: int) -> int:
    """Return by how much the oldest dirty batch has outlived `max.compaction.lag.ms` by its timestamp, as in Kafka; else 0."""
    limit_ms = log.config.max_compaction_lag_ms
    if limit_ms >= now_ms:
        return 0  # nothing can be that old; saves reading first batches where no lag is set
    timestamps = (segment.first_timestamp for segment in inactive_from(log, first_dirty_offset))
    earliest_ms = min((timestamp for timestamp in timestamps if timestamp > 0), default=None)
    return 0 if earliest_ms is None else max(0, now_ms - max(limit_ms, 0) - earliest_ms)


def cleanable_range(
    log: LogT,
    checkpoint: int | None,
    now_ms: int,
    *,
    is_forced: bool = False,
    overdue_ms: Callable[[LogT, int, int], int] = overdue_by_records_ms,
) -> CleanableRange:
    """Return the range of the next round of `log`, whose `checkpoint` is where the last one ended (None: never).

    `is_forced`: as if `min.compaction.lag.ms` were 0. `overdue_ms` tells by how much that lag's maximum is exceeded from an
    offset on: in mode prompt `time_based_roll.overdue_ms`. Reads the first header of a dirty segment unless it is known, so it
    may touch the disk.
    """
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    is_reset = not log.log_start_offset <= first_dirty <= log.log_end_offset
    if is_reset:
        first_dirty = log.log_start_offset
    bound = max(first_dirty, limits(log, first_dirty, now_ms, is_forced=is_forced).offset)
    first_uncleanable = round_down(log, bound)
    dirty = inactive_from(log, first_dirty)
    return CleanableRange(
        first_dirty_offset=first_dirty,
        is_checkpoint_reset=is_reset,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=sum(segment.size for segment in log.segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(segment.size for segment in dirty if segment.base_offset < first_uncleanable),
        delay_ms=overdue_ms(log, first_dirty, now_ms),
        min_dirty_ratio=log.config.min_cleanable_dirty_ratio,
    )


def is_candidate(log: LogView, found: CleanableRange) -> bool:
    """Tell whether the log is one for the cleaner at all: compacted, and not empty."""
    return log.config.is_compacted and found.total_bytes > 0


def by_urgency(ranges: Iterable[tuple[T, CleanableRange]], mode: str) -> list[tuple[T, CleanableRange]]:
    """Return the eligible of some (anything, range) pairs, the one to be cleaned first in front.

    Mode kafka goes by the dirty ratio alone, so that a log past its `max.compaction.lag.ms` may wait for ever behind dirtier
    ones. Mode prompt takes what is overdue first, the longest overdue in front.
    """
    eligible = [pair for pair in ranges if pair[1].is_eligible]
    if mode == KAFKA:
        return sorted(eligible, key=lambda pair: -pair[1].dirty_ratio)
    return sorted(eligible, key=lambda pair: (-pair[1].delay_ms, -pair[1].dirty_ratio))


def limits(log: LogView, first_dirty: int, now_ms: int, *, is_forced: bool = False) -> Limits:
    """Return what a round from `first_dirty` on may not go beyond; `is_forced`: as if `min.compaction.lag.ms` were 0."""
    young = None
    if log.config.min_compaction_lag_ms > 0 and not is_forced:
        # The first segment with a young record holds back all that follow, whatever their age.
        for segment in inactive_from(log, first_dirty):
            if now_ms < old_enough_ms(segment, log.config):
                young = segment.base_offset
                break
    return Limits(log.segments[-1].base_offset, log.last_stable_offset, young)


def old_enough_ms(segment: SegmentView, config: LogConfig) -> int:
    """Return from when on `min.compaction.lag.ms` does not hold a segment back."""
    return segment.largest_timestamp + config.min_compaction_lag_ms


def round_down(log: LogView, offset: int) -> int:
    """Return the base of the inactive segment that holds `offset`, else that of the active one."""
    inactive = inactive_from(log, offset)
    return inactive[0].base_offset if inactive else log.segments[-1].base_offset


def inactive_from(log: LogView, offset: int) -> Sequence[SegmentView]:
    """Return the inactive segments from the one on that holds `offset`."""
    *inactive, active = log.segments
    if offset >= active.base_offset:
        return ()
    first = 0
    for index, segment in enumerate(inactive):
        if segment.base_offset > offset:
            break
        first = index
    return inactive[first:]


BY_RATIO = "min.cleanable.dirty.ratio"
BY_LAG = "max.compaction.lag.ms"
"""What makes a round due."""
