"""Recovers a segment: finds the last whole batch, cuts off the rest, and rebuilds the indexes and the producer state.

Synced data is never cut off. A damaged batch below the recovery point, or anywhere after a clean stop, was once whole: it was
not damaged by a crash, and later batches were acknowledged. `check_synced` then raises CorruptLog before anything is changed.
Above the recovery point, `recover_segment` cuts off a tail that is not whole, like LogSegment.recover. (Kafka truncates in both
cases, and fetches the lost data from other replicas.)

A whole batch, with a correct checksum, is never cut off because of its offsets, not even above the recovery point, since no
crash leaves wrong offsets in a whole batch. If its offsets do not ascend, `checked_batches` raises MisplacedBatch; if they are
too far above the segment's base, `recover_segment` raises SegmentOverflow, and the segment is divided (`overflow_split`).

A log without a clean-shutdown mark may be a copy from a running broker, with files from different moments, so it may end below
the recovery point, in the middle of a batch. If no readable batch follows, this counts as the end, and the log opens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from diamant.kernels import ARE_COMPILED
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import MAX_OFFSET, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env, File
from diamant.storage.errors import CorruptLog
from diamant.storage.log.control_append import coordinator_epoch_of
from diamant.storage.producers.producer_state import ProducerStateManager
from diamant.storage.recovery.damaged_tail import is_torn_end
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment, scan_headers
from diamant.storage.segments.txn_index import AbortedTxn

logger = logging.getLogger(__name__)

UNREADABLE_CONTROL = (
    "%s: the control record at offset %d of producer %d cannot be read (%s) and is skipped; if it ends a transaction, that "
    "transaction stays open"
)

# Recovery reads a segment in pieces of this size; a larger batch is read whole.
RECOVERY_READ_BYTES = 4 * 1024 * 1024


class RecoveredSegment(NamedTuple):
    """Result of recovering one segment: bytes cut off, and the reason (None if the segment was whole)."""

    truncated_bytes: int
    reason: str | None


class TornEnd(NamedTuple):
    """The end of a log that ends below its recovery point: position in the segment, and offset after the last whole batch."""

    position: int
    next_offset: int


class RefusedLog(CorruptLog):
    """A `.log` file that is neither served nor changed; `next_offset` is the offset after the last batch before `position`."""

    def __init__(self, path: str, position: int, reason: str, next_offset: int) -> None:
        super().__init__(path, position, reason)
        self.next_offset = next_offset


class SyncedDamage(RefusedLog):
    """A synced part of a `.log` file is damaged."""

    def __init__(self, path: str, position: int, reason: str, next_offset: int) -> None:
        super().__init__(
            path,
            position,
            f"{reason}. What follows may have been acknowledged, so nothing is cut off: put a whole copy of the file in its "
            f"place, or set this partition's offset in {names.RECOVERY_POINT_CHECKPOINT} to {next_offset} to have the log "
            "end there, and start the broker again",
            next_offset,
        )


class MisplacedBatch(RefusedLog):
    """A whole batch has offsets that cannot be at its position."""

    def __init__(self, path: str, position: int, reason: str, next_offset: int) -> None:
        super().__init__(
            path,
            position,
            f"{reason}. The batch is whole, so nothing is cut off: put a copy of the file with ascending offsets in its place, "
            f"or keep a copy and cut the file to {position} bytes to have it end at offset {next_offset}, and start the "
            "broker again",
            next_offset,
        )


class SegmentOverflow(Exception):
    """The offsets of a segment exceed the range of its indexes; it must be divided before it can be recovered."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.path)
        self.segment = segment


def check_synced(segment: Segment, end_offset: int, *, may_end: bool = False) -> TornEnd | None:
    """Check framing, CRCs and offset order of the synced batches below `end_offset`; changes nothing.

    Raises SyncedDamage at the first bad batch, MisplacedBatch at a batch out of order. Set `may_end` if no later segment has data
    and the last stop was not clean; a bad batch that no whole batch follows is then returned as a TornEnd instead.
    """
    if segment.base_offset >= end_offset:
        return None
    next_offset = segment.base_offset
    try:
        for _, header, _ in checked_batches(segment):
            next_offset = header.next_offset
            if next_offset >= end_offset:
                return None
    except RefusedLog:
        raise
    except CorruptLog as error:
        if may_end and is_torn_end(segment, error.position):
            return TornEnd(error.position, next_offset)
        raise SyncedDamage(error.path, error.position, error.reason, next_offset) from error
    return None


