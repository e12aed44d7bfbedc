"""What a round leaves of a log, byte for byte, as the model in tests/naive_cleaner.py has it: batches in a row, without segments.

A batch that the model leaves as it was keeps its bytes, any other is written anew from the records that it has left.
"""

from __future__ import annotations

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.segments.rebuilt_batch import with_codec
from diamant.protocol.batches.batch_records import build_batch
from tests.cleaner.cleaner_log import CleanerLog, StoredBatch
from tests.naive_cleaner import NaiveBatch, NaiveRecord, Protected, naive_round


def naive_bytes(log: CleanerLog, plan: CleanPlan) -> bytes:
    """Return all batches that the round of `plan` over `log` leaves, in a row. The plan begins and ends at bases of segments."""
    stored = {batch.header.base_offset: batch for batch in log.stored()}
    left = naive_round(
        [naive(batch) for batch in stored.values()],
        first_dirty=plan.first_dirty_offset,
        bound=plan.first_uncleanable_offset,
        header_end=plan.header_end,
        now_ms=plan.now_ms,
        retention_ms=plan.delete_retention_ms,
        protected={
            producer: Protected(active.producer_epoch, active.last_data_offset)
            for producer, active in plan.active_producers.items()
        },
    )
    return b"".join(_written(batch, stored[batch.base]) for batch in left)


def naive(batch: StoredBatch) -> NaiveBatch:
    """Return a stored batch in the model's words."""
    header = batch.header
    return NaiveBatch(
        header.base_offset,
        header.last_offset,
        tuple(
            NaiveRecord(
                record.offset,
                record.key,
                record.value,
                ("abort", "commit")[(record.key or b"")[3]] if header.is_control else "",
            )
            for record in batch.records
        ),
        header.producer_id,
        header.producer_epoch,
        header.is_transactional,
        header.is_control,
        header.base_timestamp if header.has_delete_horizon else None,
    )


def _written(batch: NaiveBatch, before: StoredBatch) -> bytes:
    if batch == naive(before):
        return before.data
    header = before.header
    offsets = {record.offset for record in batch.records}
    rebuilt = build_batch(
        [record for record in before.records if record.offset in offsets],
        base_offset=batch.base,
        last_offset_delta=batch.last - batch.base,
        leader_epoch=header.partition_leader_epoch,
        producer_id=batch.producer,
        producer_epoch=batch.epoch,
        base_sequence=header.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon_ms=batch.horizon_ms,
        # Of what is left, and of a batch that is left empty as it was.
        max_timestamp=None if offsets else header.max_timestamp,
    )
    return bytes(with_codec(rebuilt, header.codec) if offsets else rebuilt)
