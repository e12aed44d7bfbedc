"""Rewrites a single batch of any format, record by record, by the rules in `rules.record_fate`.

Source: Kafka's Cleaner.cleanInto, its RecordFilter, and MemoryRecords.filterTo.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from diamant.cleaner.rules import record_fate
from diamant.cleaner.segments.rebuilt_batch import emptied_batch, rebuilt_batch
from diamant.cleaner.segments.strict_reader import RecordsOutOfOrder
from diamant.kernels.constants import fates, steps
from diamant.protocol.batches.header import HEADER_SIZE, BatchHeader, Record, parse_header
from diamant.protocol.varint import varint_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import SegmentPlan
    from diamant.cleaner.rules.transaction_tracker import TransactionTracker
    from diamant.cleaner.segments.chunk_batch import ChunkBatch
    from diamant.storage.env.env import Buffer
    from diamant.storage.segments.txn_index import AbortedTxn


class LastOffsets(Protocol):
    """The last offset of each key in the dirty range."""

    @property
    def end_offset(self) -> int:
        """Last offset that the map covers."""
        ...

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """For each key in the batch that the map contains, return its last offset. The result may contain other keys."""
        ...


class Target(Protocol):
    """The receiver of rewritten batches: a `SegmentWriter`."""

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Append one batch unchanged."""
        ...

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Add an entry to the index of aborted transactions."""
        ...


class BatchRewriter:
    """Rewrites batches in offset order. Batches that are rewritten by other code must also be reported to the tracker."""

    def __init__(self, work: RoundWork, tracker: TransactionTracker, keys: LastOffsets) -> None:
        self._plan = work.plan
        self._stats = work.stats
        self._tracker = tracker
        self._keys = keys
        self._legacy_horizon_ms = work.plan.legacy_tombstone_horizon_ms

    def rewrite(self, batch: ChunkBatch, segment: SegmentPlan, target: Target) -> None:
        """Report a batch to the tracker, and rewrite it."""
        header = batch.header
        if header.is_control:
            may_drop, aborted = self._tracker.drops_control(
                header.last_offset,
                header.producer_id,
                batch.control_type(),
                is_frozen=self._plan.is_frozen(header.base_offset),
            )
            if aborted is not None:
                target.add_aborted(aborted)
        else:
            may_drop = self._tracker.drops_data(
                header.last_offset, header.producer_id, is_transactional=header.is_transactional
            )
        self.rewrite_decided(batch, segment, target, may_drop=may_drop)

    def rewrite_decided(self, batch: ChunkBatch, segment: SegmentPlan, target: Target, *, may_drop: bool) -> None:
        """Rewrite a batch that has been reported to the tracker; `may_drop` is the tracker's answer."""
        plan, stats, header = self._plan, self._stats, batch.header
        drops_all = record_fate.drops_all_records(
            may_drop=may_drop,
            is_control=header.is_control,
            has_horizon=header.has_delete_horizon,
            horizon_ms=header.base_timestamp,
            now_ms=plan.now_ms,
            is_frozen=plan.is_frozen(header.base_offset),
        )
        fate_of_all = fates.FATE_MARKER if header.is_control else fates.FATE_ABORTED
        if not plan.is_kafka and header.last_offset < plan.log_start_offset:
            drops_all = True
            if not header.is_control:
                fate_of_all = fates.FATE_BELOW_LOG_START
        verdict = record_fate.batch_verdict(
            drops_all=drops_all,
            is_last_of_producer=record_fate.is_last_of_producer(
                plan.active_producers.get(header.producer_id) if header.has_producer_id else None,
                last_offset=header.last_offset,
                producer_epoch=header.producer_epoch,
                is_control=header.is_control,
            ),
            is_kept_end=header.next_offset == plan.header_end,
        )
        if verdict != record_fate.DELETE:
            stats.messages_read += header.record_count
        kept: list[Record] = []
        last_tombstone_offset = -1
        if drops_all:
            if header.record_count:
                stats.remove(record_fate.FATE_REASONS[fate_of_all], header.record_count, header.size - HEADER_SIZE)
        elif header.is_control:
            kept = list(batch.records())
        else:
            kept, last_tombstone_offset = self._judge_records(batch, segment)
        sets_horizon = record_fate.needs_horizon(
            has_horizon=header.has_delete_horizon,
            last_tombstone_offset=last_tombstone_offset,
            map_end_offset=self._keys.end_offset,
            is_marker_of_empty_transaction=may_drop and header.is_control,
            is_kafka=plan.is_kafka,
        )
        action = record_fate.batch_action(
            verdict=verdict, kept=len(kept), records=header.record_count, sets_horizon=sets_horizon, magic=header.magic
        )
        stats.messages_written += len(kept)
        if action == steps.COPY:
            target.append(batch.view(), header.last_offset, header.max_timestamp)
        elif action != steps.DROP:
            if action == steps.REBUILD:
                if any(following.offset <= one.offset for one, following in pairwise(kept)):
                    # Kafka's MemoryRecordsBuilder also rejects such records.
                    raise RecordsOutOfOrder(batch.path, batch.position, ", so the batch cannot be rewritten")
                rebuilt = rebuilt_batch(header, kept, plan.new_horizon_ms if sets_horizon else None)
            else:
                rebuilt = emptied_batch(header)
            written = parse_header(rebuilt)
            target.append(rebuilt, written.last_offset, written.max_timestamp)

    def _judge_records(self, batch: ChunkBatch, segment: SegmentPlan) -> tuple[list[Record], int]:
        """Return the kept records of a data batch, and the offset of the last tombstone among them (-1: none)."""
        plan, stats, header = self._plan, self._stats, batch.header
        is_expired = record_fate.tombstones_expired(
            magic=header.magic,
            has_horizon=header.has_delete_horizon,
            horizon_ms=header.base_timestamp,
            now_ms=plan.now_ms,
            modified_ms=segment.modified_ms,
            legacy_horizon_ms=self._legacy_horizon_ms,
            is_frozen=plan.is_frozen(header.base_offset)
            or (header.has_delete_horizon and plan.is_held(header.base_offset, header.base_timestamp)),
        )
        log_start_offset = 0 if plan.is_kafka else plan.log_start_offset
        map_end_offset = self._keys.end_offset
        mapped = self._keys.last_offsets_in(batch).get
        kept: list[Record] = []
        last_tombstone_offset = -1
        for record in batch.records():
            offset, key = record.offset, record.key
            if offset < log_start_offset:
                fate = fates.FATE_BELOW_LOG_START
            else:
                fate = record_fate.record_fate(
                    offset=offset,
                    map_end_offset=map_end_offset,
                    has_key=key is not None,
                    mapped_offset=record_fate.NOT_MAPPED if key is None else mapped(key, record_fate.NOT_MAPPED),
                    has_value=record.value is not None,
                    is_expired=is_expired,
                )
            if fate == fates.KEEP:
                kept.append(record)
                if record.value is None:
                    last_tombstone_offset = offset
                continue
            stats.invalid_messages_read += fate == fates.FATE_KEYLESS
            stats.remove(record_fate.FATE_REASONS[fate], 1, encoded_size(record, header))
        return kept, last_tombstone_offset


def encoded_size(record: Record, header: BatchHeader) -> int:
    """Return the size in bytes of a record in a magic 2 batch with this header, including its length field."""
    size = 2 + varint_size(record.timestamp - header.base_timestamp) + varint_size(record.offset - header.base_offset)
    size += _field_size(record.key) + _field_size(record.value)
    if record.headers:
        size += varint_size(len(record.headers)) - 1
        for key, value in record.headers:
            size += _field_size(key.encode(errors="surrogateescape")) + _field_size(value)
    return size + varint_size(size)


def _field_size(data: bytes | None) -> int:
    if data is None:
        return 1
    size = len(data)
    return size + (1 if size < 64 else varint_size(size))
