"""Appends to a log. Each append updates the active segment, the producer state and the leader epochs, or none of them.

Source: UnifiedLog.append, analyzeAndValidateProducerState.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, NoReturn, Protocol

from diamant.protocol.batches.batch import set_base_offset
from diamant.protocol.batches.header import NO_PRODUCER_ID, BatchHeader, parse_header
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.clocks import bounds_now_ms
from diamant.storage.env.env import Env
from diamant.storage.log.append_checks import BatchCheck, Validation
from diamant.storage.log.control_append import append_control
from diamant.storage.producers.producer import DuplicateBatch
from diamant.storage.producers.producer_state import ProducerStateManager, Update
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

_TRUSTED_FIELDS = Struct(">23xi8xqq")
"""Header fields of a batch: last offset delta, max timestamp, producer id."""


class AppendResult(NamedTuple):
    """Position of a batch in the log; `log_append_time_ms` is -1 unless the topic uses LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class AppendedLog(Protocol):
    """The part of a log that its appender uses."""

    env: Env
    path: str
    topic: str
    partition: int
    config: LogConfig
    validation: Validation
    producers: ProducerStateManager
    epochs: LeaderEpochs
    leader_epoch: int
    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    write_failure: OSError | None
    is_deleted: bool

    def roll(self) -> Segment:
        """Start a new active segment, and return it."""

    def fail(self, error: OSError) -> None:
        """Refuse appends from now on."""

    def appended(self) -> None:
        """Notify the listeners that the log has grown."""


class Appender:
    """Appends to one log. Only the thread that owns the log may call the methods, except `batch_check`."""

    __slots__ = ("_log",)

    def __init__(self, log: AppendedLog) -> None:
        self._log = log

    def batch_check(self) -> BatchCheck:
        """Return the checks for a client's batch, with the current settings."""
        log = self._log
        return BatchCheck(
            f"{log.topic}-{log.partition}",
            log.config,
            log.validation,
            bounds_now_ms(log.env.clock),
            log.leader_epoch,
        )

    def append_trusted(self, batch: bytearray) -> AppendResult:
        """Append a batch that this broker built; return its position. A batch with no producer id skips the producer checks."""
        log = self._log
        last_offset_delta, max_timestamp, producer_id = _TRUSTED_FIELDS.unpack_from(batch)
        now_ms = log.env.clock.now_ms()
        if producer_id != NO_PRODUCER_ID:
            return self.append(batch, parse_header(batch), now_ms, -1, is_client=False)
        base_offset = log.log_end_offset
        last_offset = base_offset + last_offset_delta
        if log.write_failure is not None or log.is_deleted or len(batch) > log.config.segment_bytes:
            self._refuse(len(batch))
        try:
            segment = self._segment_for(len(batch), last_offset, max_timestamp, now_ms)
            set_base_offset(batch, 0, base_offset, log.leader_epoch)
            segment.append(batch, last_offset, max_timestamp, now_ms, log.config.index_interval_bytes)
        except OSError as error:
            self._cut_half_written()
            raise self._storage_error(error) from error
        log.log_end_offset = last_offset + 1
        log.appended()
        return AppendResult(base_offset, last_offset, -1, log.log_start_offset, False)

    def append(
        self,
        batch: memoryview | bytearray,
        header: BatchHeader,
        now_ms: int,
        log_append_time_ms: int,
        *,
        is_client: bool,
    ) -> AppendResult:
        """Assign offsets and epoch to a checked or trusted batch, append it and return its position. Raises KafkaError."""
        log = self._log
        producers = log.producers
        has_producer = header.producer_id != NO_PRODUCER_ID
        base_offset = log.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        if log.write_failure is not None or log.is_deleted or len(batch) > log.config.segment_bytes:
            self._refuse(len(batch))
        update: Update | None = None
        if has_producer and not header.is_control:
            # Check before rolling, which fails on a full disk: if a resent batch is already in the log, its producer would then
            # consider it lost. librdkafka would send it in a new epoch, in which it is not recognized as a duplicate.
            checked = producers.check(header, is_client=is_client)
            if isinstance(checked, DuplicateBatch):
                time_ms = checked.timestamp if log.config.is_log_append_time else -1
                return AppendResult(checked.base_offset, checked.last_offset, time_ms, log.log_start_offset, True)
            update = checked
        interval = log.config.index_interval_bytes
        try:
            segment = self._segment_for(len(batch), last_offset, header.max_timestamp, now_ms)
            set_base_offset(batch, 0, base_offset, log.leader_epoch)
            if has_producer and header.is_control:
                placed = header._replace(base_offset=base_offset)
                append_control(segment, producers, batch, placed, now_ms, interval, log.fail)
            else:
                segment.append(batch, last_offset, header.max_timestamp, now_ms, interval)
        except OSError as error:
            self._cut_half_written()
            if update is not None and is_client:
                producers.refuse(header, now_ms)
            raise self._storage_error(error) from error
        log.log_end_offset = last_offset + 1
        if update is not None:
            producers.apply(update, base_offset)
        log.appended()
        return AppendResult(base_offset, last_offset, log_append_time_ms, log.log_start_offset, False)

    def _refuse(self, size: int) -> NoReturn:
        """Raise the KafkaError for a log that accepts no writes, or for a batch of `size` bytes that is too large."""
        log = self._log
        if log.write_failure is not None or log.is_deleted:
            raise self._storage_error(log.write_failure) from log.write_failure
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {size} bytes in append to partition {log.topic}-{log.partition}, "
            f"which exceeds the maximum configured segment size of {log.config.segment_bytes}.",
        )

    def _segment_for(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """Return the segment for an append of `size` bytes up to `last_offset`; roll and record the epoch if necessary.

        If this raises OSError, the caller must clean up.
        """
        log = self._log
        config = log.config
        segment = log.segments[-1]
        if segment.should_roll(size, last_offset, max_timestamp, config, now_ms):
            segment = log.roll()
        if log.leader_epoch != log.epochs.latest_epoch:
            log.epochs.assign(log.leader_epoch, log.log_end_offset)
        return segment

    def _cut_half_written(self) -> None:
        """Cut off bytes that a failed write left beyond the log's end, since the next start might take them for a batch."""
        log = self._log
        try:
            log.segments[-1].file.truncate(log.segments[-1].size)
        except OSError as error:
            log.fail(error)

    def _storage_error(self, cause: OSError | None) -> KafkaError:
        log = self._log
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Cannot write to {log.path}: {cause if cause is not None else 'the partition is deleted'}",
        )
