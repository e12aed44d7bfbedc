"""Batches that must not be stored, on the wire: each gets its error as a protocol answer, without side effects.

What is wrong with records is tested in tests/protocol/batches/test_validation.py, with every codec; here each error has a row.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Record
from diamant.protocol.errors import ErrorCode
from diamant.storage.log.append_checks import MAX_DECOMPRESSED_BYTES
from tests.broker.wire import FETCH, METADATA, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields

TIMESTAMP = 1_700_000_000_000
LENGTH, MAGIC, CRC, ATTRIBUTES, RECORD_COUNT = 8, 16, 17, 21, 57
FLAWLESS = batch_of([b"a", b"b", b"c"])


def with_valid_crc(batch: bytes | bytearray) -> bytes:
    """Return the batch with a valid CRC."""
    return bytes(batch[:CRC]) + struct.pack(">I", crc32c(bytes(batch[ATTRIBUTES:]))) + bytes(batch[ATTRIBUTES:])


def altered(position: int, value: bytes, *, crc: bool = True, batch: bytes = FLAWLESS) -> bytes:
    """Return the valid batch with `value` at `position`, under a valid CRC or the old one."""
    changed = batch[:position] + value + batch[position + len(value) :]
    return with_valid_crc(changed) if crc else changed


def with_payload(payload: bytes, codec: int) -> bytes:
    """Return a batch whose header declares three records in `codec`, over any payload."""
    batch = bytearray(FLAWLESS[:HEADER_SIZE]) + payload
    struct.pack_into(">i", batch, LENGTH, len(batch) - 12)
    struct.pack_into(">h", batch, ATTRIBUTES, codec)
    return with_valid_crc(batch)


def of(number: int) -> bytes:
    """Encode an int32."""
    return struct.pack(">i", number)


PAYLOAD = FLAWLESS[HEADER_SIZE:]
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
LARGE, NO_CODEC = ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

BAD_BATCHES = {
    "crc-wrong": (altered(CRC, b"\x00\x00\x00\x00", crc=False), CORRUPT),
    "attributes-changed-under-way": (altered(ATTRIBUTES + 1, b"\x08", crc=False), CORRUPT),
    "last-byte-changed-under-way": (altered(len(FLAWLESS) - 1, b"!", crc=False), CORRUPT),
    "length-least": (altered(LENGTH, of(-(2**31))), CORRUPT),
    "length-negative": (altered(LENGTH, of(-1)), CORRUPT),
    "length-zero": (altered(LENGTH, of(0)), CORRUPT),
    "length-less-than-a-header": (altered(LENGTH, of(48)), CORRUPT),
    "length-of-a-header": (altered(LENGTH, of(49)), INVALID),
    "length-one-less": (altered(LENGTH, of(len(FLAWLESS) - 13)), CORRUPT),
    "length-one-more": (altered(LENGTH, of(len(FLAWLESS) - 11)), INVALID),
    "length-greatest": (altered(LENGTH, of(2**31 - 1)), INVALID),
    "magic-0": (altered(MAGIC, b"\x00"), INVALID),
    "magic-1": (altered(MAGIC, b"\x01"), INVALID),
    "magic-3": (altered(MAGIC, b"\x03"), CORRUPT),
    "magic-negative": (altered(MAGIC, b"\xff"), CORRUPT),
    "base-offset-not-zero": (altered(0, struct.pack(">q", 5)), INVALID),
    "count-one-more": (altered(RECORD_COUNT, of(4)), INVALID),
    "cut-within-a-header": (FLAWLESS[:40], INVALID),
    "cut-within-records": (FLAWLESS[:-3], INVALID),
    "garbage": (b"\xa5" * 200, CORRUPT),
    "over-max-message-bytes": (batch_of([bytes(1_100_000)]), LARGE),
    "unknown-codec": (altered(ATTRIBUTES, b"\x00\x05"), NO_CODEC),
    "not-compressed": (with_payload(PAYLOAD, compression.ZSTD), ErrorCode.UNKNOWN_SERVER_ERROR),
}


async def high_watermark(client: WireClient, topic: str = "t") -> int:
    """Return the number of records in the topic."""
    response = await client.call(FETCH, 12, fetch_fields(topic, 0))
    return int(response.responses[0].partitions[0].high_watermark)


async def send(client: WireClient, records: bytes, *, topic: str = "t", acks: int = -1) -> Any:
    """Produce these bytes; return the partition's result."""
    response = await client.call(PRODUCE, 12, produce_fields(topic, 0, records, acks=acks))
    return response.responses[0].partition_responses[0]


async def check_nothing_stored(client: WireClient, data_dir: Path, topic: str = "t") -> None:
    """Check that no offset or byte is used, and that a valid batch on the same connection gets offset 0."""
    assert await high_watermark(client, topic) == 0
    assert (data_dir / f"{topic}-0" / "00000000000000000000.log").stat().st_size == 0
    records = build_batch([Record(0, TIMESTAMP, b"key", b"value")], base_offset=0)
    result = await send(client, bytes(records), topic=topic)
    assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize(("records", "expected"), [pytest.param(*bad, id=name) for name, bad in BAD_BATCHES.items()])
async def test_a_bad_batch_is_refused(wire: WireClient, tmp_path: Path, records: bytes, expected: ErrorCode) -> None:
    """A bad batch gets its error code with a reason and offset -1; the connection stays; nothing is stored."""
    await wire.create("t")
    result = await send(wire, records)
    assert (result.error_code, result.base_offset) == (expected, -1)
    assert result.error_message
    assert list(result.record_errors) == []
    await check_nothing_stored(wire, tmp_path)


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 12])
async def test_a_corrupt_batch_in_every_shape_of_answer(wire: WireClient, tmp_path: Path, version: int) -> None:
    """Versions before 8 have no field for a reason, but the code is the same."""
    await wire.create("t")
    fields = produce_fields("t", 0, BAD_BATCHES["crc-wrong"][0])
    result = (await wire.call(PRODUCE, version, fields)).responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    await check_nothing_stored(wire, tmp_path)


