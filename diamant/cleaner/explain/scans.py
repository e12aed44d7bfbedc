"""Finds every record of one key in the files of a log while the log is being written and cleaned.

    segments = [OpenSegment.of(env, path, base_offset, size) for ...]     descriptors keep the bytes if the cleaner renames files
    found = scan_key(segments, key, outcomes, ...)                       any thread

The log's indexes and its producers' state show which transactions were aborted, as for a consumer, so one pass is enough.
Key filters only exclude segments (`key_filter.cannot_hold`); they never prove that a record exists.

Memory: the window of `tolerant_reader`, `MAX_RECORDS` records without values, and 8 bytes for each of `MAX_OFFSETS` offsets.

`scan_tombstones` finds the tombstones of a log that are the latest record of their key. Keys are identified by 128-bit hashes
with a random secret.

Memory: some 400 bytes for each of `MAX_TOMBSTONES` tombstones. While so many are in memory, further tombstones are only counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from diamant.cleaner.explain.record_picker import RecordPicker
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import Piece, PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import Batch, Problem, Report, SegmentFile
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.fields import STEP
from diamant.kernels.constants.picking import TOMBSTONES, WITH_KEY
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env, File

MAX_RECORDS = 1_000
MAX_OFFSETS = 1_000_000


@dataclass(slots=True)
class OpenSegment:
    """A segment's open file, of which only the first `size` bytes count. The caller that opened it must close `file`."""

    file: File
    path: str
    base_offset: int
    size: int
    is_removed: bool = False
    """True if the log has released the file, which waits for its removal from the disk."""

    @classmethod
    def of(cls, env: Env, path: str, base_offset: int, size: int, *, is_removed: bool = False) -> OpenSegment:
        """Open a file for reading. Raises OSError if it is gone."""
        return cls(env.open(path, read_only=True), path, base_offset, size, is_removed)

    def decided(
        self, reader: PieceReader, outcomes: TransactionOutcomes, report: Report
    ) -> Iterator[tuple[Piece, Outcome]]:
        """Yield the sound batches with their outcomes: either rows, with outcomes in STEP, or a single batch and its outcome."""
        for piece in self.pieces(reader, report):
            if isinstance(piece, SoundRows):
                piece.decide(outcomes.of)
                yield piece, Outcome.COMMITTED
            else:
                yield piece, outcomes.of(piece.header)

    def pieces(self, reader: PieceReader, report: Report) -> Iterator[Piece]:
        """Yield the sound batches: those with valid checksums."""
        segment = SegmentFile(self.path, self.base_offset, self.size)
        for piece in reader.pieces(self.file, segment, self.size, report):
            if isinstance(piece, SoundRows) or piece.crc_is_valid:
                yield piece


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One data or control record with the facts that the rules need. Its value is not kept."""

    offset: int
    timestamp: int
    key: bytes | None
    has_value: bool
    value_bytes: int
    segment: int
    """Base offset of its segment."""
    position: int
    """Position of its batch in the segment's file."""
    magic: int
    is_control: bool
    producer_id: int
    outcome: Outcome
    horizon_ms: int | None
    """Delete horizon of its batch."""
    is_removed: bool = False
    """True if the log has released its file."""


@dataclass(slots=True)
class KeyScan:
    """The records of one key that a scan has found."""

    records: list[FoundRecord] = field(default_factory=list)
    """The records in offset order; if there are more than `MAX_RECORDS`, the first ones and the last one."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """Offsets of records that consumers see (committed, not below the log start); at most `MAX_OFFSETS`, as for `records`."""
    left_out: int = 0
    """Number of records that are missing before the last of `records`."""
    problems: list[Problem] = field(default_factory=list)
    segments_read: int = 0
    bytes_read: int = 0

    def next_offset(self, offset: int, least: int, is_mapped: Callable[[int], bool]) -> int | None:
        """Return the first of `offsets` above `offset`, and not below `least`, that a round would map; None if there is none."""
        for index in range(bisect_left(self.offsets, max(offset + 1, least)), len(self.offsets)):
            if is_mapped(self.offsets[index]):
                return self.offsets[index]
        return None

    @property
    def last_offset(self) -> int | None:
        """Offset of the key's latest record, as consumers see it."""
        return self.offsets[-1] if self.offsets else None


