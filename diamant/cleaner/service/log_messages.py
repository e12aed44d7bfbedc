"""Formats the cleaner's log messages from a plan and its result. They contain the same information as Kafka's messages.

For an empty round Kafka divides by zero and prints NaN or ∞; these messages omit undefined figures.
Sizes are in powers of 1024. Counts have commas as thousands separators.

Source: Kafka's CleanerSlot.recordStats, Cleaner.buildOffsetMap, LogCleaner.tryCleanFilthiestLog.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import REASONS, CleanResult, CleanStats
from diamant.words import size_text


def round_summary(plan: CleanPlan, result: CleanResult) -> str:
    """Return a summary of a round on several lines: sizes, rates, shares of the time, use of the map, removed records."""
    stats = result.stats
    total_s = max(stats.end_s - stats.start_s, 0.0)
    index_s = min(max(stats.map_complete_s - stats.start_s, 0.0), total_s)
    clean_s = total_s - index_s
    lines = [
        f"{_name(plan)}: cleaned by {result.runner}, dirty section [{plan.first_dirty_offset}, {result.end_offset})",
        f"{size_text(stats.bytes_read)} of log in {_seconds(total_s)}{_rate(stats.bytes_read, total_s)}",
        f"indexed {size_text(stats.map_bytes_read)} in {_seconds(index_s)}{_rate(stats.map_bytes_read, index_s)}"
        f"{_share(index_s, total_s)}, buffer utilization {_percent(stats.map_utilization)}",
        f"cleaned {size_text(stats.bytes_read)} in {_seconds(clean_s)}{_rate(stats.bytes_read, clean_s)}"
        f"{_share(clean_s, total_s)}",
        f"start: {size_text(stats.bytes_read)}, {_messages(stats.messages_read)}",
        f"end: {size_text(stats.bytes_written)}, {_messages(stats.messages_written)}, {_segments(result)}",
        *_reduction(stats),
        *_removed(stats),
    ]
    return "\n    ".join(lines)


def invalid_messages(plan: CleanPlan, result: CleanResult) -> str | None:
    """Return a warning about records without a key, or None if the round read none."""
    count = result.stats.invalid_messages_read
    if not count:
        return None
    return f"{_name(plan)}: {_messages(count)} without a key; a compacted topic cannot keep them"


def offset_map_full(plan: CleanPlan, end_offset: int) -> str | None:
    """Return the message for a round whose map was full at `end_offset`; None if the round reached the end of its range."""
    if end_offset >= plan.first_uncleanable_offset:
        return None
    dirty = [segment for segment in plan.segments if segment.next_base_offset > plan.first_dirty_offset]
    mapped = [segment for segment in dirty if segment.next_base_offset <= end_offset]
    partly = next((segment for segment in dirty if segment.base_offset < end_offset < segment.next_base_offset), None)
    partly_text = "" if partly is None else f" and a part of the one at {partly.base_offset}"
    return (
        f"{_name(plan)}: the offset map is full ({plan.map_max_entries:,} keys) after {len(mapped)} of {len(dirty)} "
        f"segments{partly_text}; this round ends at {end_offset} instead of {plan.first_uncleanable_offset}, and the next "
        "continues there (log.cleaner.dedupe.buffer.size)"
    )


def partition_uncleanable(topic: str, partition: int, reason: object, *, retry_in_ms: int | None = None) -> str:
    """Return the warning that a partition was marked uncleanable. `reason` is an exception or a string."""
    then = "until the broker starts again" if retry_in_ms is None else f"for {_seconds(retry_in_ms / 1000)}"
    return f"{topic}-{partition}: marked uncleanable, not cleaned {then}: {_reason(reason)}"


def delayed_partitions(cleanable_count: int, delayed_count: int, max_delay_ms: int) -> str | None:
    """Return a message with the number of partitions beyond max.compaction.lag.ms; None if there are none."""
    if delayed_count <= 0:
        return None
    return (
        f"{cleanable_count:,} partitions to clean, {delayed_count:,} of them beyond max.compaction.lag.ms, "
        f"by up to {_seconds(max_delay_ms / 1000)}"
    )


def _name(plan: CleanPlan) -> str:
    return f"{plan.topic}-{plan.partition}"


def _reduction(stats: CleanStats) -> list[str]:
    parts = []
    if stats.bytes_read > 0:
        parts.append(f"{_percent(1 - stats.bytes_written / stats.bytes_read)} size reduction")
    if stats.messages_read > 0:
        parts.append(f"{_percent(1 - stats.messages_written / stats.messages_read)} fewer messages")
    return [", ".join(parts)] if parts else []


def _removed(stats: CleanStats) -> list[str]:
    present = [reason for reason in REASONS if stats.removed.get(reason) or stats.removed_bytes.get(reason)]
    if not present:
        return []
    return ["removed: " + ", ".join(_one_reason(reason, stats.removed, stats.removed_bytes) for reason in present)]


def _one_reason(reason: str, counts: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    return f"{reason.replace('_', ' ')} {counts.get(reason, 0):,} ({size_text(sizes.get(reason, 0))})"


def _segments(result: CleanResult) -> str:
    sources = sum(len(output.source_base_offsets) for output in result.outputs)
    return f"{sources:,} segments into {len(result.outputs):,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.1f} ms"


_CLOCK_S = 1e-9
"""Clock resolution; a rate over a shorter time is meaningless."""


def _rate(count: int, seconds: float) -> str:
    return f" ({size_text(round(count / seconds))}/s)" if count > 0 and seconds > _CLOCK_S else ""


def _share(part_s: float, total_s: float) -> str:
    return f", {_percent(part_s / total_s)} of the time" if total_s > 0 else ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


def _reason(reason: object) -> str:
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__
    return str(reason)
