"""Closing a segment without an append, and the age of records by the wall clock (mode prompt).

In Kafka a segment is closed by an append only, and by the timestamps in it, so that what was written last before a silence stays
in the active segment for ever, out of the cleaner's reach. The rules here make `max.compaction.lag.ms` a promise:

    A record that a later one supersedes is gone from the log `max.compaction.lag.ms` after it was appended, or after it
    was superseded if that came later, plus one loop of the cleaner and the time that the round takes. Traffic or none,
    and across restarts.

It holds because a segment's lag and its deadline for being closed count from the same moment, the append of its first batch: in
the loop that closes it, it is overdue at once, and the round follows in the same loop. What defers it, as it does in Kafka, is
`min.compaction.lag.ms`, an open transaction, a segment in quarantine; files with the suffix `.deleted` hold the old
records for `file.delete.delay.ms` more.

* The moment of the first append is known for a segment that this process has written (`Segment.first_append_ms`). Kafka's files
  do not hold it, so for others it is the earliest of: the first batch's timestamp, if it has one; the file's birth; its
  modification time; now. None of these moves on when a broker is restarted, so restarts never postpone a deadline. Where the
  file system knows no birth, the modification time of the segment before, or for a first segment that of the partition's
  metadata file, stands for it: that is too early, never too late. Too early costs one small segment per restart.
* An active segment is closed when its first append is more than min(`segment.ms`, `max.compaction.lag.ms`) ago, less its jitter.
* A closed segment is overdue when that moment, or the first batch's timestamp (Kafka's measure), is more than
  `max.compaction.lag.ms` ago. So prompt is never later than Kafka, and timestamps in the future or missing do not defer anything.
* Jitter is less than that limit. Kafka draws it below `segment.ms` only: more than the limit would close at each append.

For the loop of the service, in the thread that owns the logs; nothing here is called in mode kafka:

    config = config.with_clamped_jitter()                      whenever a log is given its configuration
    for log in logs: if should_roll(log, now_ms): log.roll()   at the start of each loop, before the scan
    found = cleanable_range(..., overdue_ms=overdue_ms)        in the scan
    due_ms(log, found.first_dirty_offset, now_ms)              when to look again at the latest

The first question about a segment that was there before the start reads a header and asks for two file times; the answer is
kept in `Segment.first_append_ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.log_config import LONG_MAX, LogConfig


class AgingSegment(Protocol):
    """The attributes needed of a segment (`storage.segments.segment.Segment`)."""

    first_append_ms: int | None

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def jitter_ms(self) -> int: ...
    @property
    def path(self) -> str: ...


SegmentT = TypeVar("SegmentT", bound=AgingSegment, covariant=True)


class AgingLog(Protocol[SegmentT]):
    """The attributes needed of a log (`storage.log.log.Log`)."""

    @property
    def segments(self) -> Sequence[SegmentT]: ...
    @property
    def active(self) -> SegmentT: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def env(self) -> Env: ...
    @property
    def path(self) -> str: ...
    @property
    def is_deleted(self) -> bool: ...
    @property
    def write_failure(self) -> OSError | None: ...
    def floor_segment(self, offset: int) -> int: ...


AnyLog = AgingLog[AgingSegment]


def roll_due_ms(log: AnyLog, now_ms: int) -> int | None:
    """Return when the active segment is to be closed, maybe in the past; None if nothing in it ages, or it cannot be."""
    active, config = log.active, log.config
    limit_ms = config.max_segment_ms
    if not active.size or not config.is_compacted or limit_ms >= LONG_MAX:
        return None
    if log.is_deleted or log.write_failure is not None:
        return None
    # A jitter drawn under another configuration may be larger than the limit is now.
    jitter_ms = active.jitter_ms % limit_ms if limit_ms > 0 else 0
    return first_append_ms(log, active, now_ms) + limit_ms - jitter_ms + 1


def should_roll(log: AnyLog, now_ms: int) -> bool:
    """Tell whether the active segment is to be closed now, by `log.roll()`."""
    due = roll_due_ms(log, now_ms)
    return due is not None and now_ms >= due


def overdue_ms(log: AnyLog, first_dirty_offset: int, now_ms: int) -> int:
    """Return by how much the oldest dirty record of a closed segment has outlived `max.compaction.lag.ms`; 0 if it has not."""
    if log.config.max_compaction_lag_ms >= now_ms:
        return 0  # nothing can be that old; saves asking for times of files where no lag is set
    oldest_ms = oldest_append_ms(log, first_dirty_offset, now_ms, with_active=False)
    return 0 if oldest_ms is None else max(0, now_ms - oldest_ms - log.config.max_compaction_lag_ms)


def due_ms(log: AnyLog, first_dirty_offset: int, now_ms: int) -> int | None:
    """Return when the log's next deadline is: a segment to be closed, or a closed one that becomes overdue.

    A time in the past means at the next scan: something other than time may keep the log from being cleaned.
    """
    times = [roll_due_ms(log, now_ms)]
    if log.config.is_compacted and log.config.max_compaction_lag_ms < LONG_MAX:
        oldest_ms = oldest_append_ms(log, first_dirty_offset, now_ms, with_active=False)
        times.append(None if oldest_ms is None else oldest_ms + log.config.max_compaction_lag_ms + 1)
    return min((time for time in times if time is not None), default=None)


def first_append_ms(log: AnyLog, segment: AgingSegment, now_ms: int) -> int:
    """Return when the first batch of a segment that is not empty was appended, or a moment before; see the module."""
    known = segment.first_append_ms
    if known is None:
        known = segment.first_append_ms = _estimated_append_ms(log, segment, now_ms)
    return min(known, now_ms)


def oldest_append_ms(log: AnyLog, first_dirty_offset: int, now_ms: int, *, with_active: bool) -> int | None:
    """Return the moment from which the lag of the oldest dirty segment counts; None if there is none.

    Nothing in the log was superseded earlier and is still there, since whatever superseded it is dirty, too.
    """
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, end in zip(segments, ends, strict=False) if end > first_dirty_offset]
    if with_active:
        dirty.append(log.active)
    return min((lag_begin_ms(log, segment, now_ms) for segment in dirty if segment.size), default=None)


def lag_begin_ms(log: AnyLog, segment: AgingSegment, now_ms: int) -> int:
    """Return from when on the lag of a segment that is not empty counts."""
    appended_ms = first_append_ms(log, segment, now_ms)
    # As in Kafka the active segment's timestamps mean nothing before it is closed.
    is_by_record = segment is not log.active and segment.first_timestamp > 0
    return min(appended_ms, segment.first_timestamp) if is_by_record else appended_ms


def must_clean_bytes(log: AnyLog, found: CleanableRange, now_ms: int, *, by_append: bool) -> int:
    """Return how many of the cleanable bytes have outlived `max.compaction.lag.ms` (KIP-354's must-clean), by whole segments.

    Without `by_append` their lag counts from their timestamps alone, as in Kafka.
    """
    if not found.is_overdue:
        return 0
    limit_ms = now_ms - max(log.config.max_compaction_lag_ms, 0)
    ends = [segment.base_offset for segment in log.segments[1:]]
    return sum(
        segment.size
        for segment, end in zip(log.segments, ends, strict=False)
        if end > found.first_dirty_offset and end <= found.first_uncleanable_offset and segment.size
        if 0 < (lag_begin_ms(log, segment, now_ms) if by_append else segment.first_timestamp) < limit_ms
    )


def _estimated_append_ms(log: AnyLog, segment: AgingSegment, now_ms: int) -> int:
    env = log.env
    times = [now_ms, env.mtime_ms(segment.path)]
    if segment.first_timestamp > 0:
        times.append(segment.first_timestamp)
    birth_ms = env.birth_ms(segment.path)
    if birth_ms is not None:
        times.append(birth_ms)
        return min(times)
    index = log.floor_segment(segment.base_offset)
    if index > 0:
        times.append(env.mtime_ms(log.segments[index - 1].path))
    else:
        metadata = f"{log.path}/{names.PARTITION_METADATA}"
        if env.exists(metadata):
            times.append(env.mtime_ms(metadata))
    return min(times)
