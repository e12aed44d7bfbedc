"""Decides which of the oldest segments retention may delete. Does no I/O.

Source: UnifiedLog.deleteOldSegments with its three rules: below the log start, over `retention.bytes`, older than
`retention.ms`. Segments are checked in ascending order, until one must stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from diamant.storage.segments.log_config import LogConfig

if TYPE_CHECKING:
    from diamant.cleaner.rules.eligibility import SegmentView

CLOCK_DIFFERENCE_MS = 60_000


class RetainedLog(Protocol):
    """The attributes of a log (`storage.log.log.Log`) that the rules need; the last of `segments` is the active one."""

    @property
    def segments(self) -> Sequence[SegmentView]: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


def deletable_segments(log: RetainedLog, now_ms: int) -> int:
    """Return the number of oldest segments of `log` to delete at `now_ms`; an empty active segment always stays.

    As in Kafka, each rule continues where the previous one ended, so a young segment that is deleted because of the log's size
    does not protect the old segments after it.
    """
    count = _below_log_start(log)
    if log.config.is_deleted:
        count = _over_size(log, count)
        count = _over_age(log, count, now_ms)
    return count


def future_hold_ms(log: RetainedLog, now_ms: int) -> int | None:
    """Return the time until which a timestamp in the future keeps the oldest segment; None if no timestamp does.

    Kafka warns about each timestamp in the future. Here, timestamps up to `CLOCK_DIFFERENCE_MS` ahead are attributed to
    differences between clocks.
    """
    if not log.config.is_deleted or log.config.retention_ms < 0:
        return None
    count = deletable_segments(log, now_ms)
    if count == len(log.segments) or _is_empty_active(log, log.segments[count]):
        return None
    latest_ms = log.segments[count].largest_timestamp
    return latest_ms + log.config.retention_ms + 1 if latest_ms > now_ms + CLOCK_DIFFERENCE_MS else None


def _below_log_start(log: RetainedLog) -> int:
    count = 0
    for following in log.segments[1:]:
        if following.base_offset > log.log_start_offset:
            break
        count += 1
    return count


def _over_size(log: RetainedLog, count: int) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return count
    excess = log.size - limit - sum(segment.size for segment in log.segments[:count])
    for segment in log.segments[count:]:
        # A segment that the cleaner has emptied is deleted even if the excess is 0.
        if excess < segment.size or _is_empty_active(log, segment):
            break
        excess -= segment.size
        count += 1
    return count


def _over_age(log: RetainedLog, count: int, now_ms: int) -> int:
    limit_ms = log.config.retention_ms
    if limit_ms < 0:
        return count
    for segment in log.segments[count:]:
        if _is_empty_active(log, segment) or now_ms - segment.largest_timestamp <= limit_ms:
            break
        count += 1
    return count


def _is_empty_active(log: RetainedLog, segment: SegmentView) -> bool:
    return segment is log.segments[-1] and not segment.size
