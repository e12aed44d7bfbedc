"""Removes the newest records of an open log, for example because a new leader does not have them.

Source: UnifiedLog.truncateTo.
"""

from __future__ import annotations

from bisect import bisect_left

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log
from diamant.storage.recovery.segment_recovery import rebuild_producers


def remove_tail(log: Log, offset: int) -> int:
    """Remove the records from `offset` on, in whole batches, and return the new log end offset. Does not notify listeners.

    Raises OFFSET_OUT_OF_RANGE if `offset` is outside the active segment, which is the only one that no cleaner reads. No flush
    may be in progress. Reads the headers of the active segment.
    """
    segment = log.active
    first = max(segment.base_offset, log.log_start_offset)
    if not first <= offset <= log.log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{log.topic}-{log.partition} cannot end at offset {offset}: expected an offset from {first}, where its active "
            f"segment begins, to {log.log_end_offset}, the end of its log",
        )
    located = segment.locate(offset) if offset < log.log_end_offset else None
    if located is None:
        return log.log_end_offset
    position, header = located
    end = max(min(header.base_offset, offset), first)
    segment.truncate_bytes(position)
    entries = segment.offset_index.file
    entries.truncate(bisect_left(entries.load()[1], position))
    segment.time_index.truncate_to(end)
    segment.txn_index.truncate_to(end)
    segment.max_timestamp, segment.offset_of_max_timestamp = segment.time_index.last_entry
    for _, kept in segment.scan_from(segment.offset_index.last_offset):
        segment.see_timestamp(kept)
    segment.bytes_since_index_entry = position - segment.offset_index.last_entry[1]
    log.log_end_offset = end
    log.recovery_point = min(log.recovery_point, end)
    log.epochs.truncate_from_end(end)
    log.reader.forget()
    log.producers.load(log.env.clock.now_ms(), end, log_start_offset=log.log_start_offset)
    rebuild_producers(log.producers, log.segments, end, log.env)
    log.producers.transactions.on_high_watermark(end)
    return end
