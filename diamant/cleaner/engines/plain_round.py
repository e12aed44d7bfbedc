"""The plain engine of the cleaner: a round in ordinary Python, with an exact dictionary of keys.

It is used in the broker for small plans, needs no compiler and no second process, and is the reference that the other
engines are compared with. Two passes: the keys of the dirty range and their last offsets; then all segments from the first one
on, batch by batch.

Memory: one chunk of the segment being read (`io_buffer_bytes`, or one larger batch), what a batch decompresses to (at most
`MAX_BATCH_BYTES`), the output's buffers, and the keys of the dirty range: in mode kafka at most `map_max_entries`, in
mode prompt as many as there are, so large plans belong to the other engines.

Source: Kafka's Cleaner.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from diamant.cleaner.engines.output_sync import OutputSync
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.grouping import ends_output, group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan, aborted_from
from diamant.cleaner.rules.result import (
    CheckDone,
    CleanResult,
    CleanStats,
    OnOutput,
    OutputOverflow,
    OutputSegment,
    Throttle,
    never_done,
    no_output,
    no_throttle,
)
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.rebuilt_batch import emptied_batch, rebuilt_batch
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.cleaner.segments.strict_reader import Chunk, read_chunks
from diamant.protocol.batches.batch import crc_is_valid, parse_header
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import HEADER_SIZE, BatchHeader, Record
from diamant.protocol.batches.records import iter_records
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.segment import scan_from_offset, scan_headers

RUNNER = "inline"

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Limit for one decompressed batch, in bytes; more is CorruptLog."""


def clean(
    env: Env,
    plan: CleanPlan,
    *,
    on_output: OnOutput = no_output,
    check_done: CheckDone = never_done,
    throttle: Throttle = no_throttle,
    sync_threads: int = 0,
    round_type: type[_Round] | None = None,
) -> CleanResult:
    """Carry out `plan`; blocks, so not for the loop thread.

    `on_output` is called for each group of segments as its files are durable (`sync_threads`: see `output_sync`). `round_type`
    does the same work in another way (`small_round`).
    CorruptLog for bytes that are no batch; if an output cannot take what belongs into it OutputOverflow, in mode prompt
    CorruptLog of the source; and whatever `check_done` raises. The files of the group at hand are removed then, groups
    handed over before stay as they are.
    """
    round_ = (round_type or _Round)(env, plan, check_done, throttle)
    stats = round_.stats
    stats.start_s = time.monotonic()
    round_.build_map()
    stats.map_complete_s = time.monotonic()
    end_offset = round_.map_end_offset + 1
    outputs: list[OutputSegment] = []
    with OutputSync(env, plan.directory, on_output, sync_threads) as sync:
        for group in group_segments(plan, segments_to_clean(plan, end_offset)):
            for output in round_.rewrite_group(group):
                sync.add(output)
                outputs.append(output)
    stats.end_s = time.monotonic()
    return CleanResult(end_offset, tuple(outputs), stats, RUNNER)


