"""ConsumerGroupHeartbeat by hand: requests in which all is as before, as kio reads them, and no others; the answer to them."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from diamant.broker.handlers.groups.consumer_group_heartbeat import decode
from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeat,
    decode_unchanged,
    encode_without_assignment,
)
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, encode_response_fields, request_class
from tests.effort import examples
from tests.protocol.random_messages import random_fields
from tests.protocol.wire.test_fuzz_requests import damage

KEY = 68
VERSIONS = (0, 1)
UNCHANGED: dict[str, object] = {
    "group_id": "group",
    "member_id": "member",
    "member_epoch": 7,
    "rebalance_timeout_ms": -1,
    "subscribed_topic_names": None,
    "topic_partitions": None,
}


def by_kio(version: int, body: bytes) -> ConsumerGroupHeartbeat:
    """What the generic decoder reads."""
    request: Any = decode_request(KEY, version, body)
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerGroupHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout // timedelta(milliseconds=1),
        None if names is None else list(names),
        request.subscribed_topic_regex if version else None,
        request.server_assignor,
        None if owned is None else [(entry.topic_id, entry.partitions) for entry in owned],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_as_before_is_read_by_hand(version: int) -> None:
    """The ids and the epoch; every other field says "as before"."""
    body = memoryview(encode_request_fields(KEY, version, UNCHANGED))
    assert (
        decode_unchanged(version, body) == ConsumerGroupHeartbeat("group", "member", 7) == by_kio(version, bytes(body))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"instance_id": "i"},
        {"rack_id": "r"},
        {"rebalance_timeout_ms": 0},
        {"subscribed_topic_names": []},
        {"subscribed_topic_regex": ""},
        {"server_assignor": "uniform"},
        {"topic_partitions": []},
    ],
)
def test_what_says_more_is_left_to_the_schema(change: dict[str, object]) -> None:
    """Any field that is not as before, in the last version."""
    body = encode_request_fields(KEY, 1, UNCHANGED | change)
    assert decode_unchanged(1, memoryview(body)) is None
    assert decode(1, memoryview(body)) == by_kio(1, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_kio_reads_them(version: int) -> None:
    """Random, cut off and damaged ones: the same values, or a ProtocolError."""
    rng = random.Random(version)
    whole = encode_request_fields(KEY, version, UNCHANGED)
    bodies = [encode_request_fields(KEY, version, random_fields(rng, request_class(KEY, version))) for _ in range(20)]
    bodies += [whole[:size] for size in range(len(whole))] + [damage(rng, whole) for _ in range(examples(400))]
    accepted = 0
    for body in bodies:
        try:
            expected = by_kio(version, body)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode(version, memoryview(body))
            continue
        accepted += 1
        assert decode(version, memoryview(body)) == expected, body.hex()
    assert accepted


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_what_the_schema_makes_of_them(version: int) -> None:
    """Ids of any length that fits."""
    for member_id in ("", "m", "é" * 100):
        fields = {"member_id": member_id, "member_epoch": -2, "heartbeat_interval_ms": 5000}
        assert encode_without_assignment(member_id, -2, 5000) == encode_response_fields(KEY, version, fields)
