"""Heartbeat by hand: what kio makes of the same bytes, in every version."""

from __future__ import annotations

import random

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.heartbeat import HeartbeatRequest, decode_heartbeat_request
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, request_class
from tests.effort import examples
from tests.protocol.random_messages import random_fields
from tests.protocol.wire.test_fuzz_requests import damage

KEY = 12
VERSIONS = range(5)


def by_kio(version: int, body: bytes) -> HeartbeatRequest:
    """What the generic decoder reads."""
    request = decode_request(KEY, version, body)
    instance_id = request.group_instance_id if version >= 3 else None
    return HeartbeatRequest(request.group_id, request.generation_id, request.member_id, instance_id)


def by_hand(version: int, body: bytes) -> HeartbeatRequest:
    """What the own decoder reads."""
    return decode_heartbeat_request(version, memoryview(body))


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_kio_reads_them(version: int) -> None:
    """Random requests: the same values, with bytes after them or not."""
    for seed in range(50):
        fields = random_fields(random.Random(seed), request_class(KEY, version))
        body = encode_request_fields(KEY, version, fields)
        assert by_hand(version, body) == by_kio(version, body), f"seed {seed}"
        assert by_hand(version, body + b"\0ab") == by_kio(version, body), f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_are_read_as_kio_reads_them(version: int) -> None:
    """What the guard and kio refuse is a ProtocolError; what they accept has the same values."""
    rng = random.Random(version)
    fields = {"group_id": "group", "generation_id": 7, "member_id": "member", "group_instance_id": "instance"}
    whole = encode_request_fields(KEY, version, fields)
    bodies = [whole[:size] for size in range(len(whole))] + [damage(rng, whole) for _ in range(examples(400))]
    accepted = 0
    for body in bodies:
        try:
            expected = by_kio(version, body)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                by_hand(version, body)
            continue
        accepted += 1
        assert by_hand(version, body) == expected, body.hex()
    assert accepted


def test_ids_that_are_null_are_refused() -> None:
    """Neither the group's nor the member's id may be null."""
    for body in (b"\0\0\0\0\1\2m\0\0", b"\2g\0\0\0\1\0\0\0"):
        with pytest.raises(ProtocolError, match="id is null"):
            by_hand(4, body)
