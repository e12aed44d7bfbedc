"""The checks that a leader can run on a produced batch without log state: framing, size, CRC, records, compression.

So a thread can check an expensive batch (`HeavyBatch`), and the log's owner only appends it.

Source: Kafka's ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords and LogValidator, in this order.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.kernels import ARE_COMPILED
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import crc_is_valid, set_timestamps
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header
from diamant.protocol.batches.validation import (
    RecordChecks,
    Walk,
    best_walk,
    check_client_header,
    validate_client_batch,
)
from diamant.protocol.errors import CorruptBatch, DecompressionBomb, ErrorCode, KafkaError
from diamant.storage.segments.log_config import LogConfig

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""Largest decompressed size of a batch; a larger one is refused as a decompression bomb."""

LIGHT_DECOMPRESSED_BYTES = 1024 * 1024
LIGHT_COMPRESSED_BYTES = 128 * 1024
LIGHT_RECORDS = 10_000
LIGHT_RECOMPRESSED_RECORDS = 500
"""Limits up to which the event loop may check a batch itself, which takes a few milliseconds at most."""

ZSTD_MIN_PRODUCE_VERSION = 7


class HeavyBatch(Exception):
    """Checking this batch is expensive. Do it in a thread, with `is_light` set to False."""


class Validation:
    """Settings of record validation, shared by all logs.

    `is_header_only` skips the walk over records for topics that are not compacted (`diamant.produce.validation=header`).
    """

    __slots__ = ("is_header_only", "is_slow", "walk")

    def __init__(self, *, is_header_only: bool = False) -> None:
        self.is_header_only = is_header_only
        self.walk: Walk = best_walk()
        self.is_slow = not ARE_COMPILED
        """True if the walk over many records is slow."""


class CheckedBatch(NamedTuple):
    """A batch ready to be stored, and its header. Offsets, leader epoch and append time are assigned later."""

    batch: memoryview | bytearray
    header: BatchHeader


class BatchCheck(NamedTuple):
    """The settings against which a batch is checked. `partition` is the partition's name in error messages."""

    partition: str
    config: LogConfig
    validation: Validation
    now_ms: int
    leader_epoch: int

    def run(self, records: memoryview, *, produce_version: int, is_light: bool) -> CheckedBatch:
        """Check and return the single batch in `records`. Raises KafkaError with Kafka's code, also HeavyBatch if `is_light`."""
        config = self.config
        header = client_batch_header(records, produce_version)
        size = header.size
        if len(records) != size:
            records = records[:size]
        if size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The record batch size in the append to {self.partition} is {size} bytes "
                f"which exceeds the maximum configured value of {config.max_message_bytes}.",
            )
        codec = header.codec
        target_codec = config.target_codec(codec)
        if is_light and self._is_heavy(header.record_count, size, codec, target_codec):
            raise HeavyBatch
        if not crc_is_valid(records, 0, size):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record is corrupt (stored crc = {header.crc}) in {self.partition}: resend the batch",
            )
        if header.base_offset != 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"The baseOffset of the record batch in the append to {self.partition} should be 0, "
                f"but it is {header.base_offset}",
            )
        max_timestamp = self._check_records(records, header, is_light)
        if target_codec != codec:
            return self._recompressed(records, header, target_codec)
        # With LogAppendTime, the append sets the attributes and the timestamp.
        if not config.is_log_append_time and (header.is_log_append_time or header.max_timestamp != max_timestamp):
            set_timestamps(records, 0, is_log_append_time=False, max_timestamp=max_timestamp)
            header = header._replace(max_timestamp=max_timestamp)
        return CheckedBatch(records, header)

    def _is_heavy(self, count: int, size: int, codec: int, target_codec: int) -> bool:
        if target_codec != codec and count > LIGHT_RECOMPRESSED_RECORDS:
            return True
        if codec != compression.NONE and size > LIGHT_COMPRESSED_BYTES:
            return True
        return count > LIGHT_RECORDS and self.validation.is_slow

    def _check_records(self, records: memoryview, header: BatchHeader, is_light: bool) -> int:
        config = self.config
        validation = self.validation
        if validation.is_header_only and not config.is_compacted and not config.is_log_append_time:
            check_client_header(header)
            return header.max_timestamp
        checks = RecordChecks(
            config.is_compacted,
            self.now_ms,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.is_log_append_time,
        )
        max_bytes = LIGHT_DECOMPRESSED_BYTES if is_light else MAX_DECOMPRESSED_BYTES
        try:
            return validate_client_batch(
                records,
                0,
                header,
                checks,
                max_decompressed_bytes=max_bytes,
                max_record_bytes=config.max_decompressed_message_bytes,
                walk=validation.walk,
            ).max_timestamp
        except KafkaError as error:
            if is_light and isinstance(error.__cause__, DecompressionBomb):
                raise HeavyBatch from error
            raise

    def _recompressed(self, records: memoryview, header: BatchHeader, codec: int) -> CheckedBatch:
        batch = build_batch(
            list(iter_records(records, max_bytes=MAX_DECOMPRESSED_BYTES)),
            base_offset=header.base_offset,
            leader_epoch=self.leader_epoch,
            codec=codec,
            level=self.config.compression_level(codec),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )
        if len(batch) > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The batch for {self.partition} has {len(batch)} bytes after recompression, "
                f"which exceeds max.message.bytes={self.config.max_message_bytes}",
            )
        return CheckedBatch(batch, parse_header(batch))


def client_batch_header(records: memoryview, produce_version: int) -> BatchHeader:
    """Check the framing of a produce request's single batch and return its header (ProduceRequest.validateRecords)."""
    if len(records) <= 17:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} must have exactly one record batch per partition, got "
            f"{len(records)} bytes",
        )
    magic = records[16]
    if magic > 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic {magic} in a record batch, expected 2")
    length = int.from_bytes(records[8:12], "big", signed=True)
    if magic != 2 and length >= 14:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} are only allowed to contain record batches with magic "
            f"version 2, got {magic}",
        )
    if length < HEADER_SIZE - LOG_OVERHEAD:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record batch length {length} is less than the minimum of {HEADER_SIZE - LOG_OVERHEAD}",
        )
    remaining = len(records) - LOG_OVERHEAD - length
    if remaining < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The record batch announces {length + LOG_OVERHEAD} bytes but only {len(records)} were sent",
        )
    if remaining > 17:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} must have exactly one record batch per partition",
        )
    try:
        header = parse_header(records)
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    codec = header.codec
    if codec > compression.ZSTD or (codec == compression.ZSTD and produce_version < ZSTD_MIN_PRODUCE_VERSION):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {produce_version} do not allow compression type {codec}",
        )
    return header
