"""Byte rates on the wire: limits that are set while clients are connected hold for their next request."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.wire import FETCH, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields

ALTER_QUOTAS = 49
CLIENT = [{"entity_type": "client-id", "entity_name": "wire"}]


async def set_limit(wire: WireClient, name: str, value: float | None) -> None:
    """Set or remove a limit of the client id that `WireClient` has."""
    op = {"key": name, "value": value or 0.0, "remove": value is None}
    await wire.call(ALTER_QUOTAS, 1, {"entries": [{"entity": CLIENT, "ops": [op]}], "validate_only": False})


async def produce(wire: WireClient, size: int, version: int = 12) -> int:
    """Produce one record; the throttle time of the answer, in ms."""
    answer = await wire.call(PRODUCE, version, produce_fields("t", 0, batch_of([b"x" * size])))
    assert answer.responses[0].partition_responses[0].error_code == 0
    return round(answer.throttle_time.total_seconds() * 1000)


async def fetch(wire: WireClient, **session: int) -> tuple[int, int, int]:
    """Fetch; the throttle time, the number of topics in the answer and the session's id."""
    answer = await wire.call(FETCH, 12, {**fetch_fields("t", 0), **session})
    return round(answer.throttle_time.total_seconds() * 1000), len(answer.responses), answer.session_id


@pytest.mark.parametrize("version", [8, 12])
async def test_produce(broker: Broker, wire: WireClient, version: int) -> None:
    """The records are appended, the answer says how long to wait; without the limit it says 0 again."""
    await wire.create("t")
    assert await produce(wire, 10_000) == 0
    await set_limit(wire, "producer_byte_rate", 50_000)
    assert await produce(wire, 510_000, version) in range(1, 500)
    async with WireClient(broker.bootstrap_servers) as other:
        await set_limit(other, "producer_byte_rate", None)
        assert await produce(other, 10_000) == 0
    assert broker.node.directory.logs["t", 0].log_end_offset == 3


async def test_fetch(broker: Broker, wire: WireClient) -> None:
    """Beyond the limit the answer is empty, with and without a session, and nothing of the session is lost."""
    await wire.create("t")
    await produce(wire, 100_000)
    await set_limit(wire, "consumer_byte_rate", 15_000)
    throttle_time_ms, topics, session_id = await fetch(wire, session_epoch=0)
    assert (throttle_time_ms, topics) == (0, 1)
    assert session_id
    await produce(wire, 100_000)
    throttle_time_ms, topics, answered_id = await fetch(wire, session_id=session_id, session_epoch=1)
    assert throttle_time_ms > 0
    assert (topics, answered_id) == (0, session_id)
    async with WireClient(broker.bootstrap_servers) as other:
        await set_limit(other, "consumer_byte_rate", None)
        fields = {**fetch_fields("t", 0), "session_id": session_id, "session_epoch": 2, "topics": []}
        answer = await other.call(FETCH, 12, fields)
        assert len(answer.responses) == 1, "what the throttled answer left out"


async def test_limits_hold_after_a_restart(tmp_path: Any) -> None:
    """They stand in the metadata log, and are applied before the first client is served."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await set_limit(wire, "producer_byte_rate", 50_000)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert await produce(wire, 510_000) > 0
