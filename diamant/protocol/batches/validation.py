"""The checks that a leader makes on a client's batch before it assigns offsets (Kafka's `LogValidator`).

The header is checked first. Then `walk_records` checks every record, skipping keys, values and headers without decoding them.
The walk returns only scalars, so that a compiled version can replace it (`best_walk`). There are three kinds of results:

* a *fault*: the bytes are not the declared records. The batch is refused with INVALID_RECORD.
* *suspects*: some record may break a rule for single records (a null key in a compacted topic, a timestamp out of range). A
  second, slow walk looks for invalid records; if it finds any, the batch is refused with a list of them.
* neither: the result has the largest timestamp and its offset, which the append needs.

We deliberately treat three kinds of batches differently from Kafka; no known client sends one. Offset deltas must be 0, 1, 2 ...;
with other deltas, Kafka rebuilds a compressed batch and stores an uncompressed one unchanged. A timestamp beyond 64 bits is a
fault; in Java it wraps around. If a CreateTime topic receives a batch with LogAppendTime, Kafka checks the batch's max timestamp
and then clears the bit, so that the records' own timestamps become effective; we check the records' own timestamps instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.walk import (
    BAD_HEADER,
    BAD_HEADER_COUNT,
    BAD_LENGTH,
    BAD_OFFSET_DELTA,
    BAD_VARINT,
    CUT_OFF,
    LEFTOVER_BYTES,
    LENGTH_MISMATCH,
    NO_FAULT,
    TIMESTAMP_OVERFLOW,
)
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import records_payload
from diamant.protocol.batches.header import HEADER_SIZE, NO_TIMESTAMP, BatchHeader
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT, check_record_sizes, most_record_bytes
from diamant.protocol.errors import CorruptBatch, DecompressionBomb, ErrorCode, KafkaError, OversizedRecord
from diamant.protocol.varint import read_varint, read_varlong

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_RECORD_ERRORS = 10_000
"""Maximum number of records listed in one refusal, to bound the response. Kafka lists all."""

NO_KEY = "a record of a compacted topic must have a key"
"""Message for a record without a required key."""

# Descriptions of the faults of a walk (`kernels.constants.walk`); "it" is the record.
FAULTS = (
    "",
    "the payload ends within it",
    "it has a variable-length integer that is too long",
    "its length is negative or exceeds the remaining bytes",
    "the size of its fields differs from its declared length",
    "its header count is negative or exceeds the remaining bytes",
    "it has a header whose key or value does not fit",
    "its offset delta is not its index in the batch",
    "its timestamp does not fit 64 bits",
    "bytes remain after the declared records",
)

_new = tuple.__new__  # builds a named tuple faster than its class does

_INT64_MAX = 2**63 - 1
# With a larger base timestamp, the sum with a small delta, which the walk does not check, could exceed 64 bits.
_GREATEST_BASE_TIMESTAMP = 2**62


class RecordChecks(NamedTuple):
    """The topic's rules for single records. Times are in ms."""

    must_have_key: bool
    """True if the topic is compacted."""
    now_ms: int
    before_max_ms: int
    """message.timestamp.before.max.ms"""
    after_max_ms: int
    """message.timestamp.after.max.ms"""
    is_log_append_time_topic: bool


class WalkResult(NamedTuple):
    """The facts about a batch's records that an append needs."""

    max_timestamp: int
    """Largest timestamp in ms; -1 if no record has one."""
    offset_of_max: int
    """Offset delta of the first record with that timestamp; -1 if no record has one."""


class WalkOutcome(NamedTuple):
    """The result of a walk; all fields are scalars. After a fault, only the three fields of the fault are valid."""

    fault: int
    """NO_FAULT, or the number of the fault that ended the walk."""
    fault_position: int
    """Position of the faulty record in the payload."""
    fault_index: int
    """Index of the faulty record; the record count for LEFTOVER_BYTES."""
    max_timestamp: int
    offset_of_max: int
    has_null_key: bool
    """True if a record has no key."""
    min_timestamp: int
    """Smallest timestamp (-1 for a record without one); 2**63-1 if there are no records. With `max_timestamp` it shows whether
    any record can be out of range."""


Walk: TypeAlias = Callable[[bytes | memoryview, int, int], WalkOutcome]
"""Takes the payload, the record count and the base timestamp."""


def check_client_header(header: BatchHeader) -> None:
    """Check the header of a client's batch. Raises KafkaError INVALID_RECORD or UNSUPPORTED_COMPRESSION_TYPE.

    Does not check the CRC, the size, or that the base offset is 0. Source: `LogValidator.validateBatch`.
    """
    count = header.record_count
    if header.last_offset_delta < 0 or count <= 0 or header.last_offset_delta + 1 != count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch has record count {count} and last offset delta {header.last_offset_delta}; "
            "expected at least one record, and a delta one less than the count",
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch of producer {header.producer_id} has base sequence {header.base_sequence}, expected 0 or more",
        )
    if header.codec > compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec is {header.codec}, expected 0 to {compression.ZSTD}",
        )


