"""The limit on the size of a compressed batch's records (`max.decompressed.message.bytes`).

The length that a record declares is compared with the limit before the record is read. In magic 2, it counts the bytes that
follow it; in the old formats, the bytes after offset and size. The limit applies only to compressed batches, since other records
are no larger than what the client sent.

Source: DefaultRecord.readFrom, AbstractLegacyRecordBatch.DataLogInputStream of Kafka 4.4.
"""

from __future__ import annotations

from diamant.protocol.errors import CorruptBatch, OversizedRecord
from diamant.protocol.varint import MAX_VARINT_SIZE, read_varint

NO_RECORD_LIMIT = 2**31 - 9
"""Kafka's default: the maximum length of an array in a JVM. No batch that we read is that large."""

_LEAST_CAPACITY = 64 * 1024
"""Minimum of `most_record_bytes`, so that small batches are decompressed and errors can state the size of an oversized record."""


def most_record_bytes(record_count: int, max_record_bytes: int) -> int:
    """Return an upper limit for the decompressed size of a batch; a larger batch has an oversized record or leftover bytes."""
    return max(_LEAST_CAPACITY, record_count * (max_record_bytes + MAX_VARINT_SIZE))


def check_record_sizes(payload: bytes | memoryview, record_count: int, max_record_bytes: int) -> None:
    """Raise OversizedRecord for the first oversized record of a payload, unless a malformed one precedes it."""
    if len(payload) <= max_record_bytes:
        return
    position = 0
    for _ in range(record_count):
        try:
            size, position = read_varint(payload, position)
        except CorruptBatch:
            return
        check_record_size(size, max_record_bytes)
        position += size
        if size < 0 or position > len(payload):
            return


def check_record_size(size: int, max_record_bytes: int) -> None:
    """Raise OversizedRecord if a record's size exceeds the limit."""
    if size > max_record_bytes:
        raise OversizedRecord(
            0, f"Invalid record size: {size} exceeds the configured maximum record size of {max_record_bytes}."
        )
