"""Logs Kafka's own messages about the cleaner, word for word, in mode kafka, because guides and alerts search for them.

They are logged in addition to our messages, under the name of Kafka's logger. Undefined figures appear as NaN or Infinity, as
in Java.

Source: LogCleaner.CleanerSlot.recordStats, LogCleaner.tryCleanFilthiestLog and Cleaner.buildOffsetMap in Kafka 4.3.1. Kafka logs
a full map only at DEBUG; here the message is logged at INFO, so that anyone who follows a guide finds it.
"""

from __future__ import annotations

import logging
import math

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult
from diamant.storage.log.log import Log
from diamant.storage.uuid_text import uuid_to_text

logger = logging.getLogger("org.apache.kafka.storage.internals.log.LogCleaner")

_MB = 1024 * 1024


def log_round(thread: int, plan: CleanPlan, result: CleanResult) -> None:
    """Log the summary of a round. Also log if its map was full, and if it read records without a key."""
    if result.end_offset < plan.first_uncleanable_offset:
        dirty = [segment.base_offset for segment in plan.segments if segment.next_base_offset > plan.first_dirty_offset]
        full = max(index for index, base in enumerate(dirty) if base <= result.end_offset)
        logger.info(
            "Cleaner %d: Offset map is full, %d segments fully mapped, segment with base offset %d is partially mapped",
            *(thread, full, dirty[full]),
        )
    logger.info("[kafka-log-cleaner-thread-%d]: %s", thread, _summary(thread, plan, result))
    if result.stats.invalid_messages_read:
        logger.warning(
            "[kafka-log-cleaner-thread-%d]: \tFound %d invalid messages during compaction.",
            *(thread, result.stats.invalid_messages_read),
        )


def log_uncleanable(log: Log) -> None:
    """Log that a partition is uncleanable from now on."""
    whole = (
        f"Log(dir={log.path}, topicId={uuid_to_text(log.topic_id)}, topic={log.topic}, partition={log.partition}, "
        f"highWatermark={log.log_end_offset}, lastStableOffset={log.last_stable_offset}, "
        f"logStartOffset={log.log_start_offset}, logEndOffset={log.log_end_offset})"
    )
    logger.warning(
        "Unexpected exception thrown when cleaning log %s. Marking its partition (%s-%d) as uncleanable",
        *(whole, log.topic, log.partition),
    )


def _summary(thread: int, plan: CleanPlan, result: CleanResult) -> str:
    stats = result.stats
    total_s = stats.end_s - stats.start_s
    index_s = stats.map_complete_s - stats.start_s
    clean_s = total_s - index_s
    read_mb, mapped_mb = stats.bytes_read / _MB, stats.map_bytes_read / _MB
    lines = [
        "",
        f"Log cleaner thread {thread} cleaned log {plan.topic}-{plan.partition} "
        f"(dirty section = [{plan.first_dirty_offset}, {result.end_offset}])",
        f"{_figure(read_mb)} MB of log processed in {_figure(total_s)} seconds ({_rate(read_mb, total_s)} MB/sec).",
        f"Indexed {_figure(mapped_mb)} MB in {index_s:.1f} seconds ({_rate(mapped_mb, index_s)} Mb/sec, "
        f"{_rate(100 * index_s, total_s)}% of total time)",
        f"Buffer utilization: {100 * stats.map_utilization:.1f}%",
        f"Cleaned {_figure(read_mb)} MB in {clean_s:.1f} seconds ({_rate(read_mb, clean_s)} Mb/sec, "
        f"{_rate(100 * clean_s, total_s)}% of total time)",
        f"Start size: {_figure(read_mb)} MB ({stats.messages_read:,} messages)",
        f"End size: {_figure(stats.bytes_written / _MB)} MB ({stats.messages_written:,} messages)",
        f"{_reduction(stats.bytes_written, stats.bytes_read)}% size reduction "
        f"({_reduction(stats.messages_written, stats.messages_read)}% fewer messages)",
    ]
    return "\n\t".join(lines) + "\n"


def _figure(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:,.1f}" if math.isfinite(value) else "Infinity"


def _rate(amount: float, per: float) -> str:
    if per:
        return _figure(amount / per)
    return "Infinity" if amount > 0 else "NaN"


def _reduction(left: int, of: int) -> str:
    return _figure(100 * (1 - left / of)) if of else "NaN"