class _Round:
    """The state of one round."""

    writer_type = SegmentWriter

    def __init__(self, env: Env, plan: CleanPlan, check_done: CheckDone, throttle: Throttle) -> None:
        self.env = env
        self.plan = plan
        self.check_done = check_done
        self.throttle = throttle
        self.stats = CleanStats()
        self.last_offsets: dict[bytes, int] = {}
        """Key to the offset of its last record in the dirty range."""
        self.map_end_offset = plan.first_dirty_offset - 1
        """Last offset that the map covers."""
        self.tracker = TransactionTracker()
        """Of the rewrite, over all groups."""
        self.legacy_horizon_ms = plan.legacy_tombstone_horizon_ms
        self.index_of = {segment.base_offset: index for index, segment in enumerate(plan.segments)}

    # -- the map ---------------------------------------------------------------------------------------------------------

    def build_map(self) -> None:
        plan = self.plan
        if plan.first_dirty_offset >= plan.first_uncleanable_offset:
            return
        bases = [segment.base_offset for segment in plan.segments]
        first = max((i for i, base in enumerate(bases) if base <= plan.first_dirty_offset), default=0)
        tracker = TransactionTracker()
        aborted = list(aborted_from(plan, first, plan.first_uncleanable_offset))
        if not plan.is_kafka:
            # Kafka also takes up transactions that ended before the first batch read here, and then takes the
            # producer's next one for aborted: its keys stay out of the map and older records of them stay in the log.
            scan_start = plan.segments[first].base_offset
            if scan_start not in plan.quarantined:
                scan_start = self._scan_start(plan.segments[first])
            aborted = [one for one in aborted if one.last_offset >= scan_start]
        tracker.add_aborted(aborted)
        for segment in plan.segments[first:]:
            self.check_done()
            if plan.quarantined:
                tracker.skip_to(segment.base_offset)
                if segment.base_offset in plan.quarantined:
                    self.map_end_offset = max(self.map_end_offset, segment.next_base_offset - 1)
                    continue
            if self._map_segment(segment, tracker):
                break
        self.stats.map_utilization = plan.map_utilization(len(self.last_offsets))

    def _dirty_position(self, segment: SegmentPlan) -> int:
        """Position of a batch at or before the first dirty offset; 0 in segments above it."""
        plan = self.plan
        if segment.base_offset >= plan.first_dirty_offset:
            return 0
        base_offset = segment.base_offset
        index = OffsetIndex(
            self.env, names.index_file(plan.directory, base_offset), base_offset, plan.segment_index_bytes
        )
        file = self.env.open(names.log_file(plan.directory, base_offset), read_only=True)
        try:
            scan = scan_from_offset(file, segment.size, index, plan.first_dirty_offset)
            return next((at for at, _ in scan), 0)
        finally:
            file.close()

    def _scan_start(self, segment: SegmentPlan) -> int:
        file = self.env.open(names.log_file(self.plan.directory, segment.base_offset), read_only=True)
        try:
            for _, header in scan_headers(file, self._dirty_position(segment), segment.size):
                return header.base_offset
            return segment.next_base_offset
        finally:
            file.close()

    def _map_segment(self, segment: SegmentPlan, tracker: TransactionTracker) -> bool:
        """Add a segment's keys to the map; return True if the map is full."""
        plan = self.plan
        file = self.env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            for chunk in read_chunks(file, self._dirty_position(segment), segment.size, plan.io_buffer_bytes):
                self.check_done()
                self.throttle(chunk.size)
                for at, header in chunk.headers:
                    if self._map_batch(_Batch(file.path, chunk, at, header), tracker):
                        return True
                self.stats.map_bytes_read += chunk.size
        finally:
            file.close()
        self.map_end_offset = max(self.map_end_offset, segment.next_base_offset - 1)
        return False

    def _map_batch(self, batch: _Batch, tracker: TransactionTracker) -> bool:
        plan, stats, header = self.plan, self.stats, batch.header
        first_dirty_offset = plan.first_dirty_offset
        if header.is_control:
            tracker.drops_control(header.last_offset, header.producer_id, batch.control_type())
            stats.map_messages_read += 1
        elif tracker.drops_data(header.last_offset, header.producer_id, is_transactional=header.is_transactional):
            stats.map_messages_read += header.record_count
        else:
            last_offsets = self.last_offsets
            limit = plan.map_max_entries if plan.is_kafka else None
            for record in batch.records():
                if record.key is not None and record.offset >= first_dirty_offset:
                    if limit is not None and len(last_offsets) >= limit:
                        # As in Kafka even if the key is in the map already.
                        return True
                    last_offsets[record.key] = self.map_end_offset = record.offset
                stats.map_messages_read += 1
        if header.last_offset >= first_dirty_offset:
            self.map_end_offset = header.last_offset
        return False

    # -- the rewrite -----------------------------------------------------------------------------------------------------

    def rewrite_group(self, group: Sequence[SegmentPlan]) -> list[OutputSegment]:
        """Write the output of a group: one, unless recompression makes it too large in mode prompt."""
        outputs: list[OutputSegment] = []
        start = 0
        while start < len(group):
            output, end = self._rewrite_from(group, start)
            outputs.append(output)
            start = end
        return outputs

    def _rewrite_from(self, group: Sequence[SegmentPlan], start: int) -> tuple[OutputSegment, int]:
        plan = self.plan
        writer = self.writer_type(
            self.env,
            plan.directory,
            group[start].base_offset,
            index_interval_bytes=plan.index_interval_bytes,
            segment_index_bytes=plan.segment_index_bytes,
            is_strict=plan.is_kafka,
        )
        end = start
        try:
            while end < len(group) and (end == start or not ends_output(plan, writer.size, group[end])):
                if plan.quarantined:
                    self.tracker.skip_to(group[end].base_offset)
                self._rewrite_segment(group[end], writer)
                end += 1
            sources = group[start:end]
            return writer.finish(sources[-1].modified_ms, tuple(one.base_offset for one in sources)), end
        except OutputOverflow as error:
            writer.abandon()
            if plan.is_kafka:
                raise
            # Who calls can leave the segment out and clean the others (`quarantine`).
            path = names.log_file(plan.directory, group[end].base_offset)
            raise CorruptLog(path, 0, f"rewritten, it does not fit into a segment: {error.reason}") from error
        except BaseException:
            writer.abandon()
            raise

    def _rewrite_segment(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        plan, stats = self.plan, self.stats
        self.check_done()
        self._expect_aborted(segment)
        file = self.env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            for chunk in read_chunks(file, 0, segment.size, plan.io_buffer_bytes):
                self.check_done()
                self.throttle(chunk.size)
                size_before = writer.size
                for at, header in chunk.headers:
                    self._rewrite_batch(_Batch(file.path, chunk, at, header), segment, writer)
                writer.flush()
                stats.bytes_read += chunk.size
                stats.bytes_written += writer.size - size_before
                self.throttle(writer.size - size_before)
        finally:
            file.close()

    def _expect_aborted(self, segment: SegmentPlan) -> None:
        # All that reach into the segment, and not only those of the dirty part (KAFKA-8351, KAFKA-13727).
        aborted = aborted_from(self.plan, self.index_of[segment.base_offset], segment.next_base_offset)
        self.tracker.add_aborted(aborted)

    def _rewrite_batch(self, batch: _Batch, segment: SegmentPlan, writer: SegmentWriter) -> None:
        plan, stats, header = self.plan, self.stats, batch.header
        if header.is_control:
            may_drop, aborted = self.tracker.drops_control(
                header.last_offset,
                header.producer_id,
                batch.control_type(),
                is_frozen=plan.is_frozen(header.base_offset),
            )
            if aborted is not None:
                writer.add_aborted(aborted)
        else:
            may_drop = self.tracker.drops_data(
                header.last_offset, header.producer_id, is_transactional=header.is_transactional
            )
        drops_all = record_fate.drops_all_records(
            may_drop=may_drop,
            is_control=header.is_control,
            has_horizon=header.has_delete_horizon,
            horizon_ms=header.base_timestamp,
            now_ms=plan.now_ms,
            is_frozen=plan.is_frozen(header.base_offset),
        )
        fate_of_all = record_fate.FATE_MARKER if header.is_control else record_fate.FATE_ABORTED
        if not plan.is_kafka and header.last_offset < plan.log_start_offset:
            drops_all = True
            if not header.is_control:
                fate_of_all = record_fate.FATE_BELOW_LOG_START
        verdict = record_fate.batch_verdict(
            drops_all=drops_all,
            is_last_of_producer=record_fate.is_last_of_producer(
                plan.active_producers.get(header.producer_id) if header.has_producer_id else None,
                last_offset=header.last_offset,
                producer_epoch=header.producer_epoch,
                is_control=header.is_control,
            ),
            is_last_of_round=header.next_offset == plan.first_uncleanable_offset,
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
            map_end_offset=self.map_end_offset,
            is_marker_of_empty_transaction=may_drop and header.is_control,
            is_kafka=plan.is_kafka,
        )
        action = record_fate.batch_action(
            verdict=verdict, kept=len(kept), records=header.record_count, sets_horizon=sets_horizon, magic=header.magic
        )
        stats.messages_written += len(kept)
        if action == record_fate.COPY:
            writer.append(batch.view(), header.last_offset, header.max_timestamp)
        elif action != record_fate.DROP:
            if action == record_fate.REBUILD:
                rebuilt = rebuilt_batch(header, kept, plan.now_ms + plan.delete_retention_ms if sets_horizon else None)
            else:
                rebuilt = emptied_batch(header)
            written = parse_header(rebuilt)
            writer.append(rebuilt, written.last_offset, written.max_timestamp)

    def _judge_records(self, batch: _Batch, segment: SegmentPlan) -> tuple[list[Record], int]:
        """Return the records of a data batch that stay, and the offset of the last tombstone among them (-1: none)."""
        plan, stats, header = self.plan, self.stats, batch.header
        is_expired = record_fate.tombstones_expired(
            magic=header.magic,
            has_horizon=header.has_delete_horizon,
            horizon_ms=header.base_timestamp,
            now_ms=plan.now_ms,
            modified_ms=segment.modified_ms,
            legacy_horizon_ms=self.legacy_horizon_ms,
            is_frozen=plan.is_frozen(header.base_offset),
        )
        log_start_offset = 0 if plan.is_kafka else plan.log_start_offset
        mapped = self.last_offsets.get
        kept: list[Record] = []
        last_tombstone_offset = -1
        for record in batch.records():
            offset, key = record.offset, record.key
            if offset < log_start_offset:
                fate = record_fate.FATE_BELOW_LOG_START
            else:
                fate = record_fate.record_fate(
                    offset=offset,
                    map_end_offset=self.map_end_offset,
                    has_key=key is not None,
                    mapped_offset=record_fate.NOT_MAPPED if key is None else mapped(key, record_fate.NOT_MAPPED),
                    has_value=record.value is not None,
                    is_expired=is_expired,
                )
            if fate == record_fate.KEEP:
                kept.append(record)
                if record.value is None:
                    last_tombstone_offset = offset
                continue
            stats.invalid_messages_read += fate == record_fate.FATE_KEYLESS
            stats.remove(record_fate.FATE_REASONS[fate], 1, _encoded_size(record, header))
        return kept, last_tombstone_offset


class _Batch:
    """One batch in a chunk."""

    __slots__ = ("at", "chunk", "header", "path")

    def __init__(self, path: str, chunk: Chunk, at: int, header: BatchHeader) -> None:
        self.path = path
        self.chunk = chunk
        self.at = at
        self.header = header

    def view(self) -> memoryview:
        """Its bytes, in the chunk."""
        return memoryview(self.chunk.data)[self.at : self.at + self.header.size]

    def records(self) -> Sequence[Record]:
        """Its records. CorruptLog if the CRC or the records are wrong: rebuilding would give wrong bytes a right CRC."""
        if not crc_is_valid(self.chunk.data, self.at, self.header.size):
            raise CorruptLog(self.path, self.chunk.position + self.at, "the batch's CRC is wrong")
        try:
            return tuple(iter_records(self.chunk.data, self.at, max_bytes=MAX_BATCH_BYTES))
        except CorruptBatch as error:
            raise CorruptLog(self.path, self.chunk.position + self.at, error.reason) from error

    def control_type(self) -> int | None:
        """The type of a control batch's first record; None if there is none."""
        for record in self.records():
            try:
                return parse_control_type(record.key)
            except CorruptBatch as error:
                raise CorruptLog(self.path, self.chunk.position + self.at, error.reason) from error
        return None


def _encoded_size(record: Record, header: BatchHeader) -> int:
    """Return the bytes of a record in a magic 2 batch with this header, its length field included."""
    size = 2 + _varint_size(record.timestamp - header.base_timestamp) + _varint_size(record.offset - header.base_offset)
    size += _field_size(record.key) + _field_size(record.value)
    if record.headers:
        size += _varint_size(len(record.headers)) - 1
        for key, value in record.headers:
            size += _field_size(key.encode(errors="surrogateescape")) + _field_size(value)
    return size + _varint_size(size)


def _field_size(data: bytes | None) -> int:
    if data is None:
        return 1
    size = len(data)
    return size + (1 if size < 64 else _varint_size(size))


def _varint_size(value: int) -> int:
    if -64 <= value < 64:
        return 1
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    return (zigzag.bit_length() + 6) // 7
