"""The rewriter of the compiled engine: kernels replace the plain engine's loops over batches and records.

    read a chunk → rows → `decide` → `judge` → `encode` and compress → `assemble` → `SegmentWriter`

Control batches, batches of magic 0 and 1 and batches with odd records (`kernels/records.pxd`) are rewritten one by one
(`batch_rewrite`), in offset order with the others.

Memory: `row_records`, an output of the same size, and 4 bytes for each record in a chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from diamant.cleaner.engines.batch_rewrite import BatchRewriter
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter
from diamant.cleaner.segments.key_hasher import ALWAYS, NEVER
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.kernels import assembly, judging, numbers
from diamant.kernels.batches import last_offset_in, next_without_step, set_steps
from diamant.kernels.constants import fates, fields, rules, steps

if TYPE_CHECKING:
    from diamant.cleaner.engines.offset_map import Offsets
    from diamant.cleaner.engines.survivors import Survivors
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.segments.row_records import RowRecords
    from diamant.storage.env.env import Buffer
    from diamant.storage.segments.txn_index import AbortedTxn

_NO_OFFSETS = array("q")


class CompiledRewriter:
    """A `Rewriter` that asks `Survivors` which records to keep."""

    writer_type = CompiledWriter

    def __init__(
        self, work: RoundWork, records: RowRecords, survivors: Survivors, tracker: TransactionTracker | None = None
    ) -> None:
        """`tracker`: the tracker of the preceding segments, if this rewriter continues after them."""
        plan = work.plan
        self.tracker = TransactionTracker() if tracker is None else tracker
        self._work = work
        self._records = records
        self._survivors = survivors
        self._batches = BatchRewriter(work, self.tracker, survivors)
        self._rules = _fixed_rules(plan)
        self._producers = _protected_offsets(plan)
        self._counts = array("q", bytes(8 * fates.COUNTS))
        self._kept_records = numbers("i", 1)
        self._extra = Unpacker()
        """Finished parts of the chunk's output: whole batches, and the compressed records of batches."""
        self._out = numbers("B", 1)

    def rewrite(self, segment: SegmentPlan, writer: CompiledWriter) -> None:
        """Append to `writer` the records of a segment that are kept."""
        work, stats = self._work, self._work.stats
        for start, stop in self._survivors.begin(segment, self._counts):
            for chunk in self._records.chunks(work.env, work.log_path(segment), start, stop):
                work.check_done()
                work.throttle(chunk.size)
                size_before = writer.size
                self._extra.clear()
                self._follow_transactions(chunk, segment, writer)
                for first, end in self._survivors.ranges(chunk):
                    if first < end:
                        self._rewrite_rows(chunk, first, end, segment, writer)
                stats.bytes_written += writer.size - size_before
                work.throttle(writer.size - size_before)
        # The whole segment counts, including the stretches that were skipped.
        stats.bytes_read += segment.size
        self._count()

    def _follow_transactions(self, chunk: Rows, segment: SegmentPlan, writer: CompiledWriter) -> None:
        """Report each transactional batch to the tracker, and rewrite control batches one by one."""
        rows, drops_data = chunk.rows, self.tracker.drops_data
        set_steps(rows, chunk.count, steps.UNDECIDED, steps.PLAIN_ENGINE)
        for row in chunk.with_attributes(fields.CONTROL | fields.TRANSACTIONAL):
            if rows[fields.ATTRIBUTES, row] & fields.CONTROL:
                written = _Written(writer)
                self._batches.rewrite(self._records.batch(chunk, row), segment, written)
                self._put(chunk, row, written)
            elif drops_data(rows[fields.LAST_OFFSET, row], rows[fields.PRODUCER_ID, row], is_transactional=True):
                rows[fields.DROPS_ALL, row] = fates.FATE_ABORTED

    def _rewrite_rows(self, chunk: Rows, first: int, end: int, segment: SegmentPlan, writer: CompiledWriter) -> None:
        rows = chunk.rows
        latest: Offsets = _NO_OFFSETS
        at = 0
        if self._survivors.latest is not None:
            first_offset = rows[fields.BASE_OFFSET, first]
            latest = self._survivors.latest.window(first_offset, last_offset_in(rows, first, end))
            at = bisect_left(latest, first_offset)
        self._rules[rules.MAP_END_OFFSET] = self._survivors.end_offset
        self._rules[rules.IS_PROBING] = self._survivors.latest is None
        judging.decide(rows, first, end, self._rules, self._producers, latest, at, self._counts)
        for start, stop in self._records.ranges(chunk, first, end, steps.JUDGE):
            self._judge_rows(chunk, start, stop, latest)
            for row in chunk.with_step(steps.PLAIN_ENGINE, start, stop):
                written = _Written(writer)
                may_drop = bool(rows[fields.DROPS_ALL, row])
                self._batches.rewrite_decided(self._records.batch(chunk, row), segment, written, may_drop=may_drop)
                self._put(chunk, row, written)
            self._compress_rows(chunk, start, stop)
            self._write_rows(chunk, start, stop, writer)

    def _put(self, chunk: Rows, row: int, written: _Written) -> None:
        """Keep a rewritten batch until `assemble` adds it to the output."""
        rows = chunk.rows
        rows[fields.STEP, row] = steps.DROP
        if written.batch is not None:
            rows[fields.STEP, row] = steps.EXTRA
            rows[fields.EXTRA_START, row], rows[fields.EXTRA_END, row] = self._extra.append(written.batch)
            rows[fields.LAST_OFFSET, row] = written.last_offset
            rows[fields.NEW_MAX_TIMESTAMP, row] = written.max_timestamp

    def _judge_rows(self, chunk: Rows, start: int, end: int, latest: Offsets) -> None:
        rows = chunk.rows
        most = judging.room_to_judge(rows, start, end)
        if most > len(self._kept_records):
            self._kept_records = numbers("i", 2 * most)
        keys = self._survivors.keys
        fault, row = judging.judge(
            chunk.data,
            self._records.unpacked,
            rows,
            start,
            end,
            self._rules,
            keys.table,
            keys.k0,
            keys.k1,
            latest,
            self._kept_records,
            self._counts,
        )
        if fault != fields.NO_FAULT:
            self._records.fail(chunk, row)

    def _compress_rows(self, chunk: Rows, start: int, end: int) -> None:
        """Encode and compress the records of compressed batches that are rebuilt."""
        if not chunk.together & fields.CODEC_MASK:
            return
        rows, unpacked = chunk.rows, self._records.unpacked
        size = assembly.encode_records(unpacked, rows, start, end, self._kept_records, self._out)
        if size < 0:
            self._out = _with_room(self._out, -size)
            size = assembly.encode_records(unpacked, rows, start, end, self._kept_records, self._out)
        if not size:
            return
        pack, plain = self._extra.pack, self._out
        for row, codec, first, last in chunk.packed(start, end, steps.REBUILD, fields.EXTRA_START):
            rows[fields.EXTRA_START, row], rows[fields.EXTRA_END, row] = pack(codec, plain[first:last])

    def _write_rows(self, chunk: Rows, start: int, end: int, writer: CompiledWriter) -> None:
        rows = chunk.rows
        columns = numbers("q", 3, end - start)
        if next_without_step(rows, start, end, steps.COPY) == end:
            # All batches are copied, so write them directly from the read buffer.
            first, last = rows[fields.POSITION, start], rows[fields.POSITION, end - 1] + rows[fields.SIZE, end - 1]
            assembly.copy_columns(rows, start, end, columns)
            writer.append_columns(chunk.data[first:last], columns, end - start)
        else:
            self._out = _with_room(self._out, assembly.room_for_output(rows, start, end))
            size, count = assembly.assemble(
                chunk.data, rows, start, end, self._kept_records, self._extra.buffer, self._out, columns
            )
            if not count:
                return
            writer.append_columns(self._out[:size], columns, count)
        writer.flush()

    def _count(self) -> None:
        """Move the counts of the kernels to the round's statistics."""
        counts, stats = self._counts.tolist(), self._work.stats
        for fate in range(1, fates.FATES):
            if counts[fate]:
                stats.remove(record_fate.FATE_REASONS[fate], counts[fate], counts[fates.REMOVED_BYTES + fate])
        stats.messages_read += counts[fates.MESSAGES_READ]
        stats.invalid_messages_read += counts[fates.INVALID_READ]
        stats.messages_written += counts[fates.MESSAGES_WRITTEN]
        self._counts = array("q", bytes(8 * fates.COUNTS))