def scan_key(
    segments: Iterable[OpenSegment],
    key: bytes | None,
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    at_offset: int | None = None,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    is_compiled: bool = ARE_COMPILED,
) -> KeyScan:
    """Find every record of `key`, or, if `at_offset` is given instead, only the data or control record at that offset.

    `check_done` raises an exception to end the scan. Callable from any thread.
    """
    found = KeyScan()
    reader = PieceReader(with_records=key is not None, is_compiled=is_compiled)
    picker = None if key is None or not is_compiled else RecordPicker(WITH_KEY, key)

    def look_at(segment: OpenSegment, batch: Batch) -> None:
        header = batch.header
        try:
            if header.record_count and (key is None or (not header.is_control and batch.may_have(key))):
                for record in batch.records():
                    if record.key == key if key is not None else record.offset == at_offset:
                        one = found_record(record, segment, header, batch.position, outcomes)
                        _add(found, one, log_start_offset)
        except CorruptBatch as error:
            found.problems.append(Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))

    for segment in segments:
        for piece in segment.pieces(reader, found.problems.append):
            check_done()
            if isinstance(piece, Batch):
                if key is not None or piece.header.base_offset <= (at_offset or 0) <= piece.header.last_offset:
                    look_at(segment, piece)
            elif picker is None:
                for row in piece.with_offset(at_offset or 0):
                    look_at(segment, piece.batch(row))
            else:
                for row, record in picker.pick(piece):
                    if record is None:
                        look_at(segment, piece.batch(row))
                    else:
                        one = found_record(record, segment, piece.header(row), piece.position(row), outcomes)
                        _add(found, one, log_start_offset)
        found.segments_read += 1
        found.bytes_read += segment.size
        advance(segment.size)
    return found


def found_record(
    record: Record,
    segment: OpenSegment,
    header: BatchHeader,
    position: int,
    outcomes: TransactionOutcomes,
    *,
    with_key: bool = True,
) -> FoundRecord:
    """Return the facts to keep about a record. `header` and `position` belong to its batch."""
    return FoundRecord(
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key if with_key else b"",
        has_value=record.value is not None,
        value_bytes=0 if record.value is None else len(record.value),
        segment=segment.base_offset,
        position=position,
        magic=header.magic,
        is_control=header.is_control,
        producer_id=header.producer_id,
        outcome=outcomes.of(header),
        horizon_ms=header.base_timestamp if header.has_delete_horizon else None,
        is_removed=segment.is_removed,
    )


def _add(found: KeyScan, record: FoundRecord, log_start_offset: int) -> None:
    if len(found.records) < MAX_RECORDS:
        found.records.append(record)
    else:
        # The last record may be the live one, which must be kept.
        found.records[-1] = record
        found.left_out += 1
    if (
        record.is_removed
        or record.is_control
        or record.outcome != Outcome.COMMITTED
        or record.offset < log_start_offset
    ):
        return
    if len(found.offsets) < MAX_OFFSETS:
        found.offsets.append(record.offset)
    else:
        found.offsets[-1] = record.offset


MAX_TOMBSTONES = 100_000
_WATCHED_FACTOR = 4
"""If more keys than this multiple of the tombstone limit are watched, keys without a tombstone are forgotten."""


@dataclass(slots=True)
class TombstoneScan:
    """The tombstones that a scan has found, in offset order; only those that `keeps_key` selects have their keys."""

    tombstones: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0
    problems: list[Problem] = field(default_factory=list)
    segments_read: int = 0
    bytes_read: int = 0


def scan_tombstones(
    segments: Iterable[OpenSegment],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    keeps_key: Callable[[bytes], bool] | None = None,
    most: int = MAX_TOMBSTONES,
    is_compiled: bool = ARE_COMPILED,
) -> TombstoneScan:
    """Read all segments, and return the tombstones that no later committed record supersedes. Callable from any thread.

    `keeps_key`: tells whether a tombstone is returned with its key. `most`: maximum number of tombstones in memory.
    """
    found = TombstoneScan()
    reader = PieceReader(is_compiled=is_compiled)
    picker = RecordPicker(TOMBSTONES) if is_compiled else None
    hash_key = RandomHash(is_compiled=False) if picker is None else picker.hash
    latest: dict[bytes, FoundRecord] = {}

    def look_at(record: Record, segment: OpenSegment, header: BatchHeader, position: int) -> None:
        if record.key is None or record.offset < log_start_offset or (record.value is not None and not latest):
            return
        hashed = hash_key.of(record.key)
        if latest.pop(hashed, None) is None and len(latest) >= most:
            found.left_out += record.value is None
        elif record.value is None:
            with_key = keeps_key is not None and keeps_key(record.key)
            latest[hashed] = found_record(record, segment, header, position, outcomes, with_key=with_key)
            if picker is not None:
                picker.watch((hashed,))

    def look_at_all(segment: OpenSegment, batch: Batch) -> None:
        try:
            for record in batch.records():
                look_at(record, segment, batch.header, batch.position)
        except CorruptBatch as error:
            found.problems.append(Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))

    for segment in segments:
        for piece, outcome in segment.decided(reader, outcomes, found.problems.append):
            check_done()
            if isinstance(piece, Batch):
                if not piece.header.is_control and piece.header.record_count and outcome == Outcome.COMMITTED:
                    look_at_all(segment, piece)
                continue
            assert picker is not None
            for row, record in picker.pick(piece):
                if piece.chunk.rows[STEP, row] != Outcome.COMMITTED:
                    continue
                if record is None:
                    look_at_all(segment, piece.batch(row))
                else:
                    look_at(record, segment, piece.header(row), piece.position(row))
            if picker.watched > _WATCHED_FACTOR * most:
                picker.watch_only(latest)
        found.segments_read += 1
        found.bytes_read += segment.size
        advance(segment.size)
    found.tombstones = sorted(latest.values(), key=lambda record: record.offset)
    return found
