"""Decides which part of a log a round may clean, whether the log is due, and which of several logs is cleaned first.

    0 ... clean ... first_dirty ... dirty ... first_uncleanable ... not yet ... log end

A round does not touch records at or above the last stable offset, in the active segment, or younger than
`min.compaction.lag.ms`. A log is due if the dirty share of its bytes exceeds `min.cleanable.dirty.ratio`, or if a dirty record
is older than `max.compaction.lag.ms`. All rules apply to whole segments, and read at most the first batch header of each.

Source: Kafka's LogCleanerManager and LogToClean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from diamant.cleaner.rules.modes import KAFKA
from diamant.storage.segments.log_config import LogConfig

T = TypeVar("T")


class SegmentView(Protocol):
    """The attributes of a segment (`storage.segments.segment.Segment`) that the rules need."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def last_append_ms(self) -> int: ...


class LogView(Protocol):
    """The attributes of a log (`storage.log.log.Log`) that the rules need; the last of `segments` is the active one."""

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
LogT_contra = TypeVar("LogT_contra", bound=LogView, contravariant=True)


class Ages(Protocol[LogT_contra]):
    """The definition of age that both lags use: `BY_TIMESTAMP` in mode kafka, `time_based_roll.BY_APPEND` in mode prompt."""

    def overdue_ms(self, log: LogT_contra, first_dirty_offset: int, now_ms: int, /) -> int:
        """Return by how much the age of the oldest dirty record exceeds `max.compaction.lag.ms`; at least 0."""
        ...

    def youngest_ms(self, segment: SegmentView, /) -> int:
        """Return the time of a segment's youngest record, from which `min.compaction.lag.ms` counts."""
        ...


class Limits(NamedTuple):
    """The limits of a round, one for each rule. The round ends at the base of the segment that holds the lowest limit."""

    active_segment: int
    """Base offset of the active segment."""
    last_stable_offset: int
    """First offset of the oldest open transaction, else the log's end."""
    young_segment: int | None
    """Base offset of the first dirty segment with a record younger than `min.compaction.lag.ms`."""

    @property
    def offset(self) -> int:
        """The lowest limit."""
        bound = min(self.last_stable_offset, self.active_segment)
        return bound if self.young_segment is None else min(bound, self.young_segment)


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The range of a log's next round, and the figures that decide whether it is due."""

    first_dirty_offset: int
    is_checkpoint_reset: bool
    """True if the checkpoint lies outside the log and must be replaced by `first_dirty_offset` immediately."""
    first_uncleanable_offset: int
    """Exclusive end of the round, a segment's base offset."""
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """The time by which the age of the oldest dirty record exceeds `max.compaction.lag.ms`; at least 0."""
    min_dirty_ratio: float

    @property
    def total_bytes(self) -> int:
        """Bytes below `first_uncleanable_offset`; a segment that is partly clean counts twice, as in Kafka."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def dirty_ratio(self) -> float:
        """Cleanable share of the bytes, 0 to 1; 0 for an empty log."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_overdue(self) -> bool:
        """True if `max.compaction.lag.ms` makes a round due."""
        return self.delay_ms > 0

    @property
    def is_eligible(self) -> bool:
        """True if the log is due. A dirty ratio of exactly `min_dirty_ratio` does not make it due."""
        return (self.is_overdue and self.cleanable_bytes > 0) or self.dirty_ratio > self.min_dirty_ratio


class _ByTimestamp:
    def overdue_ms(self, log: LogView, first_dirty_offset: int, now_ms: int, /) -> int:
        limit_ms = log.config.max_compaction_lag_ms
        if limit_ms >= now_ms:
            return 0  # no record can be that old; saves reading first batches if no lag is set
        timestamps = (segment.first_timestamp for segment in inactive_from(log, first_dirty_offset))
        earliest_ms = min((timestamp for timestamp in timestamps if timestamp > 0), default=None)
        return 0 if earliest_ms is None else max(0, now_ms - max(limit_ms, 0) - earliest_ms)

    def youngest_ms(self, segment: SegmentView, /) -> int:
        return segment.largest_timestamp


