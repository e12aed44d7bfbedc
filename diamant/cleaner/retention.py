"""Which of the oldest segments retention may remove; decides only, touches nothing.

Source: UnifiedLog.deleteOldSegments with its three rules: below the log start, over `retention.bytes`, older than
`retention.ms`. Segments go from the oldest on, and the first that must stay ends the walk.
"""

from __future__ import annotations

from diamant.storage.log import Log


def deletable_segments(log: Log, now_ms: int) -> int:
    """How many of the oldest segments of `log` may go at `now_ms`; an empty active segment always stays."""
    config = log.config
    counts = [_below_log_start(log)]
    if config.is_deleted:
        counts.append(_over_size(log))
        counts.append(_over_age(log, now_ms))
    return max(counts)


def _below_log_start(log: Log) -> int:
    count = 0
    for following in log.segments[1:]:
        if following.base_offset > log.log_start_offset:
            break
        count += 1
    return count


def _over_size(log: Log) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    excess = log.size - limit
    count = 0
    for segment in log.segments:
        if excess < segment.size or not segment.size:
            break
        excess -= segment.size
        count += 1
    return count


def _over_age(log: Log, now_ms: int) -> int:
    limit_ms = log.config.retention_ms
    if limit_ms < 0:
        return 0
    count = 0
    for segment in log.segments:
        is_empty_active = segment is log.active and not segment.size
        if is_empty_active or now_ms - segment.largest_timestamp <= limit_ms:
            break
        count += 1
    return count
