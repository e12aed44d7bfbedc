"""The records of a magic 2 batch: iteration over them, and construction of batches.

The records follow the 61 bytes of the header (header.py), compressed as one blob if the batch has a codec. Each record is

    varint   length              bytes of the record after this field
    int8     attributes          0, ignored
    varlong  timestamp delta     ms, relative to the batch's base timestamp
    varint   offset delta        relative to the batch's base offset
    varint   key length          negative: null
    bytes    key
    varint   value length        negative: null
    bytes    value
    varint   header count        0 or more
             headers             varint key length (0 or more), UTF-8 key, varint value length (negative: null), value

Each record must fill its declared length exactly, and the records must fill the batch. Kafka does not check that header keys are
UTF-8, so invalid bytes in them are decoded to surrogate escapes, and can be written back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, TypeAlias

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import update_crc
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import (
    CODEC_MASK,
    CONTROL_FLAG,
    CURRENT_MAGIC,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Header,
    Record,
    add_to_sequence,
    parse_header,
)
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT, check_record_size
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.varint import MAX_VARINT_SIZE, MAX_VARLONG_SIZE, read_varint, write_varint

Buffer: TypeAlias = bytes | bytearray | memoryview


def iter_records(
    buffer: Buffer,
    position: int = 0,
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    max_record_bytes: int = NO_RECORD_LIMIT,
) -> Iterator[Record]:
    """Yield the records of the batch of any magic at `position`, decompressing it to at most `max_bytes`.

    Keys and values are copies. The CRC is not checked. Raises CorruptBatch unless the batch has exactly the declared number of
    well-formed records, OversizedRecord if a compressed batch has a record above `max_record_bytes`, and DecompressionBomb if it
    decompresses to more than `max_bytes`. Some records may have been yielded before the error.
    Source: `DefaultRecordBatch.iterator`, `DefaultRecord.readFrom`.
    """
    if position + MAGIC < len(buffer) and buffer[position + MAGIC] in (0, 1):
        from diamant.protocol.batches.legacy import iter_legacy_records

        return iter_legacy_records(buffer, position, max_bytes=max_bytes, max_record_bytes=max_record_bytes)
    header = parse_header(buffer, position)
    if header.record_count == 0:
        # A batch that compaction has emptied keeps the codec in its attributes, but has no payload.
        return iter(())
    payload = records_payload(buffer, position, header, max_bytes=max_bytes)
    return iter_payload(payload, header, max_record_bytes=max_record_bytes)


def records_payload(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    max_bytes: int = MAX_BATCH_BYTES,
    may_skip: bool = True,
) -> bytes:
    """Return the concatenated records of the magic 2 batch at `position`, decompressed to at most `max_bytes`.

    Raises CorruptBatch if the batch extends past the buffer or cannot be decompressed. `decompress` describes `may_skip`.
    """
    end = position + header.size
    if end > len(buffer):
        raise CorruptBatch(position, f"the batch has {header.size} bytes, only {len(buffer) - position} are left")
    with memoryview(buffer) as view:
        payload = view[position + HEADER_SIZE : end]
        codec = header.attributes & CODEC_MASK
        return (
            bytes(payload)
            if codec == compression.NONE
            else compression.decompress(codec, payload, max_bytes=max_bytes, may_skip=may_skip)
        )


def iter_payload(payload: bytes, header: BatchHeader, *, max_record_bytes: int = NO_RECORD_LIMIT) -> Iterator[Record]:
    """Yield the records of the decompressed payload of a magic 2 batch, like `iter_records`."""
    count = header.record_count
    if header.codec == compression.NONE:
        max_record_bytes = NO_RECORD_LIMIT
    if count < 0:
        raise CorruptBatch(0, f"record count is {count}")
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    base_sequence = header.base_sequence
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    new_record = tuple.__new__
    end = len(payload)
    position = 0
    # Every record takes at least one byte, so even with a hostile count the loop stops at the end of the payload.
    for index in range(count):
        start = position
        try:
            # Most lengths and deltas have one byte, which is read inline.
            length = payload[position]
            position += 1
            if length < 0x80:
                length = (length >> 1) ^ -(length & 1)
            else:
                length, position = _read_long_varint(payload, position - 1, MAX_VARINT_SIZE)
            record_end = position + length
            if length < 0 or record_end > end or length > max_record_bytes:
                check_record_size(length, max_record_bytes)
                _bad_record(start, index, f"its length is {length}, but {end - position} bytes are left")
            position += 1  # attributes
            delta = payload[position]
            position += 1
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, position = _read_long_varint(payload, position - 1, MAX_VARLONG_SIZE)
            if fixed_timestamp is None:
                timestamp = base_timestamp + delta
                if not -(1 << 63) <= timestamp < 1 << 63:
                    timestamp = ((timestamp + (1 << 63)) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)
            else:
                timestamp = fixed_timestamp
            delta = payload[position]
            position += 1
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, position = _read_long_varint(payload, position - 1, MAX_VARINT_SIZE)

            size = payload[position]
            position += 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, position = _read_long_varint(payload, position - 1, MAX_VARINT_SIZE)
            key: bytes | None = None
            if size >= 0:
                key = payload[position : position + size]
                position += size
            size = payload[position]
            position += 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, position = _read_long_varint(payload, position - 1, MAX_VARINT_SIZE)
            value: bytes | None = None
            if size >= 0:
                value = payload[position : position + size]
                position += size
            if payload[position] == 0:
                position += 1
                headers: tuple[Header, ...] = ()
            else:
                headers, position = _read_headers(payload, position, record_end, start, index)
        except IndexError:
            _bad_record(start, index, f"it is cut off after {end - start} bytes")
        if position != record_end:
            _bad_record(start, index, f"it declares {record_end - start} bytes, its fields take {position - start}")
        sequence = NO_SEQUENCE if base_sequence == NO_SEQUENCE else add_to_sequence(base_sequence, delta)
        # Twice as fast as Record(...), whose constructor is Python code.
        yield new_record(Record, (base_offset + delta, timestamp, key, value, headers, sequence))
    if position != end:
        raise CorruptBatch(position, f"{end - position} bytes are left after the {count} declared records")


def _bad_record(position: int, index: int, what: str) -> NoReturn:
    raise CorruptBatch(position, f"record {index} is invalid: {what}")


def _read_long_varint(payload: bytes, position: int, max_size: int) -> tuple[int, int]:
    """Read a ZigZag integer of two bytes or more. Raises IndexError if the payload ends within it."""
    start = position
    value = payload[position] & 0x7F
    shift = 7
    while True:
        position += 1
        byte = payload[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if position - start >= max_size - 1:
            raise CorruptBatch(start, f"variable-length integer has more than {max_size} bytes")
    value &= 0xFFFFFFFF if max_size == MAX_VARINT_SIZE else 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), position + 1


def _read_headers(
    payload: bytes, position: int, record_end: int, record_start: int, index: int
) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(payload, position)
    if not 0 <= count <= record_end - position:
        _bad_record(record_start, index, f"its header count is {count}, but {record_end - position} bytes are left")
    headers = []
    for _ in range(count):
        size, position = read_varint(payload, position)
        if not 0 <= size <= record_end - position:
            _bad_record(
                record_start, index, f"it has a header key of {size} bytes, but {record_end - position} are left"
            )
        key = payload[position : position + size].decode(errors="surrogateescape")
        position += size
        size, position = read_varint(payload, position)
        value: bytes | None = None
        if size >= 0:
            if size > record_end - position:
                _bad_record(
                    record_start, index, f"it has a header value of {size} bytes, but {record_end - position} are left"
                )
            value = payload[position : position + size]
            position += size
        headers.append(Header(key, value))
    return tuple(headers), position


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    codec: int = compression.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """Return a magic 2 batch of `records`, which must be in ascending order of offset.

    `base_offset` defaults to the first record's offset, or to 0 without records. `last_offset_delta` and `max_timestamp` are
    computed from the records by default; to rewrite a batch with fewer records, pass the values of the original batch.
    `log_append_time_ms` sets the timestamp type to LogAppendTime and the max timestamp to this time; `delete_horizon_ms` sets the
    delete horizon flag and the base timestamp. A batch without records has no payload but keeps `codec` in its attributes, as
    after compaction (`DefaultRecordBatch.writeEmptyHeader`). The records' sequences are ignored: `base_sequence` implies them.
    """
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    attributes = codec | TRANSACTIONAL_FLAG * is_transactional | CONTROL_FLAG * is_control
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon_ms
    else:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = log_append_time_ms
    elif max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0

    batch = bytearray(HEADER_SIZE)
    if codec == compression.NONE:
        _write_records(batch, records, base_offset, base_timestamp)
    elif records:
        payload = bytearray()
        _write_records(payload, records, base_offset, base_timestamp)
        batch += compression.compress(codec, payload, level)
    HEADER_STRUCT.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        CURRENT_MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    update_crc(batch, 0)
    return batch


def _write_records(out: bytearray, records: Sequence[Record], base_offset: int, base_timestamp: int) -> None:
    body = bytearray()
    for offset, timestamp, key, value, headers, _ in records:
        body.clear()
        body.append(0)  # attributes
        delta = timestamp - base_timestamp
        if not -(1 << 63) <= delta < 1 << 63:  # wrap around like Java's long
            delta = ((delta + (1 << 63)) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)
        write_varint(body, delta)
        write_varint(body, offset - base_offset)
        _write_bytes(body, key)
        _write_bytes(body, value)
        if headers:
            write_varint(body, len(headers))
            for header_key, header_value in headers:
                _write_bytes(body, header_key.encode(errors="surrogateescape"))
                _write_bytes(body, header_value)
        else:
            body.append(0)
        write_varint(out, len(body))
        out += body


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        write_varint(out, len(data))
        out += data
