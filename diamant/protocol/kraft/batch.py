"""Record batches of the metadata log: always magic 2, uncompressed, without keys, producer or headers.

A batch has the header of batches/header.py, and holds records of records.py; a control batch (attribute 0x20) holds records of
control_records.py. Both timestamps are the time of the append, and all timestamp deltas are 0. Each record is:

    varint   size of the rest
    int8     attributes     0
    varlong  time delta     0
    varint   offset delta   0, 1, 2 ...
    varint   key size       -1; a control record has a key of 4 bytes
    varint   value size     and the value
    varint   header count   0

A batch is an atomic change: its records become visible together or, if the batch is torn, not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from diamant.protocol.batches.header import CONTROL_FLAG, CURRENT_MAGIC, HEADER_SIZE, HEADER_STRUCT, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.kraft.control_records import ControlRecord, encode_control_record
from diamant.protocol.varint import read_varint, read_varlong, varint_size, write_varint

_CRC_START = 21
_LOG_OVERHEAD = 12
_NO_KEY = 1
"""-1 as a varint."""


def encode_metadata_batch(values: Sequence[bytes], *, base_offset: int, leader_epoch: int, timestamp_ms: int) -> bytes:
    """Return a batch of at least one record; `values` come from `encode_record`."""
    return _encode_batch([(None, value) for value in values], base_offset, leader_epoch, timestamp_ms, 0)


def encode_control_batch(
    records: Sequence[ControlRecord], *, base_offset: int, leader_epoch: int, timestamp_ms: int
) -> bytes:
    """Return a control batch of at least one record."""
    pairs = [encode_control_record(record) for record in records]
    return _encode_batch(pairs, base_offset, leader_epoch, timestamp_ms, CONTROL_FLAG)


def _encode_batch(
    pairs: Sequence[tuple[bytes | None, bytes]], base_offset: int, leader_epoch: int, timestamp_ms: int, attributes: int
) -> bytes:
    if not pairs:
        raise ValueError("a metadata batch holds at least one record, got none")
    out = bytearray(HEADER_SIZE)
    for delta, (key, value) in enumerate(pairs):
        size = len(value)
        # One byte each: attributes, time delta, key size (or -1), header count.
        body_size = 4 + (0 if key is None else len(key)) + varint_size(delta) + varint_size(size) + size
        write_varint(out, body_size)
        out += b"\0\0"
        write_varint(out, delta)
        if key is None:
            out.append(_NO_KEY)
        else:
            write_varint(out, len(key))
            out += key
        write_varint(out, size)
        out += value
        out.append(0)
    count = len(pairs)
    length = len(out) - _LOG_OVERHEAD
    times = (timestamp_ms, timestamp_ms)
    no_producer = (-1, -1, -1)
    HEADER_STRUCT.pack_into(
        out, 0, base_offset, length, leader_epoch, CURRENT_MAGIC, 0, attributes, count - 1, *times, *no_producer, count
    )
    with memoryview(out) as view:
        checksum = crc32c(view[_CRC_START:])
    out[17:21] = checksum.to_bytes(4, "big")
    return bytes(out)


def decode_batch(buffer: bytes, position: int, header: BatchHeader) -> list[tuple[bytes | None, bytes]]:
    """Return `(key, value)` of each record in the batch at `position`; `buffer` must contain the whole batch.

    Raises CorruptBatch if the batch is compressed or malformed, if a record has no value, or if offsets are missing.
    """
    if header.codec:
        raise CorruptBatch(position, f"metadata batch is compressed with codec {header.codec}, expected none")
    at = position + HEADER_SIZE
    end = position + header.size
    if header.last_offset_delta != header.record_count - 1:
        raise CorruptBatch(
            position,
            f"{header.record_count} records with last offset delta {header.last_offset_delta}, expected consecutive offsets",
        )
    try:
        pairs, at = _read_records(buffer, at, end, header.record_count)
    except IndexError:
        raise CorruptBatch(position, f"a record reaches beyond the batch of {header.size} bytes") from None
    if at != end:
        raise CorruptBatch(at, f"{end - at} bytes left over after {header.record_count} records")
    return pairs


def _read_records(buffer: bytes, at: int, end: int, count: int) -> tuple[list[tuple[bytes | None, bytes]], int]:
    """Return the (key, value) pairs of the `count` records that start at `at`, and the position after the last record."""
    pairs: list[tuple[bytes | None, bytes]] = []
    for delta in range(count):
        start = at
        # A replay spends most of its time here. Most numbers have one byte, which is read inline.
        byte = buffer[at]
        if byte < 0x80 and not byte & 1:
            size = byte >> 1
            at += 1
        else:
            size, at = read_varint(buffer, at)
        record_end = at + size
        if size < 6 or record_end > end:
            raise CorruptBatch(start, f"record {delta} declares {size} bytes; {end - at} are left in the batch")
        if buffer[at + 1]:
            _, at = read_varlong(buffer, at + 1)
        else:
            at += 2
        if delta < 0x40 and buffer[at] == delta << 1:
            at += 1
        else:
            offset_delta, at = read_varint(buffer, at)
            if offset_delta != delta:
                raise CorruptBatch(start, f"offset delta is {offset_delta}, expected {delta}")
        key = None
        if buffer[at] == _NO_KEY:
            at += 1
        else:
            key_size, at = read_varint(buffer, at)
            if key_size < 0:
                raise CorruptBatch(start, f"record {delta} has a key of {key_size} bytes")
            key = buffer[at : at + key_size]
            at += key_size
        byte = buffer[at]
        if byte < 0x80 and not byte & 1:
            value_size = byte >> 1
            at += 1
        else:
            value_size, at = read_varint(buffer, at)
        value_end = at + value_size
        if value_size < 0 or value_end + 1 != record_end or buffer[value_end] != 0:
            raise CorruptBatch(
                start, f"record {delta}: a value of {value_size} bytes without headers does not fill its {size} bytes"
            )
        pairs.append((key, buffer[at:value_end]))
        at = record_end
    return pairs, at
