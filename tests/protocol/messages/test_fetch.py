"""Fetch: decoded and encoded as kio does it, all versions; record chunks passed through; hostile bodies refused."""

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.fetch import (
    FetchPartitionResult,
    FetchTopicResult,
    decode_fetch_request,
    encode_fetch_response,
)
from diamant.protocol.wire.schemas import encode_request_fields, request_class, response_class
from tests.protocol.random_messages import entity, kio_bytes, kio_read, random_fields

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
def test_requests_are_decoded_as_kio_does(version: int) -> None:
    """Random requests of kio's writer, tagged fields included, come back with the same values."""
    rng = random.Random(version)
    struct = request_class(FETCH, version)
    for _ in range(50):
        message = entity(struct, random_fields(rng, struct, max_elements=4))
        request = decode_fetch_request(version, memoryview(bytearray(kio_bytes(message))))
        assert request.max_wait_ms == round(message.max_wait.total_seconds() * 1000)
        for name in ("min_bytes", "max_bytes", "isolation_level"):
            assert getattr(request, name) == getattr(message, name)
        assert request.session_id == getattr(message, "session_id", 0)
        assert request.session_epoch == getattr(message, "session_epoch", -1)
        assert request.rack_id == getattr(message, "rack_id", "")
        holder = message.replica_state if version >= 15 else message
        assert request.replica_id == holder.replica_id
        assert [_topic_values(topic) for topic in request.topics] == [_kio_topic_values(t) for t in message.topics]
        assert [(t.name, t.topic_id, tuple(t.partitions)) for t in request.forgotten_topics] == [
            (getattr(t, "topic", None), getattr(t, "topic_id", None), t.partitions)
            for t in getattr(message, "forgotten_topics_data", ())
        ]


def _topic_values(topic: Any) -> tuple[Any, ...]:
    return topic.name, topic.topic_id, [tuple(partition) for partition in topic.partitions]


