"""Produce: decoded and encoded as kio does it, for every version, and hostile bodies refused."""

import random
from uuid import UUID

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.produce import (
    ProducePartitionResult,
    ProduceTopicResult,
    decode_produce_request,
    encode_produce_response,
)
from diamant.protocol.wire.schemas import encode_request_fields, request_class, response_class
from tests.protocol.random_messages import entity, kio_bytes, kio_read, random_fields

PRODUCE = 0
VERSIONS = range(3, 14)
TOPIC_ID = UUID(int=0x1234)


def _request(version: int, **fields: object) -> memoryview:
    topic = {"name": "t", "topic_id": TOPIC_ID, "partition_data": [{"index": 2, "records": b"batch"}]}
    return memoryview(bytearray(encode_request_fields(PRODUCE, version, {"topic_data": [topic], **fields})))


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_decoded_as_kio_does(version: int) -> None:
    """Random requests of kio's writer come back with the same values."""
    rng = random.Random(version)
    struct = request_class(PRODUCE, version)
    for _ in range(50):
        message = entity(struct, random_fields(rng, struct, max_elements=4))
        request = decode_produce_request(version, memoryview(bytearray(kio_bytes(message))))
        assert request.transactional_id == message.transactional_id
        assert request.acks == message.acks
        assert request.timeout_ms == round(message.timeout.total_seconds() * 1000)
        assert len(request.topics) == len(message.topic_data)
        for topic, expected in zip(request.topics, message.topic_data, strict=True):
            assert topic.name == getattr(expected, "name", None)
            assert topic.topic_id == getattr(expected, "topic_id", None)
            assert [(partition.index, partition.records) for partition in topic.partitions] == [
                (partition.index, partition.records) for partition in expected.partition_data
            ]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_writable_slices_of_the_body(version: int) -> None:
    """Records are not copied: what is written into them is written into the body."""
    body = _request(version)
    records = decode_produce_request(version, body).topics[0].partitions[0].records
    assert records is not None
    assert bytes(records) == b"batch"
    records[0:1] = b"B"
    assert b"Batch" in bytes(body)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_encoded_as_kio_reads_them(version: int) -> None:
    """Random responses come back from kio's reader with the values that the version has."""
    rng = random.Random(version)
    for _ in range(50):
        topics = [
            ProduceTopicResult(
                rng.choice(("t", "grüße")),
                rng.choice((None, TOPIC_ID)),
                [_random_result(rng) for _ in range(rng.randint(0, 4))],
            )
            for _ in range(rng.randint(0, 3))
        ]
        response = kio_read(response_class(PRODUCE, version), encode_produce_response(version, topics, 17))
        assert response.throttle_time.total_seconds() == 0.017
        assert len(response.responses) == len(topics)
        for decoded, topic in zip(response.responses, topics, strict=True):
            if version < 13:
                assert decoded.name == topic.name
            else:
                assert decoded.topic_id == topic.topic_id
            assert len(decoded.partition_responses) == len(topic.partitions)
            for partition, result in zip(decoded.partition_responses, topic.partitions, strict=True):
                _check_partition(version, partition, result)


def _random_result(rng: random.Random) -> ProducePartitionResult:
    return ProducePartitionResult(
        index=rng.randrange(1 << 31),
        error_code=rng.choice((0, 87)),
        base_offset=rng.randrange(-1, 1 << 62),
        log_append_time_ms=rng.choice((-1, 1_700_000_000_000)),
        log_start_offset=rng.randrange(-1, 1 << 62),
        record_errors=[(n, rng.choice((None, "bad", ""))) for n in range(rng.choice((0, 0, 1, 3)))],
        error_message=rng.choice((None, None, "", "why")),
    )


def _check_partition(version: int, partition: object, result: ProducePartitionResult) -> None:
    append_time = partition.log_append_time  # type: ignore[attr-defined]
    assert partition.index == result.index  # type: ignore[attr-defined]
    assert partition.error_code == result.error_code  # type: ignore[attr-defined]
    assert partition.base_offset == result.base_offset  # type: ignore[attr-defined]
    assert (-1 if append_time is None else append_time.timestamp() * 1000) == result.log_append_time_ms
    if version >= 5:
        assert partition.log_start_offset == result.log_start_offset  # type: ignore[attr-defined]
    if version >= 8:
        assert partition.error_message == result.error_message  # type: ignore[attr-defined]
        assert [
            (error.batch_index, error.batch_index_error_message)
            for error in partition.record_errors  # type: ignore[attr-defined]
        ] == list(result.record_errors)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_refused(version: int) -> None:
    """A request that ends early, anywhere, is a ProtocolError."""
    body = _request(version, transactional_id="txn")
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_produce_request(version, body[:size])


@pytest.mark.parametrize("version", VERSIONS)
def test_trailing_bytes_are_ignored(version: int) -> None:
    """A byte after the request is not looked at, as in Kafka."""
    body = bytes(_request(version))
    decoded = decode_produce_request(version, memoryview(body))
    assert decode_produce_request(version, memoryview(body + b"\x00")) == decoded


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tags_are_skipped(version: int) -> None:
    """Tagged fields of the future are skipped in partition, topic and request (KIP-482)."""
    body = bytes(_request(version))
    assert body.endswith(b"batch\x00\x00\x00")
    tags = b"\x02\x05\x03abc\x90\x4e\x00"
    tagged = body[:-3] + tags + tags + tags
    assert decode_produce_request(version, memoryview(tagged)) == decode_produce_request(version, memoryview(body))


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff"),
        (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"),
        (3, b"\xff\xfe\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"),
        (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"),
        (
            3,
            b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe",
        ),
        (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01\xff\x00\x00\x00\x00"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x7f"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x0f"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x02\x00\x01\x00\x00"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x02\x02t\x02\x00\x00\x00\x00\xff\xff\xff\xff\x0f\x00\x00\x00"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x00\xff\xff\xff\xff\x0f"),
    ],
    ids=[
        "topics: 2^31-1",
        "topics: null",
        "transactional id: length -2",
        "name: null",
        "records: length -2",
        "name: no UTF-8",
        "topics: 2^35-1",
        "topics: 2^32-2",
        "topics: endless varint",
        "topics: null, compact",
        "name: null, compact",
        "records: 2^32-2",
        "tag: 2^32-1 bytes",
    ],
)
def test_hostile_lengths_are_refused(version: int, body: bytes) -> None:
    """Counts and lengths that cannot be, nulls that may not be, and broken text are ProtocolErrors."""
    with pytest.raises(ProtocolError):
        decode_produce_request(version, memoryview(body))


def test_names_are_required_before_version_13() -> None:
    """A result without a name cannot be encoded for a version that names topics."""
    for version in (3, 12):
        with pytest.raises(ValueError, match="names topics"):
            encode_produce_response(version, [ProduceTopicResult(None, TOPIC_ID, [])])
