"""OffsetCommit by hand: what kio makes of the same bytes, in every version."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    decode_offset_commit_request,
    encode_offset_commit_response,
)
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, encode_response_fields, request_class
from tests.effort import examples
from tests.protocol.offset_topics import TOPIC_ID, answered_topic, offsets_by_hand, offsets_by_kio, topic_fields
from tests.protocol.random_messages import random_fields
from tests.protocol.wire.test_fuzz_requests import damage

KEY = 8
VERSIONS = range(2, 11)
MESSAGES = 30
LONGEST_BY_KIO_MS = 8_640_000_000_000_000
"""Durations end here: datetime's do."""


def request_bytes(version: int, seed: int) -> bytes:
    """A random request."""
    return encode_request_fields(KEY, version, random_fields(random.Random(seed), request_class(KEY, version)))


def by_kio(version: int, body: bytes) -> tuple[Any, ...]:
    """What the generic decoder reads: the fields before the topics, and the topics."""
    request = decode_request(KEY, version, body)
    return (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id if version >= 7 else None,
        request.retention_time // timedelta(milliseconds=1) if version <= 4 else -1,
        offsets_by_kio(request.topics),
    )


def by_hand(version: int, body: bytes) -> tuple[Any, ...]:
    """What the own decoder reads, in the same form."""
    request = decode_offset_commit_request(version, memoryview(body))
    retention_ms = max(min(request.retention_time_ms, LONGEST_BY_KIO_MS), -LONGEST_BY_KIO_MS)
    return (*request[:4], retention_ms, offsets_by_hand(request.topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_kio_reads_them(version: int) -> None:
    """Random requests: the same values, with bytes after them or not."""
    for seed in range(MESSAGES):
        body = request_bytes(version, seed)
        expected = by_kio(version, body)
        assert by_hand(version, body) == expected, f"seed {seed}"
        assert by_hand(version, body + b"\0ab") == expected, f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_may_be_anywhere(version: int) -> None:
    """Rows with and without metadata, in any order: the same values as kio's."""
    for texts in itertools.product(("", None, "m"), repeat=3):
        body = encode_request_fields(KEY, version, {"group_id": "g", "member_id": "", "topics": [topic_fields(texts)]})
        assert by_hand(version, body) == by_kio(version, body), texts


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_are_read_as_kio_reads_them(version: int) -> None:
    """What the guard and kio refuse is a ProtocolError; what they accept has the same values."""
    rng = random.Random(version)
    accepted = 0
    for seed in range(examples(300)):
        texts = rng.choices(("", "", "", None, "m"), k=rng.randrange(4))
        fields = {"group_id": "g", "member_id": "m", "topics": [topic_fields(texts), topic_fields(texts)]}
        body = damage(rng, encode_request_fields(KEY, version, fields))
        try:
            expected = by_kio(version, body)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode_offset_commit_request(version, memoryview(body))
            continue
        accepted += 1
        assert by_hand(version, body) == expected, f"body {seed}: {body.hex()}"
    assert accepted


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_requests_are_refused(version: int) -> None:
    """A request that is cut off anywhere is a ProtocolError, never a request or another exception."""
    body = next(body for body in (request_bytes(version, seed) for seed in range(100)) if 40 < len(body) < 2000)
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_offset_commit_request(version, memoryview(body[:size]))


@pytest.mark.parametrize("version", VERSIONS)
def test_counts_that_cannot_be_are_refused(version: int) -> None:
    """A topic count beyond what is left is a ProtocolError, and costs nothing."""
    start = encode_request_fields(KEY, version, {"group_id": "g", "member_id": "m", "topics": []})
    flexible = version >= 8
    cut = start[:-2] if flexible else start[:-4]
    for count in (b"\xff\xff\xff\xff\x07", b"\x70") if flexible else (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError):
            decode_offset_commit_request(version, memoryview(cut + count))


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_those_of_the_generic_encoder(version: int) -> None:
    """Byte for byte, for no, one and many partitions."""
    rng = random.Random(version)
    for count in (0, 1, 3, 200):
        names = ["t", "täglich"][: 1 + count % 2]
        topic_ids = [request_topic_id(rng) for _ in names]
        results = [[(rng.randrange(1 << 31), rng.choice([0, 3, 25])) for _ in range(count)] for _ in names]
        topics = [
            answered_topic([index for index, _ in each], name=name, topic_id=topic_id)
            for name, topic_id, each in zip(names, topic_ids, results, strict=True)
        ]
        fields = {
            "topics": [
                {
                    **({"topic_id": topic.topic_id} if version >= 10 else {"name": topic.name}),
                    "partitions": [{"partition_index": index, "error_code": code} for index, code in each],
                }
                for topic, each in zip(topics, results, strict=True)
            ]
        }
        codes = {(n, row): code for n, each in enumerate(results) for row, (_, code) in enumerate(each) if code}
        assert encode_offset_commit_response(version, topics, codes) == encode_response_fields(KEY, version, fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_committed_is_answered_with_zeros(version: int) -> None:
    """Few partitions and more than are remembered, of one topic and of two, the second time too."""
    for count, topic_count in itertools.product((0, 1, 5, 101), (1, 2)):
        topics = [answered_topic(range(count))] * topic_count
        zeros = [{"partition_index": index, "error_code": 0} for index in range(count)]
        expected = [{"name": "t", "topic_id": TOPIC_ID, "partitions": zeros}] * topic_count
        for _ in range(2):
            answer = encode_offset_commit_response(version, topics, {})
            assert answer == encode_response_fields(KEY, version, {"topics": expected})


def request_topic_id(rng: random.Random) -> UUID:
    """A random topic id."""
    return UUID(int=rng.getrandbits(128) | 1)


def test_ids_that_are_null_are_refused() -> None:
    """Neither the group's nor the member's id may be null."""
    for body in (b"\xff\xff\0\0\0\1\0\1m", b"\0\1g\0\0\0\1\xff\xff"):
        request = memoryview(body + b"\xff" * 8 + b"\0\0\0\0")
        with pytest.raises(ProtocolError, match="id is null"):
            decode_offset_commit_request(2, request)


def test_a_request_has_kafkas_defaults() -> None:
    """What version 2 does not have: no instance id, no leader epoch."""
    body = encode_request_fields(
        KEY,
        2,
        {
            "group_id": "g",
            "member_id": "",
            "topics": [{"name": "t", "partitions": [{"partition_index": 1, "committed_offset": 5}]}],
        },
    )
    request = decode_offset_commit_request(2, memoryview(body))
    assert isinstance(request, OffsetCommitRequest)
    assert (request.group_instance_id, request.topics[0][2:]) == (None, ((1,), (5,), (-1,), None))
