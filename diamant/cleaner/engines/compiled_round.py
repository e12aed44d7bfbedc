"""A round of the compiled engine: the plain engine's round with its loops over batches and records taken over by kernels.

    map       read a chunk → rows → control and aborted batches told apart → records hashed → `OffsetMap`
    rewrite   read a chunk → rows → `decide` → `judge` → `encode` and compress → `assemble` → `SegmentWriter`

Control batches, batches of magic 0 and 1 and batches with odd records (`records`) are handed to the plain engine's own
methods one by one. In the dirty range a record stays if its offset is one of the map's, which is quicker than asking
for its key, and tells of most batches without a look inside that nothing or everything stays: the map's pass leaves a
note for each batch, the size of its records, if none of them needs a closer look.

Where the map has spilled, the clean section is read in the map's pass as well: two reads of the log in all.

Memory, beside the map (`offset_map.py`) and what the plain engine states: the chunk (`row_reader.py`), `UNPACK_BYTES`
of decompressed records or one batch (`MAX_BATCH_BYTES`), the output of the same, 4 bytes per record of it, 0.8 MB of
tuples, and the notes, 4 bytes for each of the first `MAX_NOTES` batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from diamant.cleaner.engines.offset_map import LatestOffsets, OffsetMap, open_spill_file
from diamant.cleaner.engines.output_sync import OutputSync
from diamant.cleaner.engines.plain_round import MAX_BATCH_BYTES, _Batch, _Round
from diamant.cleaner.kernels import fields, offset_map, rewrite
from diamant.cleaner.kernels.records import find_bad_crc, read_headers
from diamant.cleaner.prompt.key_filter import is_worth_filters, leave_alone
from diamant.cleaner.prompt.segment_keys import dirty_hashes, file_key_facts
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan, aborted_from
from diamant.cleaner.rules.result import CheckDone, CleanResult, OnOutput, OutputSegment, Throttle
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.cleaner.segments.strict_reader import Chunk, read_chunks
from diamant.protocol.batches.batch import parse_header
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.batches.legacy import parse_legacy_header
from diamant.protocol.batches.records import build_batch
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.txn_index import AbortedTxn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.segments.segment_writer import SegmentWriter
    from diamant.storage.env.env import Buffer, Env, File

RUNNER = "compiled"

UNPACK_BYTES = 1024 * 1024
"""Records are decompressed until there are so many bytes, then they are looked at."""
TUPLES = 32 * 1024
"""Tuples that are handed to the map at a time."""
MAX_NOTES = 4 * 1024 * 1024

_ABORTED_NOTE = 2**32 - 1
"""Note of a batch that was not given to the map because its transaction aborted."""

_COPIED = [fields.SIZE, fields.LAST_OFFSET, fields.MAX_TIMESTAMP]
_EXTRA = slice(fields.EXTRA_START, fields.EXTRA_END + 1)
_PAYLOAD = slice(fields.PAYLOAD_START, fields.PAYLOAD_END + 1)

_LEGACY = 2
"""Step of the map's rows: the batch is of magic 0 or 1. Beside `offset_map.SKIP` and `MAP`."""
_NEVER = 2**63 - 1
"""Greater than any offset: as a key's last offset it means that an earlier record is superseded, as a limit none."""
_ALWAYS = -(2**63)


def run(
    env: Env,
    plan: CleanPlan,
    *,
    on_output: OnOutput,
    check_done: CheckDone,
    throttle: Throttle,
    sync_threads: int,
) -> CleanResult:
    """Carry out `plan`, as `plain_round.clean` does."""
    round_ = CompiledRound(env, plan, check_done, throttle)
    try:
        stats = round_.stats
        stats.start_s = time.monotonic()
        round_.build_map()
        stats.map_complete_s = time.monotonic()
        if not round_.map.is_spilled:
            plan = round_.plan = leave_alone(env, plan, lambda: dirty_hashes(round_.map.table))
        files_keys = is_worth_filters(plan)
        end_offset = round_.map_end_offset + 1
        outputs: list[OutputSegment] = []
        with OutputSync(env, plan.directory, on_output, sync_threads) as sync:
            for group in group_segments(plan, segments_to_clean(plan, end_offset)):
                for output in round_.rewrite_group(group):
                    if files_keys:
                        file_key_facts(env, plan, output)
                    sync.add(output)
                    outputs.append(output)
        stats.end_s = time.monotonic()
        return CleanResult(end_offset, tuple(outputs), stats, RUNNER)
    finally:
        round_.close()


