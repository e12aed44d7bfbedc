"""Byte rates on the wire: limits set while clients are connected apply to their next request."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.wire import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)
from tests.waiting import wait_until

ALTER_QUOTAS = 49
CLIENT = [{"entity_type": "client-id", "entity_name": "wire"}]


async def set_limit(wire: WireClient, name: str, value: float | None) -> None:
    """Set or remove a limit for the client id of `WireClient`."""
    op = {"key": name, "value": value or 0.0, "remove": value is None}
    await wire.call(ALTER_QUOTAS, 1, {"entries": [{"entity": CLIENT, "ops": [op]}], "validate_only": False})


async def produce(wire: WireClient, size: int, version: int = 12) -> int:
    """Produce one record; return the answer's throttle time in ms."""
    answer = await wire.call(PRODUCE, version, produce_fields("t", 0, batch_of([b"x" * size])))
    assert answer.responses[0].partition_responses[0].error_code == 0
    return round(answer.throttle_time.total_seconds() * 1000)


async def fetch(wire: WireClient, **session: int) -> tuple[int, int, int]:
    """Fetch; return the throttle time, the number of topics in the answer and the session's id."""
    answer = await wire.call(FETCH, 12, {**fetch_fields("t", 0), **session})
    return round(answer.throttle_time.total_seconds() * 1000), len(answer.responses), answer.session_id


@pytest.mark.parametrize("version", [8, 12])
async def test_a_producer_beyond_its_quota_is_throttled(broker: Broker, wire: WireClient, version: int) -> None:
    """The records are appended, the answer has a throttle time; without the limit it is 0 again."""
    await wire.create("t")
    assert await produce(wire, 10_000) == 0
    await set_limit(wire, "producer_byte_rate", 50_000)
    assert await produce(wire, 510_000, version) in range(1, 500)
    async with WireClient(broker.bootstrap_servers) as other:
        await set_limit(other, "producer_byte_rate", None)
        assert await produce(other, 10_000) == 0
    assert broker.node.directory.logs["t", 0].log_end_offset == 3


async def test_a_fetch_beyond_its_quota_is_empty(broker: Broker, wire: WireClient) -> None:
    """Beyond the limit the answer is empty, with and without a session, and the session loses nothing."""
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
    """Limits are in the metadata log, and apply before the first client is served."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await set_limit(wire, "producer_byte_rate", 50_000)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert await produce(wire, 510_000) > 0


async def test_limits_on_connections(broker: Broker, wire: WireClient) -> None:
    """An address quota applies from the answer until its removal; that of the configuration is applied, too."""
    address = [{"entity_type": "ip", "entity_name": "localhost"}]
    for value in (1.0, None):
        op = {"key": "connection_creation_rate", "value": value or 0.0, "remove": value is None}
        await wire.call(ALTER_QUOTAS, 1, {"entries": [{"entity": address, "ops": [op]}], "validate_only": False})
        admission = broker.services.server.admission
        assert (admission is None) == (value is None)
        if admission is not None:
            assert admission.quotas.limits.per_second_of["127.0.0.1"] == 1
    change = {"name": "max.connections.per.ip.overrides", "config_operation": 0, "value": "127.0.0.1:7"}
    broker_resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
    await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [broker_resource], "validate_only": False})
    await wait_until(lambda: broker.services.server.admission is not None)
    assert broker.services.server.admission is not None
    assert broker.services.server.admission.quotas.limits.at_once_of == {"127.0.0.1": 7}


@pytest.mark.parametrize(("version", "is_refused"), [(5, False), (6, True), (7, True)])
async def test_changes_of_topics(wire: WireClient, version: int, is_refused: bool) -> None:
    """A request during a debt is refused if its version has the error, else carried out; the answer has a throttle time."""
    await set_limit(wire, "controller_mutation_rate", 1)
    await wire.create("big", 15)
    fields = {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000}
    answer = await wire.call(CREATE_TOPICS, version, fields)
    assert answer.topics[0].error_code == (ErrorCode.THROTTLING_QUOTA_EXCEEDED if is_refused else ErrorCode.NONE)
    assert 3 < answer.throttle_time.total_seconds() <= 5


async def test_other_changes_of_topics(broker: Broker, wire: WireClient) -> None:
    """Deletion and growth are charged by partitions; during a debt, Metadata creates no topic and reports it as unknown."""
    await set_limit(wire, "controller_mutation_rate", 1)
    await wire.create("big", 15)
    calls: list[tuple[int, int, dict[str, Any]]] = [
        (DELETE_TOPICS, 5, {"topic_names": ["big"], "timeout_ms": 1000}),
        (CREATE_PARTITIONS, 3, {"topics": [{"name": "big", "count": 20, "assignments": None}], "timeout_ms": 1000}),
    ]
    for key, version, fields in calls:
        async with WireClient(broker.bootstrap_servers) as client:
            answer = await client.call(key, version, fields)
        (result,) = answer.responses if key == DELETE_TOPICS else answer.results
        assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert answer.throttle_time.total_seconds() > 0
    answer = await wire.call(METADATA, 9, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True})
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(broker.node.topics.by_name) == ["big"]
