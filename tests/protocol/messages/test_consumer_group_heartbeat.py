"""The hand-written decoder of ConsumerGroupHeartbeat: requests without changes, and no others."""

from __future__ import annotations

import pytest

from diamant.broker.handlers.groups.consumer_group_heartbeat import decode
from diamant.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeat,
    decode_unchanged,
)
from diamant.protocol.wire.schemas import encode_request_fields

KEY = 68
UNCHANGED: dict[str, object] = {
    "group_id": "group",
    "member_id": "member",
    "member_epoch": 7,
    "rebalance_timeout_ms": -1,
    "subscribed_topic_names": None,
    "topic_partitions": None,
}


@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_without_changes_is_read_by_hand(version: int) -> None:
    """A request with only ids and epoch, all other fields unchanged, is decoded by hand."""
    body = memoryview(encode_request_fields(KEY, version, UNCHANGED))
    assert decode_unchanged(version, body) == ConsumerGroupHeartbeat("group", "member", 7) == decode(version, body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_id", "i"),
        ("rack_id", "r"),
        ("rebalance_timeout_ms", 0),
        ("subscribed_topic_names", []),
        ("subscribed_topic_regex", ""),
        ("server_assignor", "uniform"),
        ("topic_partitions", []),
    ],
)
def test_a_heartbeat_with_changes_is_left_to_the_schema(field: str, value: object) -> None:
    """A request with any changed field is not decoded by hand."""
    assert decode_unchanged(1, memoryview(encode_request_fields(KEY, 1, UNCHANGED | {field: value}))) is None
