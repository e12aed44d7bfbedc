"""Fetch: record chunks are passed through, unknown tags are skipped."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from diamant.protocol.messages.fetch import (
    FetchPartitionResult,
    FetchTopicResult,
    decode_fetch_request,
    encode_fetch_response,
)
from diamant.protocol.wire.schemas import encode_request_fields, response_class
from tests.protocol.random_messages import kio_read

FETCH = 1
VERSIONS = range(4, 19)
TOPIC_ID = UUID(int=0x1234)


def _request(version: int) -> bytes:
    fields: dict[str, Any] = {
        "max_wait_ms": 500,
        "topics": [
            {"topic": "t", "topic_id": TOPIC_ID, "partitions": [{"partition": 3, "partition_max_bytes": 99}]},
        ],
        "forgotten_topics_data": [{"topic": "u", "topic_id": TOPIC_ID, "partitions": [1, 2]}],
        "rack_id": "r",
    }
    return encode_request_fields(FETCH, version, fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_record_chunks_are_passed_through_in_order(version: int) -> None:
    """Chunks are not read: the list has the same objects, at their places between the buffers."""
    first, second, third = (SimpleNamespace(size=size) for size in (100, 200, 300))
    partitions = [
        FetchPartitionResult(0, records=(first, second), records_size=300),
        FetchPartitionResult(1),
        FetchPartitionResult(2, records=(third,), records_size=300),
    ]
    chunks = encode_fetch_response(version, [FetchTopicResult("t", TOPIC_ID, partitions)])
    assert [chunk for chunk in chunks if isinstance(chunk, SimpleNamespace)] == [first, second, third]
    filled = [chunk if isinstance(chunk, bytearray) else bytes(chunk.size) for chunk in chunks]
    response = kio_read(response_class(FETCH, version), b"".join(filled))
    assert [len(partition.records) for partition in response.responses[0].partitions] == [300, 0, 300]


@pytest.mark.parametrize("version", [12, 14, 15, 18])
def test_unknown_tags_are_skipped(version: int) -> None:
    """Unknown tagged fields are skipped (KIP-482); tag 1 means the replica's state from version 15 on."""
    body = _request(version)
    tagged = body[:-1] + b"\x02\x01\x0d" + bytes((0, 0, 0, 9)) + bytes(9) + b"\x90\x4e\x02ab"
    request = decode_fetch_request(version, memoryview(tagged))
    assert request.replica_id == (9 if version >= 15 else -1)
    assert request._replace(replica_id=-1) == decode_fetch_request(version, memoryview(body))
