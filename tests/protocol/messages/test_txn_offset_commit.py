"""TxnOffsetCommit by hand: what kio makes of the same bytes, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.txn_offset_commit import (
    decode_txn_offset_commit_request,
    encode_txn_offset_commit_response,
)
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, encode_response_fields, request_class
from tests.effort import examples
from tests.protocol.offset_topics import answered_topic, offsets_by_hand, offsets_by_kio, topic_fields
from tests.protocol.random_messages import random_fields
from tests.protocol.wire.test_fuzz_requests import damage

KEY = 28
VERSIONS = range(6)
MESSAGES = 30


def by_kio(version: int, body: bytes) -> tuple[Any, ...]:
    """What the generic decoder reads: the fields before the topics, and the topics."""
    request = decode_request(KEY, version, body)
    return (
        request.transactional_id,
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        getattr(request, "generation_id", -1),
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        offsets_by_kio(request.topics),
    )


def by_hand(version: int, body: bytes) -> tuple[Any, ...]:
    """What the own decoder reads, in the same form."""
    request = decode_txn_offset_commit_request(version, memoryview(body))
    return (*request[:-1], offsets_by_hand(request.topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_kio_reads_them(version: int) -> None:
    """Random requests: the same values, with bytes after them or not."""
    for seed in range(MESSAGES):
        body = encode_request_fields(KEY, version, random_fields(random.Random(seed), request_class(KEY, version)))
        expected = by_kio(version, body)
        assert by_hand(version, body) == expected, f"seed {seed}"
        assert by_hand(version, body + b"\0ab") == expected, f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_are_read_as_kio_reads_them(version: int) -> None:
    """What the guard and kio refuse is a ProtocolError; what they accept has the same values."""
    rng = random.Random(version)
    accepted = 0
    for seed in range(examples(300)):
        texts = rng.choices(("", "", "", None, "m"), k=rng.randrange(4))
        fields = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": 7,
            "producer_epoch": 1,
            "generation_id": 3,
            "member_id": "m",
            "topics": [topic_fields(texts), topic_fields(texts)],
        }
        body = damage(rng, encode_request_fields(KEY, version, fields))
        try:
            expected = by_kio(version, body)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode_txn_offset_commit_request(version, memoryview(body))
            continue
        accepted += 1
        assert by_hand(version, body) == expected, f"body {seed}: {body.hex()}"
    assert accepted


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_requests_are_refused(version: int) -> None:
    """A request that is cut off anywhere is a ProtocolError, never a request or another exception."""
    fields = {"transactional_id": "x", "group_id": "g", "member_id": "m", "topics": [topic_fields(["", "m"])]}
    body = encode_request_fields(KEY, version, fields)
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_txn_offset_commit_request(version, memoryview(body[:size]))


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_those_of_the_generic_encoder(version: int) -> None:
    """Byte for byte, with errors and without."""
    for codes in ([0, 3, 25], [0, 0, 0]):
        topics = [{"name": "t", "partitions": [{"partition_index": i, "error_code": c} for i, c in enumerate(codes)]}]
        expected = encode_response_fields(KEY, version, {"topics": topics})
        refused = {(0, row): code for row, code in enumerate(codes) if code}
        assert encode_txn_offset_commit_response(version, [answered_topic(range(3))], refused) == expected
