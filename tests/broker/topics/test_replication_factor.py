"""Topics of production clusters on one broker: `diamant.replication.factor.max`."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.protocol.errors import ErrorCode
from tests.broker.running import running
from tests.broker.wire import CREATE_PARTITIONS, CREATE_TOPICS, METADATA, WireClient
from tests.memory_env import MemoryEnv

REASSIGN, DESCRIBE_TOPIC_PARTITIONS = 45, 75


async def create(
    wire: WireClient, name: str, factor: int = -1, assignments: dict[int, list[int]] | None = None, **configs: str
) -> Any:
    """Create a topic of one partition, or with assignments; its result."""
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": factor,
        "assignments": [{"partition_index": one, "broker_ids": ids} for one, ids in (assignments or {}).items()],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    return (await wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 1000})).topics[0]


async def replicas_of(wire: WireClient, name: str) -> list[tuple[Any, ...]]:
    """Leader, replicas and ISR of each partition, the same by Metadata and DescribeTopicPartitions."""
    topic = (await wire.call(METADATA, 12, {"topics": [{"name": name}], "allow_auto_topic_creation": False})).topics[0]
    told = [(one.leader_id, one.replica_nodes, one.isr_nodes) for one in topic.partitions]
    fields = {"topics": [{"name": name}], "response_partition_limit": 100}
    (described,) = (await wire.call(DESCRIBE_TOPIC_PARTITIONS, 0, fields)).topics
    assert [(one.leader_id, one.replica_nodes, one.isr_nodes) for one in described.partitions] == told
    return told


async def test_factors_up_to_the_maximum_are_accepted_with_one_replica() -> None:
    """Factors are accepted by number, by default and by assignment, in new topics, added partitions and reassignments; one
    replica is made.
    """
    async with running(MemoryEnv(), diamant_replication_factor_max=3, default_replication_factor=3) as (_, wire):
        for name, factor in (("three", 3), ("two", 2), ("default", -1)):
            created = await create(wire, name, factor)
            assert (created.error_code, created.replication_factor) == (ErrorCode.NONE, 1)
            assert await replicas_of(wire, name) == [(1, (1,), (1,))]
        created = await create(wire, "assigned", assignments={0: [1, 2, 3], 1: [2, 3, 4]})
        assert created.error_code == ErrorCode.NONE
        grown = {"name": "assigned", "count": 3, "assignments": [{"broker_ids": [3, 1, 2]}]}
        response = await wire.call(
            CREATE_PARTITIONS, 3, {"topics": [grown], "timeout_ms": 1000, "validate_only": False}
        )
        assert response.results[0].error_code == ErrorCode.NONE
        partitions = [{"partition_index": 0, "replicas": [2, 1, 3]}]
        response = await wire.call(
            REASSIGN, 0, {"topics": [{"name": "three", "partitions": partitions}], "timeout_ms": 1000}
        )
        assert response.responses[0].partitions[0].error_code == ErrorCode.NONE
        assert await replicas_of(wire, "assigned") == [(1, (1,), (1,))] * 3
        assert (await wire.call(METADATA, 12, {"topics": [{"name": "auto"}]})).topics[0].error_code == ErrorCode.NONE


async def test_a_replication_factor_above_the_maximum_is_refused_with_the_remedy() -> None:
    """Assignments to a broker twice, to none, and to one with a negative id are refused as well."""
    async with running(MemoryEnv(), diamant_replication_factor_max=3) as (_, wire):
        refused = await create(wire, "four", 4)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert refused.error_message.endswith(
            "with diamant.replication.factor.max=4 it accepts this, and keeps one replica."
        )
        for ids in ([1, 2, 3, 4], [2, 2, 1], [], [-1, 1]):
            refused = await create(wire, "assigned", assignments={0: ids})
            assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, ids
        refused = await create(wire, "uneven", assignments={0: [1, 2], 1: [1, 2, 3]})
        assert "not consistent with previous partitions, which have 2 replica(s)" in refused.error_message
    async with running(MemoryEnv()) as (_, wire):
        for refused in (await create(wire, "two", 2), await create(wire, "two", assignments={0: [1, 2]})):
            assert "with diamant.replication.factor.max=2 it accepts this" in refused.error_message


@pytest.mark.parametrize(("most", "minimum"), [(1, 2), (3, 3), (3, 4)])
async def test_one_replica_is_enough_for_any_min_insync_replicas(most: int, minimum: int) -> None:
    """Kafka needs no more replicas in sync than a partition has: 4.3.1 and 4.4.0 accept acks=all with one replica and 2."""
    async with running(MemoryEnv(), diamant_replication_factor_max=most) as (_, wire):
        await create(wire, "t", most, min_insync_replicas=str(minimum))
        assert (await wire.produce("t", [b"x"])).error_code == 0
        assert (await wire.produce("t", [b"x"], acks=1)).error_code == 0
