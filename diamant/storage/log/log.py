"""The log of one partition: validated appends, reads of whole batches, offsets, truncation at both ends.

With a single replica, the high watermark equals the log end offset after every append. The loop thread owns a log; only
`FlushPlan.run` and `Log.check_batch` may run in other threads. An append parses the 61-byte header, checks the CRC and walks the
records without decoding them. A read parses headers only and returns file ranges.

Source: Kafka's UnifiedLog and LocalLog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from diamant.protocol.batches.batch import set_timestamps
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env
from diamant.storage.log.append_checks import CheckedBatch, Validation
from diamant.storage.log.appender import Appender, AppendResult
from diamant.storage.log.flush import FlushPlan, UnsyncedFiles
from diamant.storage.log.log_reader import LogReader
from diamant.storage.log.log_segments import LogSegments, new_segment
from diamant.storage.producers.producer_state import ProducerStateManager
from diamant.storage.segments.first_appends import note_first_appends
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import FileSlice, Segment
from diamant.storage.segments.txn_index import AbortedTxn

logger = logging.getLogger(__name__)

READ_COMMITTED = 1


class ReadResult(NamedTuple):
    """Ranges of whole batches (the first may begin below the fetch offset) and the offsets of a Fetch response."""

    slices: tuple[FileSlice, ...]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTxn] | None


class EpochEndOffset(NamedTuple):
    """Result of OffsetForLeaderEpoch: (-1, -1) if the epoch is unknown."""

    leader_epoch: int
    end_offset: int


class Interposer(Protocol):
    """A hook for tests between a log and its callers. `Log.append_checked` and `Log.read` call it on the loop thread."""

    def divided(self, log: Log, checked: CheckedBatch) -> Iterator[CheckedBatch]:
        """Yield the batches to append in place of `checked`: the batch itself or its parts. May roll the log before each."""
        ...

    def before_read(self, log: Log, offset: int, max_bytes: int) -> int:
        """Return the maximum size in bytes of a read. The call may change the log's segments."""
        ...