def recover_segment(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochs,
    producers: ProducerStateManager,
    *,
    synced_end: int,
    is_last_scan: bool = False,
) -> RecoveredSegment:
    """Check every batch (framing and CRC), rebuild the indexes, cut off the first bad batch and the rest (LogSegment.recover).

    Parses only control records. `producers` must hold the state at the segment's base offset, and `check_synced` must have
    passed below `synced_end`. Raises SyncedDamage if there is damage below it after all, MisplacedBatch, or SegmentOverflow; the
    latter two leave the `.log` file unchanged, and the next start rebuilds the indexes. `is_last_scan`: no flush or later
    recovery will process this segment, so its indexes are synced before this returns.
    """
    segment.reset_indexes(is_synced=is_last_scan)
    last_indexed = 0
    valid_bytes = 0
    next_offset = segment.base_offset
    reason: str | None = None
    size = segment.size
    max_offset = segment.base_offset + MAX_RELATIVE_OFFSET
    try:
        for position, header, batch in checked_batches(segment):
            if header.last_offset > max_offset:
                raise SegmentOverflow(segment)
            segment.see_timestamp(header)
            if position - last_indexed > config.index_interval_bytes and _index(segment, header, position):
                last_indexed = position
            if header.magic == 2:
                if header.partition_leader_epoch > epochs.latest_epoch:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    _replay(producers, header, batch, segment, is_recovered=True)
            next_offset = header.next_offset
            valid_bytes = position + header.size
    except RefusedLog:
        raise
    except CorruptLog as error:
        if next_offset < synced_end:
            raise SyncedDamage(error.path, error.position, error.reason, next_offset) from error
        reason = error.reason
    if valid_bytes < size:
        segment.truncate_bytes(valid_bytes)
        segment.file.sync()
    segment.on_inactive(is_synced=is_last_scan)
    return RecoveredSegment(size - valid_bytes, reason)


def _index(segment: Segment, header: BatchHeader, position: int) -> bool:
    """Index a recovered batch; return False if an index is full because `segment.index.bytes` was lowered.

    The rest of the segment is then not indexed. In this case, Kafka's broker does not start.
    """
    if segment.offset_index.is_full or segment.time_index.is_full:
        return False
    segment.offset_index.append(header.last_offset, position)
    segment.time_index.maybe_append(segment.max_timestamp, segment.offset_of_max_timestamp)
    return True


