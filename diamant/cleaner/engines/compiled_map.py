"""The key map of the compiled engine: an `OffsetMap`, filled by kernels.

    read a chunk → rows → leave out control and aborted batches → hash the records → `OffsetMap`

If the map has spilled, this pass also reads the clean section, so the round reads the whole log twice.

Memory, in addition to the map (`offset_map.py`): `row_records`, 0.8 MB of tuples, and the notes and stretches (`batch_notes`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.batch_notes import ABORTED_NOTE, BatchNotes, Stretches
from diamant.cleaner.engines.offset_map import OffsetMap, open_spill_file
from diamant.cleaner.segments.key_hasher import KeyHasher
from diamant.cleaner.segments.row_records import OLD_FORMAT
from diamant.cleaner.segments.strict_reader import RecordsOutOfOrder, read_chunks
from diamant.kernels.batches import records_in, set_steps
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import MAP, SKIP

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from diamant.cleaner.engines.offset_map import LatestOffsets
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import SegmentPlan
    from diamant.cleaner.rules.transaction_tracker import TransactionTracker
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.segments.row_records import RowRecords
    from diamant.storage.env.env import File


class Mapped(NamedTuple):
    """The map of some segments without its keys, for `CompiledMap.take_over`."""

    keys: int
    end_offset: int
    last_seen: int
    notes: bytes
    all_notes: int
    notes_before: dict[int, int]
    stretches: dict[str, array[int]]
    has_transactions: bool


class _Part(NamedTuple):
    """The point in a batch at which the map was full."""

    row: int
    records: int
    """Number of the batch's records before this point."""
    last_offset: int | None
    """Offset of the last of these records with a key; None if none has a key."""