class Log:
    """One partition on disk. Created only by `open_log.load_log` or `open_log.create_log`, never directly."""

    def __init__(
        self,
        env: Env,
        path: str,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig,
        *,
        segments: list[Segment],
        epochs: LeaderEpochs,
        producers: ProducerStateManager,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        validation: Validation,
    ) -> None:
        self.env = env
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self._segments = LogSegments(segments)
        self.segments = segments
        self.reader = LogReader(self._segments, self._index_damaged)
        self._appender = Appender(self)
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.validation = validation
        self.leader_epoch = epochs.latest_epoch if epochs.latest_epoch >= 0 else 0
        self.write_failure: OSError | None = None
        self.last_flush_ms = env.clock.now_ms()
        self.on_change: list[Callable[[], None]] = []
        self.on_flush_due: Callable[[Log], object] | None = None
        self.on_index_damaged: Callable[[Log, Segment], object] | None = None
        """Called with each closed segment whose damaged offset index makes reads slow."""
        self.on_files_removed: Callable[[list[str], int], None] | None = None
        self.interposer: Interposer | None = None
        """Set by tests only."""
        self.unsynced = UnsyncedFiles(self)
        self.is_deleted = False
        self.is_exchanging = False
        """True while a `segment_swap.Replacement` renames files; until it is False again, no segment is removed."""

    # -- offsets -------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self.segments[-1]

    @property
    def high_watermark(self) -> int:
        """The log end offset, since this node is the only replica."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, or the high watermark if none is open."""
        unstable = self.producers.transactions.first_unstable_offset
        if unstable is None:
            return self.log_end_offset
        return min(max(unstable, self.log_start_offset), self.log_end_offset)

    @property
    def size(self) -> int:
        """Total size in bytes of the `.log` files."""
        return sum(segment.size for segment in self.segments)

    def update_config(self, config: LogConfig) -> None:
        """Use new settings from the next append on."""
        self.config = config

    def become_leader(self, leader_epoch: int) -> None:
        """Use `leader_epoch` for appends from now on (Partition.makeLeader), or the log's latest epoch if that is higher."""
        self.leader_epoch = max(leader_epoch, self.epochs.latest_epoch)
        self.epochs.assign(self.leader_epoch, self.log_end_offset)

    @property
    def needs_start_checkpoint(self) -> bool:
        """True if the log start offset cannot be derived from the segments' names, or might not be after a power failure."""
        return self.log_start_offset > self.segments[0].base_offset or (
            self.log_start_offset > 0 and self.unsynced.synced_name_changes < self.unsynced.name_changes
        )

    @property
    def is_flush_wanted(self) -> bool:
        """True if `flush.messages` requires a flush before any reader sees the latest appends.

        Kafka flushes inside the append, so its readers never see unflushed records.
        """
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    # -- append --------------------------------------------------------------------------------------------------

    def check_batch(self, records: memoryview, *, produce_version: int = 13, is_light: bool = False) -> CheckedBatch:
        """Run those checks of `append_as_leader` that need no log state; return the batch. May patch `records` in place.

        Any thread may call it. With `is_light`, raises HeavyBatch before any change if the check would block for long.
        """
        return self._appender.batch_check().run(records, produce_version=produce_version, is_light=is_light)

    def append_as_leader(self, records: memoryview, *, produce_version: int = 13) -> AppendResult:
        """Validate and append a client's single batch; return its position. Patches `records` in place.

        Raises KafkaError with Kafka's code and the indexes of invalid records (LogValidator); then nothing is stored.
        A failed write raises KAFKA_STORAGE_ERROR and leaves the log unchanged.
        """
        return self.append_checked(self.check_batch(records, produce_version=produce_version))

    def append_checked(self, checked: CheckedBatch, *, is_part: bool = False) -> AppendResult:
        """Append the result of `check_batch`; return its position. LogAppendTime is the time of this call, so it never decreases.

        `is_part`: the batch comes from the interposer.
        """
        if self.interposer is not None and not is_part:
            results = [self.append_checked(part, is_part=True) for part in self.interposer.divided(self, checked)]
            return results[0]._replace(last_offset=results[-1].last_offset)
        batch, header = checked
        now_ms = self.env.clock.now_ms()
        log_append_time_ms = -1
        if self.config.is_log_append_time:
            log_append_time_ms = now_ms
            set_timestamps(batch, 0, is_log_append_time=True, max_timestamp=now_ms)
            header = header._replace(max_timestamp=now_ms)
        return self._appender.append(batch, header, now_ms, log_append_time_ms, is_client=True)

    def append_internal(self, batch: bytearray) -> AppendResult:
        """Append a batch that a coordinator built; return its position. Assigns offsets and epoch, but does not check records.

        Raises KafkaError like `append_as_leader`.
        """
        return self._appender.append_trusted(batch)

    def appended(self) -> None:
        """Notify the listeners that the log has grown."""
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages and self.on_flush_due is not None:
            self.on_flush_due(self)
        for callback in self.on_change:
            callback()

    # -- segments ------------------------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """Return a new active segment that begins at the log end offset, or the active one if it is empty (UnifiedLog.roll)."""
        active = self.active
        base_offset = self.log_end_offset
        if active.base_offset == base_offset and not active.size:
            return active
        active.on_inactive()
        segment = new_segment(self.env, self.path, base_offset, self.config)
        self.unsynced.name_changes += 1
        self.unsynced.rolled.append(active)
        self._segments.append(segment)
        self._take_snapshot()
        if self.on_flush_due is not None:
            self.on_flush_due(self)
        return segment

    def _take_snapshot(self) -> None:
        path = self.producers.take_snapshot(self.log_end_offset)
        if path is not None:
            self.unsynced.snapshots.append(path)

    def floor_segment(self, offset: int) -> int:
        """Return the index of the segment with the largest base offset <= `offset`; -1 if there is none."""
        return self._segments.floor(offset)

    def begin_behind(self, count: int) -> None:
        """Drop the `count` oldest segments from memory and advance the log start offset; does not change files."""
        self._segments.drop_oldest(count)
        first = self.segments[0].base_offset
        if count and first > self.log_start_offset:
            self._move_log_start(first)

    def exchange_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the adjacent segments `old` with `new`, in memory only (see `segment_swap`)."""
        self._segments.replace(old, new)
        self.hide(old)
        self.producers.snapshots.forget({segment.base_offset for segment in old} - {new.base_offset})

    def hide(self, segments: Sequence[Segment]) -> None:
        """Hide these segments from new readers. Current readers keep their ranges."""
        for segment in segments:
            segment.is_deleted = True
            # Otherwise any reference to the segment, such as the traceback of a failed round, would keep its bytes on disk.
            segment.release_file()
        self.reader.forget_deleted()

    def delete_records(self, before_offset: int, up_to: int | None = None) -> int:
        """Advance the log start to `before_offset` (-1: to `up_to` or the log end) and return it (UnifiedLog.deleteRecords)."""
        end = self.high_watermark if up_to is None else up_to
        offset = end if before_offset == -1 else before_offset
        if not 0 <= offset <= end:
            raise _cannot_delete(self, before_offset)
        if offset > self.log_start_offset:
            self._move_log_start(offset)
            for callback in self.on_change:
                callback()
        return self.log_start_offset

    def _move_log_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.producers.on_log_start_offset(offset)
        self.epochs.truncate_from_start(offset)

    # -- read ----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, isolation_level: int, min_one_message: bool, up_to: int | None = None
    ) -> ReadResult:
        """Return whole batches of at most `max_bytes`, from the one that contains `offset`. Raises OFFSET_OUT_OF_RANGE.

        If `min_one_message`, the first may be larger (KIP-74). Never crosses a segment's end. `up_to`: a lower high watermark.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise _out_of_range(self, offset)
        is_committed = isolation_level == READ_COMMITTED
        limit = self.last_stable_offset if is_committed else self.log_end_offset
        limit = limit if up_to is None else min(limit, up_to)
        records = None
        if offset < limit:
            if self.interposer is not None:
                max_bytes = self.interposer.before_read(self, offset, max_bytes)
            records = self.reader.find(offset, limit, self.log_end_offset, max_bytes, min_one_message=min_one_message)
        if records is None:
            return self._result((), 0, [] if is_committed else None, up_to)
        size = records.end - records.start
        aborted = self.reader.aborted(offset, records) if is_committed else None
        return self._result((FileSlice(records.segment.file, records.start, size),), size, aborted, up_to)

    def _result(
        self, slices: tuple[FileSlice, ...], size: int, aborted: list[AbortedTxn] | None, up_to: int | None
    ) -> ReadResult:
        end, stable_end = self.log_end_offset, self.last_stable_offset
        if up_to is not None:
            end, stable_end = up_to, min(stable_end, up_to)
        return ReadResult(slices, size, end, stable_end, self.log_start_offset, aborted)

    def _index_damaged(self, segment: Segment) -> None:
        if self.on_index_damaged is not None:
            self.on_index_damaged(self, segment)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return the largest known epoch <= `leader_epoch` and its end offset (KIP-101)."""
        return EpochEndOffset(*self.epochs.end_offset_for(leader_epoch, self.log_end_offset))

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch in which `offset` was written; -1 if unknown."""
        return self.epochs.epoch_for_offset(offset)

    # -- flush and close -----------------------------------------------------------------------------------------

    def begin_flush(self, offset: int | None = None) -> FlushPlan | None:
        """Return a plan to flush everything below `offset` (default: log end); None if all of it is already durable."""
        target = self.log_end_offset if offset is None else offset
        if target <= self.recovery_point and not self.unsynced.rolled:
            return None
        segments = [segment for segment in self._segments.since(self.recovery_point) if segment.base_offset < target]
        for segment in segments:
            segment.flush_indexes()
        return self.unsynced.plan(segments, target)

    def complete_flush(self, plan: FlushPlan) -> None:
        """Advance the recovery point after a flush plan has run. Raises OSError if the plan skipped a file."""
        plan.complete()
        self.recovery_point = max(self.recovery_point, plan.offset)
        self.last_flush_ms = self.env.clock.now_ms()

    def flush(self) -> None:
        """Fsync everything. Blocks on the disk, so do not call it on the loop thread."""
        if (plan := self.begin_flush()) is not None:
            plan.run()
            self.complete_flush(plan)

    def fail(self, error: OSError) -> None:
        """Refuse appends until the next start recovers the log: after a failed fsync, cached data may never reach the disk."""
        logger.error("%s refuses writes until the next start: %s", self.path, error)
        self.write_failure = error

    def close(self, *, is_clean: bool = True) -> None:
        """Close the log. If `is_clean`, first write the last index entries and a producer snapshot, and sync everything."""
        if is_clean and self.write_failure is None:
            self.active.on_inactive()
            self._take_snapshot()
            # The index files and the snapshot may be new, so sync the directory.
            self.unsynced.name_changes += 1
            plan = self.unsynced.plan(self._segments.since(self.recovery_point), self.log_end_offset)
            plan.run()
            self.complete_flush(plan)
            note_first_appends(self.env, self.path, self.segments, self.config)
        for segment in self.segments:
            segment.close()


def _out_of_range(log: Log, offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"Received request for offset {offset} for partition {log.topic}-{log.partition}, but we only have "
        f"log segments upto {log.log_end_offset} and the log start offset is {log.log_start_offset}.",
    )


def _cannot_delete(log: Log, before_offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"Cannot delete records of {log.topic}-{log.partition} before offset {before_offset}: "
        f"the log holds offsets {log.log_start_offset} to {log.high_watermark}",
    )