def checked_batches(segment: Segment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield position, header and bytes of each batch; the bytes are valid until the next iteration.

    Raises CorruptLog at the first batch that is incomplete or has a wrong CRC, MisplacedBatch at a whole batch whose last offset
    is not above earlier ones. Offsets may be beyond the range of the indexes.
    """
    file = segment.file
    size = segment.size
    window = b""
    window_start = 0
    end = 0
    previous_offset = segment.base_offset - 1
    for position, header in scan_headers(file, 0, size):
        at = position - window_start
        if at + header.size > len(window):
            window = file.pread(min(max(RECOVERY_READ_BYTES, header.size), size - position), position)
            window_start, at = position, 0
        if header.magic == 2 and not crc_is_valid(window, at, header.size):
            raise CorruptLog(segment.path, position, f"CRC mismatch in the batch at offset {header.base_offset}")
        if not previous_offset < header.last_offset < MAX_OFFSET or header.base_offset < 0:
            _refuse(segment, position, header, window[at : at + header.size], previous_offset)
        yield position, header, memoryview(window)[at : at + header.size]
        previous_offset = header.last_offset
        end = position + header.size
    if end < size:
        raise CorruptLog(segment.path, end, f"{size - end} bytes at the end are not a whole batch")


def _refuse(segment: Segment, position: int, header: BatchHeader, batch: bytes, previous_offset: int) -> NoReturn:
    """Raise MisplacedBatch, or CorruptLog if the checksum (which scans ignore in batches of old formats) is wrong."""
    disorder = f"offsets {header.base_offset} to {header.last_offset} after {previous_offset} are out of order"
    if not crc_is_valid(batch, 0, len(batch)):
        raise CorruptLog(segment.path, position, f"{disorder}, and the CRC is wrong")
    raise MisplacedBatch(segment.path, position, disorder, previous_offset + 1)


# -- producer state ----------------------------------------------------------------------------------------------------


def rebuild_producers(producers: ProducerStateManager, earlier: list[Segment], offset: int, env: Env) -> None:
    """Bring the producer state exactly to `offset`, starting from the recovered state or the newest snapshot below it.

    Snapshots above `offset` predate the recovery and are removed.
    """
    if not producers.is_loaded or producers.map_end_offset > offset:
        producers.load(env.clock.now_ms(), offset, log_start_offset=earlier[0].base_offset if earlier else offset)
    _scan_producers(producers, earlier, offset)


def load_producers(
    producers: ProducerStateManager, segments: list[Segment], start: int, end: int, env: Env, *, is_clean: bool
) -> None:
    """Load the producer state at the log end (UnifiedLog.rebuildProducerState)."""
    if is_clean and not producers.snapshots.offsets and end == segments[0].base_offset:
        producers.map_end_offset = end
        return
    # Recovery has already built the state, with up to five batches per producer; a snapshot holds only one. A snapshot
    # also lacks expired producers, which the cleaner must not treat as active.
    if producers.map_end_offset != end:
        producers.load(env.clock.now_ms(), end, log_start_offset=start)
        _scan_producers(producers, segments, end)
    else:
        producers.expire(env.clock.now_ms())
    producers.transactions.on_high_watermark(end)
    producers.take_snapshot(end)


def _scan_producers(producers: ProducerStateManager, segments: list[Segment], end: int) -> None:
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else end
        if following <= producers.map_end_offset:
            continue
        located = segment.locate(producers.map_end_offset)
        if located is None:
            continue
        file: File = segment.file
        for position, header in scan_for_producers(file, located[0], segment.size, end):
            if header.base_offset >= end:
                break
            if header.magic == 2 and header.producer_id >= 0 and header.base_offset >= producers.map_end_offset:
                if header.last_offset >= MAX_OFFSET:
                    reason = f"offsets {header.base_offset} to {header.last_offset} exceed 63 bits"
                    raise MisplacedBatch(segment.path, position, reason, producers.map_end_offset)
                data = file.pread(header.size, position) if header.is_control else b""
                _replay(producers, header, memoryview(data), segment)
    producers.map_end_offset = max(end, producers.map_end_offset)


def scan_for_producers(file: File, position: int, end: int, end_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield what `scan_headers` yields between two byte positions.

    May omit batches without a producer, and batches at or above `end_offset`.
    """
    fd = file.fileno()
    if fd is None or not ARE_COMPILED:
        yield from scan_headers(file, position, end)
        return
    from diamant.kernels.producer_scan import skip_without_producer

    while True:
        start = skip_without_producer(fd, position, end, end_offset)
        for position, header in scan_headers(file, start, end):
            yield position, header
            if header.magic == 2 and header.producer_id < 0:
                break  # More batches without a producer may follow.
        else:
            return
        position += header.size


def _replay(
    producers: ProducerStateManager,
    header: BatchHeader,
    batch: memoryview,
    segment: Segment,
    *,
    is_recovered: bool = False,
) -> None:
    """Apply one stored batch of `segment` to the producer state; with `is_recovered` also index aborted transactions.

    A control record that cannot be read has no effect. The transaction that it may end stays open, so read_committed consumers
    do not see undecided records.
    """
    if not header.is_control:
        producers.replay(header)
        return
    try:
        record = next(iter_records(batch), None)
        if record is None:
            return
        control_type = parse_control_type(record.key)
    except CorruptBatch as error:
        logger.warning(UNREADABLE_CONTROL, segment.path, header.base_offset, header.producer_id, error.reason)
        return
    completed = producers.append_marker(
        header, control_type, coordinator_epoch_of(record.value), header.base_offset, is_replay=True
    )
    if completed is None:
        return
    stable = producers.transactions.last_stable_offset_after(completed)
    if completed.is_aborted and is_recovered:
        segment.txn_index.append(
            AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
        )
    producers.transactions.complete(completed)