class CompiledMap:
    """A `KeyMap` of key hashes. `close` releases its memory and file."""

    def __init__(self, work: RoundWork, records: RowRecords, spill: Callable[[], File] | None = None) -> None:
        """`spill` opens a file for keys that do not fit into memory, by default in the partition's directory."""
        plan = work.plan
        self.offsets = OffsetMap(
            plan.hash_key,
            memory_bytes=plan.map_memory_bytes,
            max_entries=plan.map_max_entries if plan.is_kafka else None,
            spill=spill or (lambda: open_spill_file(work.env, plan.directory)),
            expected_tuples=self._expected_tuples,
            least_slots=work.limits.table_slots,
        )
        self.latest: LatestOffsets | None = None
        """After `forget_keys`, the offset of each key's last record; None before."""
        self.may_forget_keys = True
        """True if lookup by offset is enough: all dirty records that the rewrite will judge were added, in offset order."""
        self._work = work
        self._has_aborted = plan.has_aborted
        self._records = records
        self._hasher = KeyHasher(plan.hash_key, work.limits.tuples, must_ascend=False)
        self.disordered: RecordsOutOfOrder | None = None
        """Error for the first batch whose offsets do not ascend; raised if the map spills, which requires ascending offsets."""
        self._added_offset = -1
        """Offset of the last record added from the current chunk; -1 if none was added."""
        self.begin_at(0)

    def begin_at(self, offset: int) -> None:
        """Begin another part of the log, at `offset` or later. Of the earlier parts, keep only the keys."""
        self.notes = BatchNotes(limit=self._work.limits.notes)
        """Notes of the data batches in the dirty range."""
        self.stretches = Stretches(self._work.plan, self._work.limits)
        """Stretches of these batches."""
        self.end_offset = self._work.plan.first_dirty_offset - 1
        """Last offset that the map covers."""
        self.notes_before: dict[int, int] = {}
        """Maps a segment's base offset to the number of notes that precede those of the segment."""
        self.has_transactions = False
        """True if a marker or a transactional batch was read."""
        self.last_seen = offset - 1
        self._began: tuple[int, int] | None = None
        """Base offset of the first segment that was added, and the position from which on it was added."""

    @property
    def size(self) -> int:
        """Number of keys."""
        return self.offsets.size

    @property
    def last_seen(self) -> int:
        """Offset of the last record read; later offsets must be greater."""
        return self._hasher.last_seen

    @last_seen.setter
    def last_seen(self, offset: int) -> None:
        self._hasher.last_seen = offset

    def mapped(self) -> Mapped:
        """Return everything except the keys in `offsets`, so that another map can `take_over` it."""
        notes, stretches = self.notes.kept(), self.stretches.noted()
        return Mapped(
            self.size,
            self.end_offset,
            self.last_seen,
            notes,
            self.notes.total,
            self.notes_before,
            stretches,
            self.has_transactions,
        )

    def take_over(self, mapped: Mapped) -> None:
        """Append the map of the segments that follow, except its keys; add those with `offsets.add_hashed`."""
        self.end_offset = max(self.end_offset, mapped.end_offset)
        self.last_seen = max(self.last_seen, mapped.last_seen)
        before = self.notes.total
        # If both maps cover parts of the same segment, this map covers the first part.
        self.notes_before = {base: before + count for base, count in mapped.notes_before.items()} | self.notes_before
        self.notes.append(mapped.notes)
        self.notes.total = before + mapped.all_notes
        self.stretches.take_over(mapped.stretches)
        self.has_transactions |= mapped.has_transactions

    def close(self) -> None:
        """Release memory and file."""
        self.offsets.close()

    def add_segment(self, segment: SegmentPlan, position: int, tracker: TransactionTracker) -> bool:
        """Add the keys of a segment from a byte position on; return True if the map was full before the segment's end.

        Dirty records before that position must have been added already.
        """
        work, stats = self._work, self._work.stats
        self.notes_before.setdefault(segment.base_offset, self.notes.total)
        self._began = self._began or (segment.base_offset, position)
        began = self._began[1] if segment.base_offset == self._began[0] else 0
        read_before = stats.map_bytes_read - (position - began)
        for chunk in self._records.chunks(work.env, work.log_path(segment), position, segment.size):
            work.check_done()
            work.throttle(chunk.size)
            full_row = self._add_chunk(chunk, tracker)
            if full_row is not None:
                at = chunk.position + chunk.rows[fields.POSITION, full_row]
                stats.map_bytes_read = read_before + self._bytes_of_chunks_before(segment, began, at)
                return True
            stats.map_bytes_read += chunk.size
        return False

    def finish(self) -> None:
        """Complete the map. If it has spilled, also add the clean section, because a spilled map has no lookup by key."""
        if self.offsets.is_spilled:
            if self.disordered is not None:
                raise self.disordered
            self._add_clean_section()
            self.forget_keys()

    def forget_keys(self) -> None:
        """Replace the keys with the offsets of their last records. Afterwards, lookup by key is not possible."""
        self.latest = self.offsets.latest()

    def _expected_tuples(self, added: int) -> int:
        total = sum(segment.size for segment in self._work.plan.segments)
        return added * total // max(1, self._work.stats.map_bytes_read)

    def _add_chunk(self, chunk: Rows, tracker: TransactionTracker) -> int | None:
        """Add a chunk's keys to the map; return the row at which the map was full, or None."""
        plan, rows, count = self._work.plan, chunk.rows, chunk.count
        self.has_transactions |= bool(chunk.together & (fields.CONTROL | fields.TRANSACTIONAL))
        leaves_out = choose_rows(self._records, chunk, tracker, follows_data=self._has_aborted)
        # Kafka may consider a batch aborted in this pass but not in the rewrite, which then looks up its keys.
        self.may_forget_keys &= not (leaves_out and plan.is_kafka)
        part, self._added_offset = None, -1
        for start, end in self._records.ranges(chunk, 0, count, MAP):
            part = self._add_records(chunk, start, end)
            if part is not None:
                break
        complete = count if part is None else part.row
        self._work.stats.map_messages_read += records_in(rows, complete)
        if complete and (last := rows[fields.LAST_OFFSET, complete - 1]) >= plan.first_dirty_offset:
            self.end_offset = last
        elif self._added_offset >= 0:  # a dirty record, although its batch's header ends in the clean section
            self.end_offset = self._added_offset
        self.notes.take(chunk, complete, plan.first_dirty_offset)
        self.stretches.append(chunk, complete)
        if part is None:
            return None
        self._work.stats.map_messages_read += part.records
        if part.last_offset is not None:
            self.end_offset = part.last_offset
        return part.row

    def _add_records(self, chunk: Rows, start: int, end: int) -> _Part | None:
        """Add the records of rows. If the map becomes full, return the point in the batch at which it did, otherwise None."""
        added = 0
        for count in self._hasher.hash(self._records, chunk, start, end, least=self._work.plan.first_dirty_offset):
            taken = self.offsets.add(self._hasher.tuples, count)
            added += taken
            if taken:
                self._added_offset = self._hasher.tuples[taken - 1, 2]
            if self._hasher.disordered_row is not None:
                self._note_disorder(chunk, self._hasher.disordered_row)
            if taken < count:
                return self._part_of(chunk, start, added)
        return None

    def _note_disorder(self, chunk: Rows, row: int) -> None:
        # Now a key's last record may not have its greatest offset, so records must be looked up by key, as in Kafka.
        self.may_forget_keys = False
        if self.disordered is None:
            position = chunk.position + chunk.rows[fields.POSITION, row]
            reason = ", and the keys of the round do not fit into memory (log.cleaner.dedupe.buffer.size)"
            self.disordered = RecordsOutOfOrder(chunk.path, position, reason)

    def _part_of(self, chunk: Rows, start: int, added: int) -> _Part:
        """Find the record at which the map was full, after `added` records with keys from row `start` on."""
        least = self._work.plan.first_dirty_offset
        for row in chunk.with_step(MAP, start):
            last_offset = None
            for index, record in enumerate(self._records.batch(chunk, row).records()):
                if record.key is None or record.offset < least:
                    continue
                if not added:
                    return _Part(row, index, last_offset)
                added -= 1
                last_offset = record.offset
        raise AssertionError("the map is full although it took every record")

    def _bytes_of_chunks_before(self, segment: SegmentPlan, start: int, at: int) -> int:
        """Return the number of bytes from `start` to the chunk in which the plain engine would read the position `at`."""
        work = self._work
        file = work.env.open(work.log_path(segment), read_only=True)
        try:
            chunks = read_chunks(file, start, segment.size, work.plan.io_buffer_bytes)
            return next(one.position for one in chunks if one.position + one.size > at) - start
        finally:
            file.close()

    def _add_clean_section(self) -> None:
        """Add the records of the clean section to the spilled map, which then finds the superseded records among them."""
        work, plan = self._work, self._work.plan
        self._hasher.restart()
        for segment in plan.segments:
            if segment.base_offset >= plan.first_dirty_offset:
                return
            if segment.base_offset in plan.untouched or segment.base_offset in plan.quarantined:
                continue
            work.check_done()
            for chunk in self._records.chunks(work.env, work.log_path(segment), 0, segment.size):
                work.check_done()
                work.throttle(chunk.size)
                if not self._add_clean_chunk(chunk):
                    return

    def _add_clean_chunk(self, chunk: Rows) -> bool:
        """Add the records of a chunk below the dirty range; return False if the dirty range begins in it."""
        plan, rows = self._work.plan, chunk.rows
        choose_rows(self._records, chunk, None)
        end_row = bisect_left(chunk.column(fields.BASE_OFFSET), plan.first_dirty_offset)
        if not plan.is_kafka:
            for row in range(end_row):
                if rows[fields.LAST_OFFSET, row] < plan.log_start_offset:
                    rows[fields.STEP, row] = SKIP
        tuples = self._hasher.tuples
        for start, end in self._records.ranges(chunk, 0, end_row, MAP):
            for count in self._hasher.hash(self._records, chunk, start, end, end_offset=plan.first_dirty_offset):
                self.offsets.add_older(tuples, count)
        return end_row == chunk.count


def choose_rows(
    records: RowRecords, chunk: Rows, tracker: TransactionTracker | None, *, follows_data: bool = False
) -> bool:
    """Set STEP to MAP in the rows of data, except data of aborted transactions; return True if any data is left out.

    Reports control batches to the tracker and, with `follows_data`, all transactional batches. Otherwise, or without a tracker,
    aborted data is mapped like other data.
    """
    rows = chunk.rows
    set_steps(rows, chunk.count, MAP, OLD_FORMAT)
    followed = fields.CONTROL
    if follows_data and tracker is not None:
        followed |= fields.TRANSACTIONAL
    leaves_out = False
    for row in chunk.with_attributes(followed):
        batch = records.batch(chunk, row)
        header = batch.header
        if header.is_control:
            if tracker is not None:
                tracker.drops_control(header.last_offset, header.producer_id, batch.control_type())
            rows[fields.STEP, row] = SKIP
        elif tracker is not None and tracker.drops_data(header.last_offset, header.producer_id, is_transactional=True):
            rows[fields.STEP, row] = SKIP
            rows[fields.NOTE, row] = ABORTED_NOTE
            leaves_out = True
    return leaves_out
