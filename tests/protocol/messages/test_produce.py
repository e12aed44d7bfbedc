"""Produce: records are not copied, unknown tags are skipped."""

from uuid import UUID

import pytest

from diamant.protocol.messages.produce import (
    decode_produce_request,
)
from diamant.protocol.wire.schemas import encode_request_fields

PRODUCE = 0
VERSIONS = range(3, 14)
TOPIC_ID = UUID(int=0x1234)


def _request(version: int, **fields: object) -> memoryview:
    topic = {"name": "t", "topic_id": TOPIC_ID, "partition_data": [{"index": 2, "records": b"batch"}]}
    return memoryview(bytearray(encode_request_fields(PRODUCE, version, {"topic_data": [topic], **fields})))


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_writable_slices_of_the_body(version: int) -> None:
    """Records are not copied: a write to them changes the body."""
    body = _request(version)
    records = decode_produce_request(version, body).topics[0].partitions[0].records
    assert records is not None
    assert bytes(records) == b"batch"
    records[0:1] = b"B"
    assert b"Batch" in bytes(body)


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tags_are_skipped(version: int) -> None:
    """Unknown tagged fields are skipped in partition, topic and request (KIP-482)."""
    body = bytes(_request(version))
    assert body.endswith(b"batch\x00\x00\x00")
    tags = b"\x02\x05\x03abc\x90\x4e\x00"
    tagged = body[:-3] + tags + tags + tags
    assert decode_produce_request(version, memoryview(tagged)) == decode_produce_request(version, memoryview(body))
