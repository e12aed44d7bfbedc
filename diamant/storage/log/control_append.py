"""Appends control batches, which end a transaction in the log, the producer state and the index of aborted transactions."""

from __future__ import annotations

from collections.abc import Callable

from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import BatchHeader
from diamant.storage.producers.producer_state import ProducerStateManager
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.txn_index import AbortedTxn


def append_control(
    segment: Segment,
    producers: ProducerStateManager,
    batch: memoryview | bytearray,
    header: BatchHeader,
    now_ms: int,
    index_interval_bytes: int,
    fail: Callable[[OSError], None],
) -> None:
    """Append a control batch. If it aborts a transaction with data in this partition, index the aborted transaction.

    The index entry is written first: with a marker but no entry, aborted records would seem committed, and no later check
    would notice. If the marker cannot be written, the entry is removed; after a crash, segment recovery rebuilds the
    index. If the entry cannot be removed, `fail` stops all appends; the log is then not closed cleanly, and the next start
    rebuilds the index.
    """
    transactions = producers.transactions
    marker = next(iter_records(batch), None)
    if marker is None or marker.key is None:
        segment.append(batch, header.last_offset, header.max_timestamp, now_ms, index_interval_bytes)
        transactions.on_high_watermark(header.last_offset + 1)
        return
    control_type, coordinator_epoch = parse_control_type(marker.key), coordinator_epoch_of(marker.value)
    producers.check_marker(header, coordinator_epoch)
    ended = producers.transaction_ended_by(header, control_type, header.base_offset)
    aborted = ended if ended is not None and ended.is_aborted else None
    if aborted is not None:
        stable = transactions.last_stable_offset_after(aborted)
        segment.txn_index.append(AbortedTxn(aborted.producer_id, aborted.first_offset, aborted.last_offset, stable))
    try:
        segment.append(batch, header.last_offset, header.max_timestamp, now_ms, index_interval_bytes)
    except OSError:
        if aborted is not None:
            try:
                segment.txn_index.truncate_to(header.base_offset)
            except OSError as error:
                fail(error)
        raise
    completed = producers.append_marker(header, control_type, coordinator_epoch, header.base_offset)
    if completed is not None:
        transactions.complete(completed)
    transactions.on_high_watermark(header.last_offset + 1)


def coordinator_epoch_of(value: bytes | None) -> int:
    """Return the coordinator epoch in a marker's value; -1 if it has none."""
    return int.from_bytes(value[2:6], "big", signed=True) if value is not None and len(value) >= 6 else -1
