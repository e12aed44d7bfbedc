"""A broker that stops does not wait for groups, and leaves nothing behind that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription, encode_subscription
from tests.broker.groups.consumer.consumer_wire import A
from tests.broker.groups.offsets.offset_requests import JOIN_GROUP, find_coordinator
from tests.broker.wire import WireClient

HEARTBEAT = 68
JOIN = {
    "group_id": "g",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 60_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": encode_subscription(Subscription(("t",), None, {}))}],
}
BEAT = {
    "group_id": "g",
    "member_id": A,
    "member_epoch": 0,
    "rebalance_timeout_ms": 5_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("key", "version", "request_fields"), [(JOIN_GROUP, 3, JOIN), (HEARTBEAT, 0, BEAT)], ids=["join", "heartbeat"]
)
async def test_requests_that_come_while_the_broker_stops(
    make_broker: Callable[..., Broker], key: int, version: int, request_fields: dict[str, object]
) -> None:
    """What a fault has held until then is refused. It is not parked for its rebalance timeout, and sets no timer."""
    async with make_broker() as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        with broker.faults.add(api=key, hold=True) as fault:
            client.send(key, version, request_fields)
            await fault.until_fired()
            async with asyncio.timeout(60):
                await broker.stop()
        # A connection that is busy for too long is closed without one.
        answer = await client.receive(key, version)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert len(broker.services.groups().classic.timers) == len(broker.services.groups().consumer.runner.timers) == 0