async def test_a_decompression_bomb_is_refused(wire: WireClient, tmp_path: Path) -> None:
    """Small on the wire, above the bound when decompressed: MESSAGE_TOO_LARGE, so that a regular client would split it."""
    await wire.create("t", max_message_bytes=str(16 * 1024 * 1024), compression_type="producer")
    payload = bytes(compression.compress(compression.ZSTD, bytes(MAX_DECOMPRESSED_BYTES + 1)))
    result = await send(wire, with_payload(payload, compression.ZSTD))
    assert (result.error_code, result.base_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)
    await check_nothing_stored(wire, tmp_path)


async def test_a_size_that_snappy_only_announces_is_refused(wire: WireClient, tmp_path: Path) -> None:
    """Raw snappy begins with its uncompressed size: a declared 4 GiB is not allocated."""
    await wire.create("t")
    result = await send(wire, with_payload(b"\xff\xff\xff\xff\x0f" + bytes(20), compression.SNAPPY))
    assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    await check_nothing_stored(wire, tmp_path)


async def test_the_limit_of_a_topic_is_its_own(wire: WireClient, tmp_path: Path) -> None:
    """A batch of max.message.bytes is stored, one byte more is MESSAGE_TOO_LARGE."""
    await wire.create("t", max_message_bytes=str(len(FLAWLESS)))
    larger = batch_of([b"a", b"b", b"c!"])
    assert len(larger) == len(FLAWLESS) + 1
    assert (await send(wire, larger)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert await high_watermark(wire) == 0
    assert (await send(wire, FLAWLESS)).error_code == ErrorCode.NONE


async def test_null_keys_on_a_compacted_topic(wire: WireClient, tmp_path: Path) -> None:
    """INVALID_RECORD names each record without a key by its index; the others are not stored either."""
    await wire.create("t", cleanup_policy="compact")
    keys = (b"k0", None, b"k2", None)
    records = [Record(offset, TIMESTAMP, key, b"value") for offset, key in enumerate(keys)]
    result = await send(wire, bytes(build_batch(records, base_offset=0)))
    assert (result.error_code, result.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in result.record_errors] == [1, 3]
    assert all(error.batch_index_error_message for error in result.record_errors)
    await check_nothing_stored(wire, tmp_path)


async def test_a_timestamp_out_of_range_is_named(wire: WireClient, tmp_path: Path) -> None:
    """If the topic bounds timestamps, the answer is INVALID_TIMESTAMP with the record's index."""
    await wire.create("t", message_timestamp_after_max_ms="1000")
    records = [Record(0, TIMESTAMP, b"k", b"now"), Record(1, 2**42, b"k", b"in a far future")]
    result = await send(wire, bytes(build_batch(records, base_offset=0)))
    assert (result.error_code, result.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert [error.batch_index for error in result.record_errors] == [1]
    await check_nothing_stored(wire, tmp_path)


@pytest.mark.parametrize("name", ["crc-wrong", "length-negative", "magic-1", "not-compressed"])
async def test_a_failure_with_acks_0_closes_the_connection(wire: WireClient, tmp_path: Path, name: str) -> None:
    """No answer can carry the error, so the connection is closed; others stay."""
    await wire.create("t")
    async with WireClient(f"{wire._host}:{wire._port}") as hasty:
        hasty.send(PRODUCE, 12, produce_fields("t", 0, BAD_BATCHES[name][0], acks=0))
        assert await hasty.is_closed()
    await check_nothing_stored(wire, tmp_path)


async def test_other_partitions_of_a_failed_request_with_acks_0_are_stored(wire: WireClient) -> None:
    """The request's partitions before and after the bad one are stored, then the connection is closed."""
    await wire.create("t", partitions=3)
    fields = produce_fields("t", 0, FLAWLESS, acks=0)
    batches = (FLAWLESS, BAD_BATCHES["crc-wrong"][0], FLAWLESS)
    fields["topic_data"][0]["partition_data"] = [
        {"index": index, "records": records} for index, records in enumerate(batches)
    ]
    async with WireClient(f"{wire._host}:{wire._port}") as hasty:
        hasty.send(PRODUCE, 12, fields)
        assert await hasty.is_closed()
    watermarks = []
    for partition in range(3):
        response = await wire.call(FETCH, 12, fetch_fields("t", 0, partition=partition))
        watermarks.append(response.responses[0].partitions[0].high_watermark)
    assert watermarks == [3, 0, 3]


@pytest.mark.parametrize("acks", [2, -2, 3, 2**15 - 1, -(2**15)])
async def test_other_acks_are_refused(wire: WireClient, tmp_path: Path, acks: int) -> None:
    """Any value but -1, 0 and 1 is INVALID_REQUIRED_ACKS for every partition, and the connection stays."""
    await wire.create("t")
    fields = produce_fields("t", 0, FLAWLESS, acks=acks)
    fields["topic_data"][0]["partition_data"] = [{"index": index, "records": FLAWLESS} for index in (0, 7)]
    results = (await wire.call(PRODUCE, 12, fields)).responses[0].partition_responses
    assert [(result.error_code, result.base_offset) for result in results] == [
        (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    ] * 2
    assert (await wire.call(METADATA, 12, {"topics": None})).brokers
    await check_nothing_stored(wire, tmp_path)