def walk_records(payload: bytes | memoryview, record_count: int, base_timestamp: int) -> WalkOutcome:
    """Check that `record_count` records fill `payload` exactly, and collect the facts needed to apply the rules.

    Raises no errors, whatever the bytes. Allocates nothing per record, and takes about 1 us per record.
    """
    # Indexing bytes is a third faster than indexing a memoryview, which outweighs the copy.
    payload = bytes(payload)
    end = len(payload)
    position = start = 0
    index = 0
    max_timestamp = NO_TIMESTAMP
    offset_of_max = -1
    min_timestamp = _INT64_MAX
    has_null_key = False
    fault = NO_FAULT
    if not -_GREATEST_BASE_TIMESTAMP <= base_timestamp <= _GREATEST_BASE_TIMESTAMP:
        return WalkOutcome(TIMESTAMP_OVERFLOW, 0, 0, NO_TIMESTAMP, -1, False, min_timestamp)
    try:
        # Every record takes at least one byte, so even with a hostile count the loop stops at the end of the payload.
        for index in range(record_count):
            start = position

            length = payload[position]
            if length < 0x80:
                position += 1
            else:
                byte = payload[position + 1]
                if byte < 0x80:
                    length = length & 0x7F | byte << 7
                    position += 2
                else:
                    length, position = _read_raw(payload, position, 5)
            record_end = position + (length >> 1)
            if length & 1 or record_end > end:
                fault = BAD_LENGTH
                break

            position += 1  # attributes
            delta = payload[position]
            if delta < 0x80:
                position += 1
                timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))
            else:
                byte = payload[position + 1]
                if byte < 0x80:
                    delta = delta & 0x7F | byte << 7
                    position += 2
                    timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))
                else:
                    delta, position = _read_raw(payload, position, 10)
                    timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))
                    if not -_INT64_MAX - 1 <= timestamp <= _INT64_MAX:
                        fault = TIMESTAMP_OVERFLOW
                        break
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                offset_of_max = index
            if timestamp < min_timestamp:
                min_timestamp = timestamp

            delta = payload[position]
            if delta < 0x80:
                position += 1
            else:
                byte = payload[position + 1]
                if byte < 0x80:
                    delta = delta & 0x7F | byte << 7
                    position += 2
                else:
                    delta, position = _read_raw(payload, position, 5)
            if delta != index << 1:
                fault = BAD_OFFSET_DELTA
                break

            size = payload[position]
            if size < 0x80:
                position += 1
            else:
                byte = payload[position + 1]
                if byte < 0x80:
                    size = size & 0x7F | byte << 7
                    position += 2
                else:
                    size, position = _read_raw(payload, position, 5)
            if size & 1:
                has_null_key = True
            else:
                position += size >> 1

            size = payload[position]
            if size < 0x80:
                position += 1
            else:
                byte = payload[position + 1]
                if byte < 0x80:
                    size = size & 0x7F | byte << 7
                    position += 2
                else:
                    size, position = _read_raw(payload, position, 5)
            if not size & 1:
                position += size >> 1

            if payload[position] == 0:
                position += 1
            else:
                fault, position = _skip_headers(payload, position, record_end)
                if fault:
                    break
            if position != record_end:
                fault = LENGTH_MISMATCH
                break
    except IndexError:
        fault = CUT_OFF
    except _LongVarintError:
        fault = BAD_VARINT
    if not fault and position != end:
        fault = LEFTOVER_BYTES
        start = position
        index = record_count
    return WalkOutcome(fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp)


def compiled_walk(payload: bytes | memoryview, record_count: int, base_timestamp: int) -> WalkOutcome:
    """Like `walk_records`, but in a compiled kernel that takes about 7 ns per record."""
    from diamant.kernels.record_walk import walk

    if not -_GREATEST_BASE_TIMESTAMP <= base_timestamp <= _GREATEST_BASE_TIMESTAMP:
        return WalkOutcome(TIMESTAMP_OVERFLOW, 0, 0, NO_TIMESTAMP, -1, False, _INT64_MAX)
    return _new(WalkOutcome, walk(payload, record_count, base_timestamp))


def best_walk() -> Walk:
    """Return the compiled walk, or the plain one if the kernels are not compiled."""
    return compiled_walk if ARE_COMPILED else walk_records