def _kio_topic_values(topic: Any) -> tuple[Any, ...]:
    return (
        getattr(topic, "topic", None),
        getattr(topic, "topic_id", None),
        [
            (
                partition.partition,
                getattr(partition, "current_leader_epoch", -1),
                partition.fetch_offset,
                getattr(partition, "last_fetched_epoch", -1),
                getattr(partition, "log_start_offset", -1),
                partition.partition_max_bytes,
            )
            for partition in topic.partitions
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_encoded_as_kio_reads_them(version: int) -> None:
    """Random responses come back from kio's reader with the values that the version has."""
    rng = random.Random(version)
    for _ in range(50):
        topics = [
            FetchTopicResult(
                rng.choice(("t", "grüße")),
                rng.choice((None, TOPIC_ID)),
                [_random_result(rng) for _ in range(rng.randint(0, 4))],
            )
            for _ in range(rng.randint(0, 3))
        ]
        chunks = encode_fetch_response(version, topics, error_code=70, session_id=5, throttle_time_ms=17)
        response = kio_read(response_class(FETCH, version), b"".join(chunks))
        assert response.throttle_time.total_seconds() == 0.017
        if version >= 7:
            assert (response.error_code, response.session_id) == (70, 5)
        assert len(response.responses) == len(topics)
        for decoded, topic in zip(response.responses, topics, strict=True):
            if version < 13:
                assert decoded.topic == topic.name
            else:
                assert decoded.topic_id == topic.topic_id
            assert len(decoded.partitions) == len(topic.partitions)
            for partition, result in zip(decoded.partitions, topic.partitions, strict=True):
                _check_partition(version, partition, result)


def _random_result(rng: random.Random) -> FetchPartitionResult:
    records = tuple(rng.randbytes(rng.randint(1, 400)) for _ in range(rng.choice((0, 1, 1, 3))))
    return FetchPartitionResult(
        index=rng.randrange(1 << 31),
        error_code=rng.choice((0, 1)),
        high_watermark=rng.randrange(-1, 1 << 62),
        last_stable_offset=rng.randrange(-1, 1 << 62),
        log_start_offset=rng.randrange(-1, 1 << 62),
        aborted_transactions=rng.choice((None, [], [(7, 100)], [(n, n * 10) for n in range(200)])),
        records=records,
        records_size=sum(map(len, records)),
        diverging_epoch=rng.choice((None, None, (3, 1 << 40))),
    )


def _check_partition(version: int, partition: Any, result: FetchPartitionResult) -> None:
    assert partition.partition_index == result.index
    assert partition.error_code == result.error_code
    assert partition.high_watermark == result.high_watermark
    assert partition.last_stable_offset == result.last_stable_offset
    assert partition.records == b"".join(result.records)
    if result.aborted_transactions is None:
        assert partition.aborted_transactions is None
    else:
        aborted = [(txn.producer_id, txn.first_offset) for txn in partition.aborted_transactions]
        assert aborted == list(result.aborted_transactions)
    if version >= 5:
        assert partition.log_start_offset == result.log_start_offset
    if version >= 11:
        assert partition.preferred_read_replica == -1
    if version >= 12:
        diverging = (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset)
        assert diverging == (result.diverging_epoch or (-1, -1))


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_empty_not_null(version: int) -> None:
    """A partition without records has an empty records field: null makes librdkafka drop the whole response."""
    body = b"".join(encode_fetch_response(version, [FetchTopicResult("t", TOPIC_ID, [FetchPartitionResult(0, 3)])]))
    assert kio_read(response_class(FETCH, version), body).responses[0].partitions[0].records == b""


@pytest.mark.parametrize("version", VERSIONS)
def test_record_chunks_are_passed_through_in_order(version: int) -> None:
    """Chunks are not looked at: the very objects are in the list, between the buffers they belong between."""
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


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_refused(version: int) -> None:
    """A request that ends early, anywhere, is a ProtocolError."""
    body = memoryview(_request(version))
    decode_fetch_request(version, body)
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_fetch_request(version, body[:size])


@pytest.mark.parametrize("version", VERSIONS)
def test_trailing_bytes_are_ignored(version: int) -> None:
    """A byte after the request is not looked at, as in Kafka."""
    body = _request(version)
    assert decode_fetch_request(version, memoryview(body + b"\x00")) == decode_fetch_request(version, memoryview(body))


@pytest.mark.parametrize("version", [12, 14, 15, 18])
def test_unknown_tags_are_skipped(version: int) -> None:
    """Tagged fields of the future are skipped (KIP-482); tag 1 means the replica's state from version 15 on."""
    body = _request(version)
    tagged = body[:-1] + b"\x02\x01\x0d" + bytes((0, 0, 0, 9)) + bytes(9) + b"\x90\x4e\x02ab"
    request = decode_fetch_request(version, memoryview(tagged))
    assert request.replica_id == (9 if version >= 15 else -1)
    assert request._replace(replica_id=-1) == decode_fetch_request(version, memoryview(body))


@pytest.mark.parametrize("version", [12, 14])
def test_tag_1_means_nothing_before_version_15(version: int) -> None:
    """A tagged field 1 too short for a replica's state is skipped where it is an unknown field."""
    body = _request(version)
    tagged = memoryview(body[:-1] + b"\x01\x01\x02ab")
    assert decode_fetch_request(version, tagged) == decode_fetch_request(version, memoryview(body))


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        (4, b"\x7f\xff\xff\xff"),
        (4, b"\xff\xff\xff\xff"),
        (4, b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"),
        (12, b"\xff\xff\xff\xff\x7f"),
        (12, b"\xff\xff\xff\xff\x0f"),
        (12, b"\x00"),
        (12, b"\x01\x02\x02t\xff\xff\xff\xff\x0f"),
        (12, b"\x01\x01\x00\x00"),
        (15, b"\x01\x01\x01\x01\x01\xff\xff\xff\xff\x0f"),
        (15, b"\x01\x01\x01\x01\x01\x02ab"),
    ],
    ids=[
        "topics: 2^31-1",
        "topics: null",
        "name: null",
        "topics: 2^35-1",
        "topics: 2^32-2",
        "topics: null, compact",
        "forgotten partitions: 2^32-2",
        "rack: null",
        "tag: 2^32-1 bytes",
        "replica state: 2 bytes",
    ],
)
def test_hostile_lengths_are_refused(version: int, tail: bytes) -> None:
    """Counts and lengths that cannot be, and nulls that may not be, are ProtocolErrors."""
    head_size = {4: 17, 12: 25, 15: 21}[version]
    with pytest.raises(ProtocolError):
        decode_fetch_request(version, memoryview(bytes(head_size) + tail))


def test_names_are_required_before_version_13() -> None:
    """A result without a name cannot be encoded for a version that names topics."""
    for version in (4, 12):
        with pytest.raises(ValueError, match="names topics"):
            encode_fetch_response(version, [FetchTopicResult(None, TOPIC_ID, [])])