class CompiledRound(_Round):
    """The state of one round."""

    writer_type = CompiledWriter

    def __init__(self, env: Env, plan: CleanPlan, check_done: CheckDone, throttle: Throttle) -> None:
        super().__init__(env, plan, check_done, throttle)
        self.map = OffsetMap(
            plan.hash_key,
            memory_bytes=plan.map_memory_bytes,
            max_entries=plan.map_max_entries if plan.is_kafka else None,
            spill=lambda: open_spill_file(env, plan.directory),
            expected_tuples=self._expected_tuples,
        )
        self.latest: LatestOffsets | None = None
        """Return the offsets that stay, once the map is asked for nothing else."""
        self._reader = ChunkReader()
        self._unpacker = Unpacker()
        self._notes = _Notes()
        self._has_aborted = bool(plan.later_aborted) or any(segment.aborted for segment in plan.segments)
        self._may_forget_keys = True
        """True if each data record of the dirty range that the rewrite judges was given to the map."""
        self._tuples = np.empty((TUPLES, 3), np.uint64)
        self._state = np.zeros(offset_map.STATE_FIELDS, np.int64)
        self._rules = np.zeros(rewrite.RULES, np.int64)
        self._counts = np.zeros(rewrite.COUNTS, np.int64)
        self._kept_records = np.empty(1, np.int32)
        self._extra = Unpacker()
        self._out = np.empty(1, np.uint8)
        protected = sorted(
            (producer_id, active.last_data_offset)
            for producer_id, active in plan.active_producers.items()
            if active.last_data_offset is not None
        )
        self._producers = np.array(protected, np.int64).reshape(-1, 2).T.copy()

    def close(self) -> None:
        """Give back what the map holds."""
        self.map.close()

    # -- the map -------------------------------------------------------------------------------------------------------

    def build_map(self) -> None:
        plan = self.plan
        self._state[offset_map.LAST_SEEN] = -1
        super().build_map()
        if self.map.is_spilled:
            self._map_clean_section()
            self.latest = self.map.latest()
        if plan.first_dirty_offset < plan.first_uncleanable_offset:
            self.stats.map_utilization = plan.map_utilization(self.map.size)

    def _expected_tuples(self, added: int) -> int:
        total = sum(segment.size for segment in self.plan.segments)
        return added * total // max(1, self.stats.map_bytes_read)

    def _map_segment(self, segment: SegmentPlan, tracker: TransactionTracker) -> bool:
        plan = self.plan
        file = self.env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            for chunk in self._reader.chunks(file, self._dirty_position(segment), segment.size):
                self.check_done()
                self.throttle(chunk.size)
                self._read_legacy_headers(file, chunk)
                full_row = self._map_chunk(file, chunk, tracker)
                if full_row is not None:
                    at = chunk.position + int(chunk.rows[fields.POSITION, full_row])
                    self.stats.map_bytes_read += self._bytes_of_chunks_before(file, segment, at, chunk)
                    return True
                self.stats.map_bytes_read += chunk.size
        finally:
            file.close()
        self.map_end_offset = max(self.map_end_offset, segment.next_base_offset - 1)
        return False

    def _map_chunk(self, file: File, chunk: Rows, tracker: TransactionTracker) -> int | None:
        """Add a chunk's keys to the map; the row at which the map was full, if it was."""
        rows, count = chunk.rows, chunk.count
        self._choose_rows(file, chunk, tracker)
        first_dirty_offset = self.plan.first_dirty_offset
        full_row = None
        for start, end in self._unpacked(file, chunk, 0, count, offset_map.MAP):
            full_row = self._add_records(file, chunk, start, end, first_dirty_offset, _NEVER)
            if full_row is not None:
                break
        complete = count if full_row is None else full_row
        counts = rows[fields.RECORD_COUNT, :complete]
        if chunk.together & fields.CONTROL:
            counts = np.where(rows[fields.ATTRIBUTES, :complete] & fields.CONTROL, 1, counts)
        self.stats.map_messages_read += int(counts.sum())
        if complete and (last := int(rows[fields.LAST_OFFSET, complete - 1])) >= first_dirty_offset:
            self.map_end_offset = last
        self._notes.append(rows[fields.NOTE, :complete][self._noted(chunk, 0, complete)])
        if full_row is not None:
            self._end_full_map(file, chunk, full_row)
        return full_row

    def _choose_rows(self, file: File, chunk: Rows, tracker: TransactionTracker | None) -> None:
        """Set the step of each row: is it mapped or not. Without a tracker aborted ones are mapped like others."""
        rows, count = chunk.rows, chunk.count
        rows[fields.STEP, :count] = offset_map.MAP
        followed = fields.CONTROL
        if self._has_aborted and tracker is not None:
            followed |= fields.TRANSACTIONAL
        if chunk.together & fields.LEGACY:
            rows[fields.STEP, :count][rows[fields.MAGIC, :count] < 2] = _LEGACY
        if not chunk.together & followed:
            return
        for row in np.flatnonzero(rows[fields.ATTRIBUTES, :count] & followed).tolist():
            batch = self._batch(file, chunk, row)
            header = batch.header
            if header.is_control:
                if tracker is not None:
                    tracker.drops_control(header.last_offset, header.producer_id, batch.control_type())
                rows[fields.STEP, row] = offset_map.SKIP
            elif tracker is not None and tracker.drops_data(
                header.last_offset, header.producer_id, is_transactional=True
            ):
                rows[fields.STEP, row] = offset_map.SKIP
                rows[fields.NOTE, row] = _ABORTED_NOTE
                # Kafka may take a batch for aborted here and not in the rewrite, where its keys are then asked for.
                self._may_forget_keys &= not self.plan.is_kafka

    def _add_records(self, file: File, chunk: Rows, start: int, end: int, least: int, end_offset: int) -> int | None:
        """Add the records of rows; the row at which the map was full, if it was."""
        state, tuples, rows = self._state, self._tuples, chunk.rows
        state[offset_map.ROW] = start
        state[offset_map.PLACE] = 0
        is_older = end_offset != _NEVER
        while True:
            fault, count = offset_map.hash_records(
                chunk.data,
                self._unpacker.buffer,
                rows,
                end,
                state,
                tuples,
                self.map.k0,
                self.map.k1,
                least,
                end_offset,
            )
            if fault in (fields.CORRUPT, fields.OUT_OF_ORDER):
                self._fail(file, chunk, int(state[offset_map.ROW]))
            if is_older:
                self.map.add_older(tuples, count)
            else:
                taken = self.map.add(tuples, count)
                if taken:
                    self.last_put = int(tuples[taken - 1, 2])
                if taken < count:
                    refused = int(tuples[taken, 2])
                    # Rows of magic 2 ascend in their base offsets: so does what the kernel read.
                    candidates = np.flatnonzero(
                        (rows[fields.STEP, :end] == offset_map.MAP) & (rows[fields.BASE_OFFSET, :end] <= refused)
                    )
                    self._refused = refused
                    return int(candidates[-1])
            if fault == fields.NO_FAULT:
                return None

    last_put = -1
    """Offset of the last record that the map took."""
    _refused = -1

    def _end_full_map(self, file: File, chunk: Rows, row: int) -> None:
        """Do the accounts of the batch in which the map was full."""
        self.stats.map_messages_read += sum(
            record.offset < self._refused for record in self._batch(file, chunk, row).records()
        )
        if self.last_put >= chunk.rows[fields.BASE_OFFSET, row]:
            self.map_end_offset = self.last_put

    def _bytes_of_chunks_before(self, file: File, segment: SegmentPlan, at: int, chunk: Rows) -> int:
        """Return what the plain engine has read of the segment before the chunk with the batch at `at`, less what is counted."""
        start = self._dirty_position(segment)
        counted = chunk.position - start
        for one in read_chunks(file, start, segment.size, self.plan.io_buffer_bytes):
            if one.position + one.size > at:
                return one.position - start - counted
        return 0

    def _map_clean_section(self) -> None:
        """Add the records below the dirty range, so that partitions can tell which of them are superseded."""
        plan = self.plan
        self._state[offset_map.LAST_SEEN] = -1
        for segment in plan.segments:
            if segment.base_offset >= plan.first_dirty_offset:
                return
            if segment.base_offset in plan.untouched or segment.base_offset in plan.quarantined:
                continue
            self.check_done()
            file = self.env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
            try:
                for chunk in self._reader.chunks(file, 0, segment.size):
                    self.check_done()
                    self.throttle(chunk.size)
                    self._read_legacy_headers(file, chunk)
                    rows = chunk.rows
                    self._choose_rows(file, chunk, None)
                    end_row = int(np.searchsorted(rows[fields.BASE_OFFSET, : chunk.count], plan.first_dirty_offset))
                    if not plan.is_kafka:
                        gone = rows[fields.LAST_OFFSET, :end_row] < plan.log_start_offset
                        rows[fields.STEP, :end_row][gone] = offset_map.SKIP
                    for start, end in self._unpacked(file, chunk, 0, end_row, offset_map.MAP):
                        self._add_records(file, chunk, start, end, _ALWAYS, plan.first_dirty_offset)
                    if end_row < chunk.count:
                        return
            finally:
                file.close()

    def _noted(self, chunk: Rows, first: int, end: int) -> slice | NDArray[np.bool_]:
        """Tell which rows from `first` to `end` have a note: both passes must agree on it."""
        rows = chunk.rows
        if not chunk.together & (fields.CONTROL | fields.LEGACY):
            return slice(int(np.searchsorted(rows[fields.BASE_OFFSET, first:end], self.plan.first_dirty_offset)), None)
        is_noted: NDArray[np.bool_] = (
            (rows[fields.MAGIC, first:end] == 2)
            & (rows[fields.ATTRIBUTES, first:end] & fields.CONTROL == 0)
            & (rows[fields.BASE_OFFSET, first:end] >= self.plan.first_dirty_offset)
        )
        return is_noted

    # -- both passes ---------------------------------------------------------------------------------------------------

    def _batch(self, file: File, chunk: Rows, row: int) -> _Batch:
        """Return a batch as the plain engine knows it."""
        data = chunk.data.data
        at = int(chunk.rows[fields.POSITION, row])
        header = parse_header(data, at) if chunk.rows[fields.MAGIC, row] == 2 else self._legacy_header(file, chunk, at)
        return _Batch(file.path, Chunk(chunk.position, data, [], chunk.size), at, header)  # type: ignore[arg-type]

    def _legacy_header(self, file: File, chunk: Rows, at: int) -> BatchHeader:
        try:
            return parse_legacy_header(chunk.data.data, at)
        except CorruptBatch as error:
            raise CorruptLog(file.path, chunk.position + at, error.reason) from error

    def _read_legacy_headers(self, file: File, chunk: Rows) -> None:
        """Complete the rows of batches of magic 0 and 1."""
        if not chunk.together & fields.LEGACY:
            return
        rows = chunk.rows
        for row in np.flatnonzero(rows[fields.MAGIC, : chunk.count] < 2):
            header = self._legacy_header(file, chunk, int(rows[fields.POSITION, row]))
            rows[fields.BASE_OFFSET, row] = header.base_offset
            rows[fields.LAST_OFFSET, row] = header.last_offset
            rows[fields.RECORD_COUNT, row] = header.record_count

    def _unpacked(self, file: File, chunk: Rows, first: int, end: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows, all of them in the end, after the records of those with `step` were made ready to be read."""
        unpacker = self._unpacker
        bad = find_bad_crc(chunk.data, chunk.rows, first, end, step)
        if bad >= 0:
            self._fail(file, chunk, bad)
        unpacker.clear()
        start = first
        if chunk.together & (fields.CODEC_MASK | fields.LEGACY):
            for stop in self._unpack_some(file, chunk, first, end, step):
                yield start, stop
                unpacker.clear()
                start = stop
        if start < end:
            yield start, end

    def _unpack_some(self, file: File, chunk: Rows, first: int, end: int, step: int) -> Iterator[int]:
        """Decompress records; yield after so much as is looked at in one go, with the next row, and return after the last."""
        rows, unpacker = chunk.rows, self._unpacker
        is_packed = (rows[fields.STEP, first:end] == step) & (rows[fields.RECORD_COUNT, first:end] != 0)
        is_packed &= rows[fields.ATTRIBUTES, first:end] & fields.CODEC_MASK != 0
        if chunk.together & fields.LEGACY and step == offset_map.MAP:
            is_packed |= rows[fields.STEP, first:end] == _LEGACY
        found = np.flatnonzero(is_packed) + first
        codecs = (rows[fields.ATTRIBUTES, found] & fields.CODEC_MASK).tolist()
        starts, stops = rows[_PAYLOAD, found].tolist()
        data, unpack = chunk.data.data, unpacker.unpack
        places: list[tuple[int, int]] = []
        done = 0
        for index, row in enumerate(found.tolist()):
            if not codecs[index]:
                # Of an old format: those have no attributes here.
                places.append(self._unpack_legacy(file, chunk, row))
            else:
                try:
                    places.append(unpack(codecs[index], data[starts[index] : stops[index]], MAX_BATCH_BYTES))
                except CorruptBatch as error:
                    at = chunk.position + int(rows[fields.POSITION, row])
                    raise CorruptLog(file.path, at, error.reason) from error
            if unpacker.at >= UNPACK_BYTES:
                _set_places(rows, found[done : index + 1], places)
                done = index + 1
                places.clear()
                yield row + 1
        _set_places(rows, found[done:], places)

    def _unpack_legacy(self, file: File, chunk: Rows, row: int) -> tuple[int, int]:
        """Give a batch of magic 0 or 1 the form that the map's kernel reads."""
        rows = chunk.rows
        records = self._batch(file, chunk, row).records()
        plain = build_batch(records)
        rows[fields.STEP, row] = offset_map.MAP
        rows[fields.BASE_OFFSET, row] = records[0].offset if records else 0
        rows[fields.RECORD_COUNT, row] = len(records)
        return self._unpacker.append(memoryview(plain)[fields.HEADER_BYTES :])

    def _fail(self, file: File, chunk: Rows, row: int) -> NoReturn:
        """Raise CorruptLog for the batch of a row, with the plain engine's reason if it has one."""
        self._batch(file, chunk, row).records()
        at = chunk.position + int(chunk.rows[fields.POSITION, row])
        raise CorruptLog(file.path, at, "the offsets of the records do not ascend up to the batch's last")

    # -- the rewrite ---------------------------------------------------------------------------------------------------

    def _rewrite_segment(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        assert isinstance(writer, CompiledWriter)
        plan, stats = self.plan, self.stats
        self.check_done()
        self.tracker.add_aborted(aborted_from(plan, self.index_of[segment.base_offset], segment.next_base_offset))
        file = self.env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            for chunk in self._reader.chunks(file, 0, segment.size):
                self.check_done()
                self.throttle(chunk.size)
                size_before = writer.size
                self._rewrite_chunk(file, chunk, segment, writer)
                stats.bytes_read += chunk.size
                stats.bytes_written += writer.size - size_before
                self.throttle(writer.size - size_before)
        finally:
            file.close()

    def _rewrite_chunk(self, file: File, chunk: Rows, segment: SegmentPlan, writer: CompiledWriter) -> None:
        rows, count = chunk.rows, chunk.count
        self._read_legacy_headers(file, chunk)
        self._extra.clear()
        self._follow_transactions(file, chunk, segment, writer)
        split = 0
        if self.latest is None:
            # Batches that begin in the clean section are judged by their keys.
            split = count
            if self._may_forget_keys:
                split = int(np.searchsorted(rows[fields.BASE_OFFSET, :count], self.plan.first_dirty_offset))
            self._rewrite_rows(file, chunk, 0, split, segment, writer)
            if split < count:
                self.latest = self.map.latest()
        if split < count:
            noted = self._noted(chunk, split, count)
            notes = rows[fields.NOTE, split:count]
            notes[noted] = self._notes.take(len(notes[noted]))
            if self._has_aborted:
                self._judge_unmapped_rows(rows, split, count)
            self._rewrite_rows(file, chunk, split, count, segment, writer)

    def _judge_unmapped_rows(self, rows: NDArray[np.int64], first: int, end: int) -> None:
        """Leave batches to the plain engine that the map's pass took for aborted and this one does not.

        With sound indexes of aborted transactions there are none. Nothing is known of their keys, so their records stay.
        """
        is_aborted = rows[fields.NOTE, first:end] == _ABORTED_NOTE
        rows[fields.NOTE, first:end][is_aborted] = 0
        is_unmapped = is_aborted & (rows[fields.DROPS_ALL, first:end] == 0)
        rows[fields.STEP, first:end][is_unmapped] = rewrite.PLAIN_ENGINE
        self._unmapped = set(rows[fields.BASE_OFFSET, first:end][is_unmapped].tolist())

    _unmapped: frozenset[int] | set[int] = frozenset()
    """Base offsets of such batches in the chunk."""

    def _follow_transactions(self, file: File, chunk: Rows, segment: SegmentPlan, writer: CompiledWriter) -> None:
        """Tell the tracker of each transactional batch, and have control batches written by the plain engine."""
        rows, count = chunk.rows, chunk.count
        rows[fields.STEP, :count] = rewrite.UNDECIDED
        if chunk.together & fields.LEGACY:
            rows[fields.STEP, :count][rows[fields.MAGIC, :count] < 2] = rewrite.PLAIN_ENGINE
        followed = fields.CONTROL | fields.TRANSACTIONAL
        if not chunk.together & followed:
            return
        drops_data = self.tracker.drops_data
        found = np.flatnonzero(rows[fields.ATTRIBUTES, :count] & followed)
        dropped = []
        for row, attributes, last_offset, producer_id in zip(
            found.tolist(),
            rows[fields.ATTRIBUTES, found].tolist(),
            rows[fields.LAST_OFFSET, found].tolist(),
            rows[fields.PRODUCER_ID, found].tolist(),
            strict=True,
        ):
            if attributes & fields.CONTROL:
                self._rewrite_plainly(file, chunk, row, segment, writer)
            elif drops_data(last_offset, producer_id, is_transactional=True):
                dropped.append(row)
        rows[fields.DROPS_ALL, dropped] = record_fate.FATE_ABORTED

    def _rewrite_plainly(self, file: File, chunk: Rows, row: int, segment: SegmentPlan, writer: CompiledWriter) -> None:
        """Have the plain engine rewrite a batch, and keep what it writes for `assemble`."""
        rows = chunk.rows
        written = _Written(writer)
        self._rewrite_batch(self._batch(file, chunk, row), segment, written)  # type: ignore[arg-type]
        rows[fields.STEP, row] = rewrite.DROP
        if written.batch is not None:
            rows[fields.STEP, row] = rewrite.EXTRA
            rows[fields.EXTRA_START, row], rows[fields.EXTRA_END, row] = self._extra.append(written.batch)
            rows[fields.LAST_OFFSET, row] = written.last_offset
            rows[fields.NEW_MAX_TIMESTAMP, row] = written.max_timestamp

    def _judge_records(self, batch: _Batch, segment: SegmentPlan) -> tuple[list[Record], int]:
        # The plain engine's rules over a map of just the keys in this batch.
        self.last_offsets = self._last_offsets_in(batch)
        return super()._judge_records(batch, segment)

    def _last_offsets_in(self, batch: _Batch) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        if batch.header.base_offset in self._unmapped:
            return found
        latest = None
        if self.latest is not None:
            latest = self.latest.window(batch.header.base_offset, batch.header.last_offset)
        for record in batch.records():
            if record.key is None:
                continue
            if latest is None:
                found[record.key] = self.map.find(record.key)
                continue
            at = np.searchsorted(latest, record.offset)
            is_last = at < len(latest) and latest[at] == record.offset
            if not is_last:
                found.setdefault(record.key, _NEVER)
            elif record.offset >= self.plan.first_dirty_offset:
                found[record.key] = record.offset
            else:
                found[record.key] = record_fate.NOT_MAPPED
        return found

    def _rewrite_rows(
        self, file: File, chunk: Rows, first: int, end: int, segment: SegmentPlan, writer: CompiledWriter
    ) -> None:
        if first == end:
            return
        rows = chunk.rows
        latest = _NO_OFFSETS
        at = 0
        if self.latest is not None:
            first_offset = int(rows[fields.BASE_OFFSET, first])
            latest = self.latest.window(first_offset, int(rows[fields.LAST_OFFSET, first:end].max()))
            at = int(np.searchsorted(latest, first_offset))
        rules = self._current_rules()
        rewrite.decide(rows, first, end, rules, self._producers, latest, at, self._counts)
        for start, stop in self._unpacked(file, chunk, first, end, rewrite.JUDGE):
            self._judge_rows(file, chunk, start, stop, latest, rules)
            steps = rows[fields.STEP, start:stop]
            for row in np.flatnonzero(steps == rewrite.PLAIN_ENGINE).tolist():
                tracker, self.tracker = self.tracker, _Told(bool(rows[fields.DROPS_ALL, start + row]))  # type: ignore[assignment]
                self._rewrite_plainly(file, chunk, start + row, segment, writer)
                self.tracker = tracker
            self._compress_rows(chunk, start, stop)
            self._write_rows(chunk, start, stop, writer)
        self._count()

    def _current_rules(self) -> NDArray[np.int64]:
        plan, rules = self.plan, self._rules
        rules[rewrite.IS_KAFKA] = plan.is_kafka
        rules[rewrite.MAP_END_OFFSET] = self.map_end_offset
        rules[rewrite.LOG_START_OFFSET] = _ALWAYS if plan.is_kafka else plan.log_start_offset
        rules[rewrite.ROUND_END_OFFSET] = plan.first_uncleanable_offset
        rules[rewrite.NOW_MS] = plan.now_ms
        rules[rewrite.FROZEN_ABOVE] = _NEVER if plan.horizons_frozen_above is None else plan.horizons_frozen_above
        rules[rewrite.NEW_HORIZON_MS] = plan.now_ms + plan.delete_retention_ms
        rules[rewrite.IS_PROBING] = self.latest is None
        return rules

    def _judge_rows(
        self, file: File, chunk: Rows, start: int, end: int, latest: NDArray[np.int64], rules: NDArray[np.int64]
    ) -> None:
        rows = chunk.rows
        is_judged = rows[fields.STEP, start:end] == rewrite.JUDGE
        room = np.minimum(
            rows[fields.RECORD_COUNT, start:end],
            (rows[fields.PAYLOAD_END, start:end] - rows[fields.PAYLOAD_START, start:end]) // fields.MIN_RECORD_BYTES,
        )
        most = int(room[is_judged].clip(0).sum())
        if most > len(self._kept_records):
            self._kept_records = np.empty(2 * most, np.int32)
        fault, row = rewrite.judge(
            chunk.data,
            self._unpacker.buffer,
            rows,
            start,
            end,
            rules,
            self.map.table,
            self.map.k0,
            self.map.k1,
            latest,
            self._kept_records,
            self._counts,
        )
        if fault != fields.NO_FAULT:
            self._fail(file, chunk, row)

    def _compress_rows(self, chunk: Rows, start: int, end: int) -> None:
        """Make the records of compressed batches that are rebuilt."""
        if not chunk.together & fields.CODEC_MASK:
            return
        rows = chunk.rows
        buffer = self._unpacker.buffer
        size = rewrite.encode_records(buffer, rows, start, end, self._kept_records, self._out)
        if size < 0:
            self._out = _with_room(self._out, -size)
            size = rewrite.encode_records(buffer, rows, start, end, self._kept_records, self._out)
        if not size:
            return
        found = np.flatnonzero(
            (rows[fields.STEP, start:end] == rewrite.REBUILD)
            & (rows[fields.ATTRIBUTES, start:end] & fields.CODEC_MASK != 0)
        )
        found += start
        pack, append, plain = self._unpacker.pack, self._extra.append, self._out.data
        rows[_EXTRA, found] = np.array(
            [
                append(pack(codec, plain[first:last]))
                for codec, first, last in zip(
                    (rows[fields.ATTRIBUTES, found] & fields.CODEC_MASK).tolist(),
                    rows[fields.EXTRA_START, found].tolist(),
                    rows[fields.EXTRA_END, found].tolist(),
                    strict=True,
                )
            ]
        ).T

    def _write_rows(self, chunk: Rows, start: int, end: int, writer: CompiledWriter) -> None:
        rows = chunk.rows
        if (rows[fields.STEP, start:end] == rewrite.COPY).all():
            # Written from where they were read to.
            first = int(rows[fields.POSITION, start])
            last = int(rows[fields.POSITION, end - 1] + rows[fields.SIZE, end - 1])
            writer.append_columns(chunk.data.data[first:last], rows[_COPIED, start:end], end - start)
        else:
            self._out = _with_room(self._out, rewrite.room_for_output(rows, start, end))
            columns = np.empty((3, end - start), np.int64)
            size, count = rewrite.assemble(
                chunk.data, rows, start, end, self._kept_records, self._extra.buffer, self._out, columns
            )
            if not count:
                return
            writer.append_columns(self._out.data[:size], columns, count)
        writer.flush()

    def _count(self) -> None:
        """Move the kernels' counts to the round's figures."""
        counts, stats = self._counts.tolist(), self.stats
        for fate in range(1, rewrite.FATES):
            if counts[fate]:
                stats.remove(record_fate.FATE_REASONS[fate], counts[fate], counts[rewrite.REMOVED_BYTES + fate])
        stats.messages_read += counts[rewrite.MESSAGES_READ]
        stats.invalid_messages_read += counts[rewrite.INVALID_READ]
        stats.messages_written += counts[rewrite.MESSAGES_WRITTEN]
        self._counts[:] = 0


_NO_OFFSETS = np.empty(0, np.int64)


class _Notes:
    """The map's notes on the batches of the dirty range, in order; no more than `MAX_NOTES`."""

    def __init__(self) -> None:
        self._notes = np.empty(1024, np.uint32)
        self._count = 0
        self._taken = 0

    def append(self, notes: NDArray[np.int64]) -> None:
        count = min(len(notes), MAX_NOTES - self._count)
        if self._count + count > len(self._notes):
            larger = np.empty(min(MAX_NOTES, max(2 * len(self._notes), self._count + count)), np.uint32)
            larger[: self._count] = self._notes[: self._count]
            self._notes = larger
        self._notes[self._count : self._count + count] = notes[:count]
        self._count += count

    def take(self, count: int) -> NDArray[np.uint32]:
        """Return the next `count` notes, 0 where there are none."""
        found = self._notes[self._taken : min(self._taken + count, self._count)]
        self._taken += count
        if len(found) == count:
            return found
        return np.concatenate([found, np.zeros(count - len(found), np.uint32)])


class _Written:
    """Takes what the plain engine writes for one batch in place of the writer."""

    def __init__(self, writer: CompiledWriter) -> None:
        self.batch: Buffer | None = None
        self.last_offset = 0
        self.max_timestamp = 0
        self.add_aborted = writer.add_aborted

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        self.batch = batch
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp


class _Told:
    """Stands in for the tracker when it was asked about a batch before."""

    def __init__(self, drops: bool) -> None:
        self._drops = drops

    def drops_data(self, last_offset: int, producer_id: int, *, is_transactional: bool) -> bool:
        return self._drops

    def drops_control(
        self, last_offset: int, producer_id: int, control_type: int | None
    ) -> tuple[bool, AbortedTxn | None]:
        raise AssertionError("control batches are not judged twice")


def _set_places(rows: NDArray[np.int64], found: NDArray[np.int64], places: list[tuple[int, int]]) -> None:
    """Note where the records of rows were unpacked to."""
    if places:
        rows[fields.IS_UNPACKED, found] = 1
        rows[_PAYLOAD, found] = np.array(places).T


def _with_room(buffer: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return `buffer` or a larger one."""
    return buffer if len(buffer) >= size else np.empty(max(2 * len(buffer), size), np.uint8)


def call_every_kernel() -> None:
    """Compile or load every kernel, with the argument types that the engine uses."""
    data = np.zeros(1, np.uint8)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    table = tuples = np.zeros((64, 3), np.uint64)
    numbers = np.zeros(64, np.int64)
    kept = np.zeros(1, np.int32)
    key = np.uint64(0)
    read_headers(data, 0, 0, rows)
    find_bad_crc(data, rows, 0, 0, 0)
    offset_map.hash_records(data, data, rows, 0, numbers, tuples, key, key, 0, 0)
    offset_map.put_tuples(table, 0, 0, tuples, 0, 0)
    offset_map.find_key(table, key, key, data)
    offset_map.move_slots(table, 0, 0, table)
    offset_map.take_tuples(table, 0, tuples)
    offset_map.take_offsets(table, numbers)
    offset_map.scatter(tuples, 0, 0, 0, np.zeros((1, 1, 3), np.uint64), numbers)
    offset_map.take_missing(table, tuples, 0, numbers)
    rewrite.decide(rows, 0, 0, numbers, rows, numbers, 0, numbers)
    rewrite.judge(data, data, rows, 0, 0, numbers, table, key, key, numbers, kept, numbers)
    rewrite.encode_records(data, rows, 0, 0, kept, data)
    rewrite.room_for_output(rows, 0, 0)
    rewrite.assemble(data, rows, 0, 0, kept, data, data, rows)
    rewrite.index_batches(rows, 0, numbers, data, data)