BY_TIMESTAMP: Ages[LogView] = _ByTimestamp()
"""Kafka's ages, measured by the records' timestamps. A record whose timestamp is missing or in the future has no age."""


def cleanable_range(
    log: LogT,
    checkpoint: int | None,
    now_ms: int,
    *,
    force: bool = False,
    ages: Ages[LogT] = BY_TIMESTAMP,
) -> CleanableRange:
    """Return the range of the next round of `log`. `checkpoint`: the end of the last round, or None if there was no round.

    `force` ignores `min.compaction.lag.ms`. May read the first batch headers of dirty segments from disk.
    """
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    is_reset = not log.log_start_offset <= first_dirty <= log.log_end_offset
    if is_reset:
        first_dirty = log.log_start_offset
    bound = max(first_dirty, limits(log, first_dirty, now_ms, ages, force=force).offset)
    first_uncleanable = round_down(log, bound)
    dirty = inactive_from(log, first_dirty)
    return CleanableRange(
        first_dirty_offset=first_dirty,
        is_checkpoint_reset=is_reset,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=sum(segment.size for segment in log.segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(segment.size for segment in dirty if segment.base_offset < first_uncleanable),
        delay_ms=ages.overdue_ms(log, first_dirty, now_ms),
        min_dirty_ratio=log.config.min_cleanable_dirty_ratio,
    )


def is_candidate(log: LogView, found: CleanableRange) -> bool:
    """Return whether the cleaner may clean the log: it is compacted, and the range is not empty."""
    return log.config.is_compacted and found.total_bytes > 0


def by_urgency(ranges: Iterable[tuple[T, CleanableRange]], mode: str) -> list[tuple[T, CleanableRange]]:
    """Return the (any object, range) pairs with eligible ranges, the most urgent first.

    Mode kafka sorts by dirty ratio alone, so a log past its `max.compaction.lag.ms` may wait forever behind dirtier ones. Mode
    prompt puts overdue logs first, beginning with the longest overdue.
    """
    eligible = [pair for pair in ranges if pair[1].is_eligible]
    if mode == KAFKA:
        return sorted(eligible, key=lambda pair: -pair[1].dirty_ratio)
    return sorted(eligible, key=lambda pair: (-pair[1].delay_ms, -pair[1].dirty_ratio))


def limits(log: LogT, first_dirty: int, now_ms: int, ages: Ages[LogT] = BY_TIMESTAMP, *, force: bool = False) -> Limits:
    """Return the limits of a round that begins at `first_dirty`. `force` ignores `min.compaction.lag.ms`."""
    young = None
    if log.config.min_compaction_lag_ms > 0 and not force:
        # The first segment with a young record holds back all later segments, even those without young records.
        for segment in inactive_from(log, first_dirty):
            if now_ms < old_enough_ms(segment, log.config, ages):
                young = segment.base_offset
                break
    return Limits(log.segments[-1].base_offset, log.last_stable_offset, young)


def old_enough_ms(segment: SegmentView, config: LogConfig, ages: Ages[LogT]) -> int:
    """Return the time from which `min.compaction.lag.ms` no longer holds a segment back."""
    return ages.youngest_ms(segment) + config.min_compaction_lag_ms


def round_down(log: LogView, offset: int) -> int:
    """Return the base offset of the inactive segment that holds `offset`; if none does, that of the active segment."""
    inactive = inactive_from(log, offset)
    return inactive[0].base_offset if inactive else log.segments[-1].base_offset


def inactive_from(log: LogView, offset: int) -> Sequence[SegmentView]:
    """Return the inactive segments, beginning with the one that holds `offset`."""
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
"""The configurations that make a round due."""