def validate_client_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    checks: RecordChecks,
    *,
    max_decompressed_bytes: int,
    max_record_bytes: int = NO_RECORD_LIMIT,
    walk: Walk = walk_records,
) -> WalkResult:
    """Check a client's magic 2 batch at `position` as a partition's leader does, and return the facts about its records.

    The caller must have checked that the batch is complete, is not larger than max.message.bytes, has the correct CRC, and has
    base offset 0. Raises KafkaError, with a list of the invalid records if single records break a rule:

    * INVALID_RECORD: the header is inconsistent, the bytes are not the declared records, a required key is missing, or a record
      of a compressed batch has more than `max_record_bytes`.
    * UNKNOWN_SERVER_ERROR: the bytes cannot be decompressed.
    * INVALID_TIMESTAMP: a record's timestamp is out of range; or the batch claims LogAppendTime, and the topic uses LogAppendTime
      or a record has no timestamp of its own.
    * MESSAGE_TOO_LARGE: the records decompress to more than `max_decompressed_bytes`. The client then splits the batch.
    * UNSUPPORTED_COMPRESSION_TYPE: the codec does not exist.
    """
    check_client_header(header)
    payload: bytes | memoryview
    try:
        end = position + header.size
        if header.codec == compression.NONE and end <= len(buffer):
            # Not copied, because a walk that needs bytes makes its own copy.
            payload = memoryview(buffer)[position + HEADER_SIZE : end]
        else:
            most_bytes = most_record_bytes(header.record_count, max_record_bytes)
            payload = records_payload(buffer, position, header, max_bytes=min(most_bytes, max_decompressed_bytes))
            check_record_sizes(payload, header.record_count, max_record_bytes)
    except DecompressionBomb as error:
        if most_bytes < max_decompressed_bytes:
            detail = f"{error.reason}, too many for record count {header.record_count} and maximum record size {max_record_bytes}"
            raise KafkaError(ErrorCode.INVALID_RECORD, detail) from None
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch is refused: {error}") from error
    except OversizedRecord as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch cannot be decompressed: {error}") from error
    outcome = walk(payload, header.record_count, header.base_timestamp)
    if outcome.fault != NO_FAULT:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"record {outcome.fault_index} of {header.record_count}, at byte {outcome.fault_position} "
            f"of {len(payload)}: {FAULTS[outcome.fault]}",
        )
    earliest_ms, latest_ms = _timestamp_range(checks)
    # A record without a timestamp (-1) may be a suspect here; the slow walk accepts it.
    is_suspect = (checks.must_have_key and outcome.has_null_key) or (
        header.is_log_append_time
        if checks.is_log_append_time_topic
        else outcome.min_timestamp < earliest_ms
        or outcome.max_timestamp > latest_ms
        or (header.is_log_append_time and outcome.min_timestamp <= NO_TIMESTAMP)
    )
    if is_suspect:
        _refuse_bad_records(payload, header, checks)
    return WalkResult(outcome.max_timestamp, outcome.offset_of_max)


def _timestamp_range(checks: RecordChecks) -> tuple[int, int]:
    return checks.now_ms - checks.before_max_ms, checks.now_ms + checks.after_max_ms


def _refuse_bad_records(payload: bytes | memoryview, header: BatchHeader, checks: RecordChecks) -> None:
    """Raise KafkaError with a list of the records that break a rule, if there are any (`LogValidator.validateRecord`)."""
    errors: list[tuple[int, str | None]] = []
    bad_count = 0
    has_timestamp_error = False
    earliest_ms, latest_ms = _timestamp_range(checks)
    position = 0
    for index in range(header.record_count):
        length, position = read_varint(payload, position)
        record_end = position + length
        delta, position = read_varlong(payload, position + 1)
        _, position = read_varint(payload, position)
        key_size, _ = read_varint(payload, position)
        position = record_end
        timestamp = header.base_timestamp + delta
        message: str | None = None
        if checks.must_have_key and key_size < 0:
            message = NO_KEY
        elif not checks.is_log_append_time_topic and timestamp != NO_TIMESTAMP:
            if not earliest_ms <= timestamp <= latest_ms:
                message = f"timestamp {timestamp} is out of range [{earliest_ms}, {latest_ms}]"
                has_timestamp_error = True
        elif header.is_log_append_time:
            message = "a client may not set the timestamp type LogAppendTime"
            has_timestamp_error = True
        if message is not None:
            bad_count += 1
            if len(errors) < MAX_RECORD_ERRORS:
                errors.append((index, message))
    if errors:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP if has_timestamp_error else ErrorCode.INVALID_RECORD,
            f"{bad_count} of {header.record_count} records are refused; the first is record {errors[0][0]}: {errors[0][1]}",
            errors,
        )


class _LongVarintError(Exception):
    """A variable-length integer is too long for its width."""


def _read_raw(payload: bytes, position: int, max_size: int) -> tuple[int, int]:
    """Return (ZigZag form, position after it) of an integer of at most `max_size` (5 or 10) bytes.

    Raises IndexError if the payload ends within it.
    """
    value = 0
    for shift in range(0, max_size * 7, 7):
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (0xFFFFFFFF if max_size == 5 else 0xFFFFFFFFFFFFFFFF), position
    raise _LongVarintError


def _skip_headers(payload: bytes, position: int, record_end: int) -> tuple[int, int]:
    """Skip the headers, whose count is at `position`; return (fault, position after the headers)."""
    count, position = _read_raw(payload, position, 5)
    if count & 1 or count >> 1 > record_end - position:
        return BAD_HEADER_COUNT, position
    for _ in range(count >> 1):
        size, position = _read_raw(payload, position, 5)
        if size & 1 or size >> 1 > record_end - position:
            return BAD_HEADER, position
        size, position = _read_raw(payload, position + (size >> 1), 5)
        if not size & 1:
            if size >> 1 > record_end - position:
                return BAD_HEADER, position
            position += size >> 1
    return NO_FAULT, position