class _Written:
    """A `Target` that keeps the one batch that it receives, instead of writing it."""

    def __init__(self, writer: CompiledWriter) -> None:
        self.batch: Buffer | None = None
        self.last_offset = 0
        self.max_timestamp = 0
        self._writer = writer

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        self.batch = batch
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp

    def add_aborted(self, aborted: AbortedTxn) -> None:
        self._writer.add_aborted(aborted)


def _fixed_rules(plan: CleanPlan) -> array[int]:
    """Return the parameters of `decide` and `judge` that are constant for the round."""
    fixed = array("q", bytes(8 * rules.RULES))
    fixed[rules.IS_KAFKA] = plan.is_kafka
    fixed[rules.LOG_START_OFFSET] = ALWAYS if plan.is_kafka else plan.log_start_offset
    fixed[rules.HEADER_END] = plan.header_end
    fixed[rules.NOW_MS] = plan.now_ms
    fixed[rules.FROZEN_ABOVE] = NEVER if plan.horizons_frozen_above is None else plan.horizons_frozen_above
    fixed[rules.HELD_ABOVE] = NEVER if plan.held_above is None else plan.held_above
    fixed[rules.HELD_SINCE_MS] = plan.held_since_ms
    horizon_ms = plan.new_horizon_ms
    fixed[rules.NEW_HORIZON_MS] = rules.NO_HORIZON if horizon_ms is None else horizon_ms
    return fixed


def _protected_offsets(plan: CleanPlan) -> array[int]:
    """Return the ids of active producers, ascending, followed by their last data offsets."""
    protected = sorted(
        (producer_id, active.last_data_offset)
        for producer_id, active in plan.active_producers.items()
        if active.last_data_offset is not None
    )
    return array("q", [*(one[0] for one in protected), *(one[1] for one in protected)])


def _with_room(buffer: memoryview, size: int) -> memoryview:
    """Return `buffer` if it has room for `size` bytes, else a larger buffer."""
    return buffer if len(buffer) >= size else numbers("B", max(2 * len(buffer), size))
