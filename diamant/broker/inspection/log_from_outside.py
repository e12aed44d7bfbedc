"""A log as a client can see it: its segments, records of one key, and open transactions, from the leader's responses.

A fetch never returns data from two segments, so the sizes and timestamps of segments are visible; the base offset of a segment is
that of its first batch. The cleaner's checkpoint is not visible. Where offsets are missing, records were cleaned away, so the log
has been cleaned at least up to the last gap.

Memory: `MAX_RECORDS` records, 200 bytes for each segment, and one response.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diamant.broker.clusters.fetching import Stretch
from diamant.cleaner.explain.log_state import LogState, SegmentState
from diamant.cleaner.explain.scans import MAX_RECORDS, FoundRecord, KeyScan
from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.cleaner.segments.tolerant_reader import Batch, Problem
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes, TransactionWalk
from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig


@dataclass(slots=True)
class OutsideLog:
    """The log of one partition. The caller passes all batches to `take`, in the order of their offsets."""

    stretch: Stretch
    key: bytes | None = None
    at_offset: int | None = None
    """If not None, `scan` returns only the record at this offset."""
    segments: list[SegmentState] = field(default_factory=list)
    cleaned_to: int = 0
    """The offset up to which the log has certainly been cleaned."""
    _next_offset: int | None = None
    _walk: TransactionWalk = field(default_factory=TransactionWalk)
    _records: list[tuple[FoundRecord, BatchHeader]] = field(default_factory=list)
    _left_out: int = 0
    _problems: list[Problem] = field(default_factory=list)
    _has_gap: bool = False
    """True if records of the last segment in `segments` were cleaned away."""

    def take(self, data: memoryview) -> None:
        """Add complete batches, all from the same segment."""
        for position, header in iter_headers(data):
            if self.stretch.segments[len(self.segments) :][:1] == [header.base_offset]:
                self._begin(header)
            self._add(data, position, header)

    def _begin(self, header: BatchHeader) -> None:
        if self._has_gap:
            self.cleaned_to = header.base_offset
        self._has_gap = False
        name = f"{header.base_offset:020d}{names.LOG_SUFFIX}"
        self.segments.append(SegmentState(header.base_offset, 0, -1, header.base_timestamp, None, -1, 0, name))

    def _add(self, data: memoryview, position: int, header: BatchHeader) -> None:
        segment, expected = self.segments[-1], self._next_offset
        if expected is None:
            expected = max(0, self.stretch.log_start)
        if expected < header.base_offset:
            self.cleaned_to = header.base_offset
            self._has_gap |= segment.size > 0
        self._has_gap |= header.record_count < header.next_offset - header.base_offset
        self._next_offset = header.next_offset
        at, segment.size = segment.size, segment.size + header.size
        segment.largest_timestamp = max(segment.largest_timestamp, header.max_timestamp)
        try:
            if not crc_is_valid(data, position, header.size):
                raise CorruptBatch(position, "the checksum of the batch is wrong")
            control = None
            if header.is_control:
                control = next((parse_control_type(one.key) for one in iter_records(data, position)), None)
            self._walk.add(header, control)
            self._look_at(Batch(at, header, True, bytes(data[position : position + header.size]), 0), segment)
        except CorruptBatch as error:
            self._problems.append(Problem(f"{self.stretch.name} at offset {header.base_offset}", at, error.reason))

    def _look_at(self, batch: Batch, segment: SegmentState) -> None:
        header = batch.header
        if self.at_offset is not None:
            if not header.base_offset <= self.at_offset <= header.last_offset:
                return
        elif self.key is None or header.is_control or not batch.may_have(self.key):
            return
        for record in batch.records():
            if record.offset == self.at_offset if self.at_offset is not None else record.key == self.key:
                if len(self._records) == MAX_RECORDS:
                    self._records.pop()
                    self._left_out += 1
                self._records.append((_found(record, header, segment.base_offset, batch.position), header))

    def state(self, config: LogConfig, transactions: list[OpenTransaction]) -> LogState:
        """Return the log's state in the form that the cleaner's rules take."""
        one, end = self.stretch, self.stretch.end_offset
        stable = self._walk.first_open_offset
        return LogState(
            one.topic,
            one.partition,
            one.name,
            RealEnv(),
            config,
            tuple(self.segments) or (SegmentState(max(0, one.log_start), 0, -1, -1, None, -1, 0, ""),),
            max(0, one.log_start),
            end,
            end if stable is None else stable,
            None,
            open_transactions=tuple(sorted(transactions, key=lambda found: found.first_offset)),
        )

    @property
    def open_since(self) -> dict[int, int]:
        """The first offset of each open transaction, by its producer id."""
        return self._walk.open_since

    def scan(self) -> KeyScan:
        """Return the records of `key`, or the record at `at_offset`, among the batches so far."""
        outcomes = TransactionOutcomes(self._walk.aborted, self._walk.open_since)
        scan = KeyScan(
            [replace(found, outcome=outcomes.of(header)) for found, header in self._records],
            left_out=self._left_out,
            problems=self._problems,
            segments_read=len(self.segments),
            bytes_read=self.stretch.bytes,
        )
        for found in scan.records:
            is_seen = found.outcome == Outcome.COMMITTED and not found.is_control
            if is_seen and found.offset >= self.stretch.log_start:
                scan.offsets.append(found.offset)
        return scan


def _found(record: Record, header: BatchHeader, base_offset: int, position: int) -> FoundRecord:
    return FoundRecord(
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        has_value=record.value is not None,
        value_bytes=len(record.value or b""),
        segment=base_offset,
        position=position,
        magic=header.magic,
        is_control=header.is_control,
        producer_id=header.producer_id,
        outcome=Outcome.COMMITTED,
        horizon_ms=header.base_timestamp if header.has_delete_horizon else None,
    )
