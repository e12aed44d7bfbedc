"""Rolls segments without an append, and measures the age of records by the wall clock (mode prompt).

Kafka rolls a segment only during an append, and goes by the timestamps of its records. If traffic stops, the last records stay
in the active segment, where the cleaner cannot reach them. The rules in this module turn `max.compaction.lag.ms` into a promise:

    A superseded record is gone from the log `max.compaction.lag.ms` after it was appended, or after it was superseded
    if that was later, plus one cycle of the cleaner and the time of the round. This holds with and without traffic,
    and across restarts.

It holds because a segment's lag and its roll deadline count from the same moment, the append of its first batch. A segment is
overdue as soon as it is rolled, and the round follows in the same cycle. As in Kafka, an open transaction or a record younger
than `min.compaction.lag.ms` defers the round; so does a segment in quarantine. Files with the suffix `.deleted` keep the removed
records for another `file.delete.delay.ms`.

* The time of the first append is known for segments that this process has written, and for segments that were active at an
  orderly shutdown, which stores it (`storage.segments.first_appends`). Kafka does not store it. After a crash, or if Kafka wrote
  the segment, it is estimated as the earliest of: the first batch's timestamp, if it has one; the file's birth time; its
  modification time; now. A restart does not make these times later, so it never postpones a deadline. If the file system has no
  birth times, the previous segment's modification time is used instead; for the first segment, that of the partition's metadata
  file. The estimate may be too early, by as long as the segment was empty, but never too late. An early estimate costs at most
  one small segment per restart.
* The active segment is rolled when the time since its first append exceeds min(`segment.ms`, `max.compaction.lag.ms`) minus its
  jitter.
* A closed segment is overdue when its first append, or its first batch's timestamp (Kafka's measure), is more than
  `max.compaction.lag.ms` ago. So mode prompt is never later than Kafka, and future or missing timestamps defer nothing.
* The age of the youngest record counts from its timestamp, or from the last append if that is earlier
  (`Segment.last_append_ms`). For segments that this process has not written, the modification time is used instead of the last
  append; rounds preserve it, and it is never earlier. So `min.compaction.lag.ms` is respected, and timestamps in the future defer
  nothing.
* Jitter is kept below the time after which a segment is rolled; otherwise each append would roll it. Kafka only keeps jitter
  below `segment.ms`.

The service's loop, in the thread that owns the logs, uses this module as follows, except in mode kafka:

    config = config.with_clamped_jitter()                      for each new configuration of a log
    for log in logs: if should_roll(log, now_ms): log.roll()   at the start of each cycle, before the scan
    found = cleanable_range(..., ages=BY_APPEND)               in the scan
    due_ms(log, found.first_dirty_offset, now_ms)              latest time of the next cycle

The first query about a segment older than this process reads a header and two file times; `Segment.first_append_ms` stores the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from diamant.cleaner.rules.eligibility import BY_TIMESTAMP, Ages, CleanableRange, LogView, SegmentView
from diamant.cleaner.rules.modes import KAFKA
from diamant.storage import names
from diamant.storage.config_key import LONG_MAX
from diamant.storage.env.env import Env
from diamant.storage.segments.log_config import LogConfig


class AgingSegment(SegmentView, Protocol):
    """The attributes of a segment (`storage.segments.segment.Segment`) that the rules need."""

    first_append_ms: int | None

    @property
    def jitter_ms(self) -> int: ...
    @property
    def path(self) -> str: ...


SegmentT = TypeVar("SegmentT", bound=AgingSegment, covariant=True)


class AgingLog(Protocol[SegmentT]):
    """The attributes of a log (`storage.log.log.Log`) that the rules need."""

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


class AgingLogView(LogView, AnyLog, Protocol):
    """The attributes of a log from which both kinds of ages can be computed."""

    @property
    def segments(self) -> Sequence[AgingSegment]: ...


def roll_due_ms(log: AnyLog, now_ms: int) -> int | None:
    """Return when to roll the active segment, possibly in the past; None if it is never due or cannot be rolled."""
    active, config = log.active, log.config
    limit_ms = config.max_segment_ms
    if not active.size or not config.is_compacted or limit_ms >= LONG_MAX:
        return None
    if log.is_deleted or log.write_failure is not None:
        return None
    # Jitter from an earlier configuration may exceed the current limit.
    jitter_ms = active.jitter_ms % limit_ms if limit_ms > 0 else 0
    return first_append_ms(log, active, now_ms) + limit_ms - jitter_ms + 1


def should_roll(log: AnyLog, now_ms: int) -> bool:
    """Return whether to roll the active segment now, with `log.roll()`."""
    due = roll_due_ms(log, now_ms)
    return due is not None and now_ms >= due


class _ByAppend:
    def overdue_ms(self, log: AnyLog, first_dirty_offset: int, now_ms: int, /) -> int:
        if log.config.max_compaction_lag_ms >= now_ms:
            return 0  # no record can be that old; saves reading file times if no lag is set
        oldest_ms = oldest_append_ms(log, first_dirty_offset, now_ms, with_active=False)
        return 0 if oldest_ms is None else max(0, now_ms - oldest_ms - log.config.max_compaction_lag_ms)

    def youngest_ms(self, segment: SegmentView, /) -> int:
        return min(segment.largest_timestamp, segment.last_append_ms)


BY_APPEND: Ages[AgingLogView] = _ByAppend()
"""The ages of mode prompt, counted from the append, or from the timestamp if that is earlier; see the module."""


def ages_in(mode: str) -> Ages[AgingLogView]:
    """Return the ages that a mode uses."""
    return BY_TIMESTAMP if mode == KAFKA else BY_APPEND


def due_ms(log: AnyLog, first_dirty_offset: int, now_ms: int) -> int | None:
    """Return the log's next deadline: the roll of a segment, or the time at which a closed segment becomes overdue.

    If the deadline is in the past, the next scan handles it, unless the log waits for something else, such as a transaction.
    """
    times = [roll_due_ms(log, now_ms)]
    if log.config.is_compacted and log.config.max_compaction_lag_ms < LONG_MAX:
        oldest_ms = oldest_append_ms(log, first_dirty_offset, now_ms, with_active=False)
        times.append(None if oldest_ms is None else oldest_ms + log.config.max_compaction_lag_ms + 1)
    return min((time for time in times if time is not None), default=None)


def first_append_ms(log: AnyLog, segment: AgingSegment, now_ms: int) -> int:
    """Return when the first batch of a non-empty segment was appended, or an earlier estimate; see the module."""
    known = segment.first_append_ms
    if known is None:
        known = segment.first_append_ms = _estimated_append_ms(log, segment, now_ms)
    return min(known, now_ms)


def oldest_append_ms(log: AnyLog, first_dirty_offset: int, now_ms: int, *, with_active: bool) -> int | None:
    """Return the time from which the lag of the oldest dirty segment counts; None if there is no dirty segment.

    No remaining record was superseded before that time, because the record that superseded it is dirty, too.
    """
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, end in zip(segments, ends, strict=False) if end > first_dirty_offset]
    if with_active:
        dirty.append(log.active)
    return min((lag_begin_ms(log, segment, now_ms) for segment in dirty if segment.size), default=None)


def lag_begin_ms(log: AnyLog, segment: AgingSegment, now_ms: int) -> int:
    """Return the time from which the lag of a non-empty segment counts."""
    appended_ms = first_append_ms(log, segment, now_ms)
    # As in Kafka, the active segment's timestamps do not count before it is closed.
    is_by_record = segment is not log.active and segment.first_timestamp > 0
    return min(appended_ms, segment.first_timestamp) if is_by_record else appended_ms


def must_clean_bytes(log: AnyLog, found: CleanableRange, now_ms: int, *, by_append: bool) -> int:
    """Return the cleanable bytes, in whole segments, older than `max.compaction.lag.ms` (KIP-354's must-clean).

    Without `by_append` only timestamps determine the age, as in Kafka.
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
