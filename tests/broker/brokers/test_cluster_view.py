"""What clients see of several brokers: addresses, leaders, coordinators, and the answers of a broker that does not lead."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.protocol.errors import ErrorCode
from tests.broker.brokers.several import bring_up, create, leaders, metadata, several, table, take_down
from tests.broker.wire import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, WireClient

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
HEARTBEAT, LIST_GROUPS, DESCRIBE_GROUPS = 12, 16, 15


async def test_every_broker_describes_the_same_cluster() -> None:
    """Metadata and DescribeCluster name three brokers with the ports of their listeners and a rack each."""
    async with several() as (broker, wires):
        expected = [(one.broker + 1, one.port, f"r{one.broker + 1}") for one in broker.addresses.kafka]
        for wire in wires:
            told = await metadata(wire)
            assert sorted((one.node_id, one.port, one.rack) for one in told.brokers) == expected
            assert told.brokers[0].node_id == wires.index(wire) + 1
            described = await wire.call(DESCRIBE_CLUSTER, 2, {"endpoint_type": 1, "include_fenced_brokers": True})
            assert sorted((one.broker_id, one.port, one.rack) for one in described.brokers) == expected
            assert {told.controller_id, described.controller_id} == {1}


async def test_a_topic_has_as_many_replicas_as_there_are_brokers() -> None:
    """A factor of 3 is accepted, one of 4 is refused with Kafka's words."""
    async with several() as (_, (wire, *_)):
        assert (await create(wire, partitions=3, factor=3)).replication_factor == 3
        assert await leaders(wire) == [(1, 0, [1, 2, 3]), (2, 0, [2, 3, 1]), (3, 0, [3, 1, 2])]
        refused = await create(wire, "u", 1, 4)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "only 3 broker(s) are registered" in refused.error_message


async def produce_code(wire: WireClient, partition: int = 0, acks: int = -1) -> int:
    """Return the error code of a produce request."""
    return int((await wire.produce("t", [b"v"], partition=partition, acks=acks)).error_code)


async def test_only_the_leader_accepts_records() -> None:
    """Followers and brokers without a replica answer NOT_LEADER_OR_FOLLOWER."""
    async with several() as (_, wires):
        await create(wires[0], replicas=[[2, 1]])
        assert [await produce_code(wire) for wire in wires] == [NOT_LEADER, 0, NOT_LEADER]


async def test_a_moved_leader_is_known_to_all() -> None:
    """A move raises the leader epoch by one; the old leader refuses from then on."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        ((move,), changed_isr) = table(broker).move_leader("t", 0, 2)
        assert tuple(move) == ("t", 0, 1, 2, 1)
        assert not changed_isr
        assert [await leaders(wire) for wire in wires] == [[(2, 1, [1, 2, 3])]] * 3
        assert [await produce_code(wire) for wire in wires] == [NOT_LEADER, 0, NOT_LEADER]


async def test_a_broker_that_goes_down_loses_its_leaders() -> None:
    """The first live in-sync replica leads; back up, the broker is in sync again but does not lead."""
    async with several() as (broker, wires):
        await create(wires[0], partitions=3, factor=3)
        take_down(broker, 2)
        assert await wires[1].is_closed()
        assert await leaders(wires[0]) == [(1, 0, [1, 3]), (3, 1, [3, 1]), (3, 0, [3, 1])]
        told = await metadata(wires[0])
        assert [one.node_id for one in told.brokers] == [1, 3]
        assert [list(one.offline_replicas) for one in told.topics[0].partitions] == [[2]] * 3
        described = await wires[0].call(DESCRIBE_CLUSTER, 2, {"endpoint_type": 1, "include_fenced_brokers": True})
        assert [(one.broker_id, one.is_fenced) for one in described.brokers] == [(1, False), (2, True), (3, False)]
        bring_up(broker, 2)
        assert await leaders(wires[0]) == [(1, 0, [1, 3, 2]), (3, 1, [3, 1, 2]), (3, 0, [3, 1, 2])]
        async with WireClient(broker.addresses.kafka[1].address) as again:
            assert await produce_code(again, 0) == NOT_LEADER


@pytest.mark.parametrize("of_topic", [True, False])
async def test_too_few_replicas_in_sync_stop_acks_all(of_topic: bool) -> None:
    """With one of three in sync, min.insync.replicas=2 refuses acks=all before anything is written, but not acks=1.

    Set for the broker, it is that of the cluster from the first start on, as a controller makes it.
    """
    async with several(properties={} if of_topic else {"min.insync.replicas": "2"}) as (broker, wires):
        await create(wires[0], factor=3, **({"min_insync_replicas": "2"} if of_topic else {}))
        assert await produce_code(wires[0]) == 0
        take_down(broker, 2)
        assert await produce_code(wires[0]) == 0
        take_down(broker, 3)
        assert await produce_code(wires[0]) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce_code(wires[0], acks=1) == 0
        bring_up(broker, 3)
        assert await produce_code(wires[0]) == 0


async def test_a_partition_without_a_live_replica_heals() -> None:
    """Leader -1 and LEADER_NOT_AVAILABLE while all its replicas are down; the one that comes back leads, alone in sync."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[2, 3]])
        take_down(broker, 3)
        take_down(broker, 2)
        topic = (await metadata(wires[0])).topics[0]
        assert (topic.partitions[0].error_code, topic.partitions[0].leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await produce_code(wires[0]) == NOT_LEADER
        bring_up(broker, 2)
        assert await leaders(wires[0]) == [(2, 2, [2])]


async def find(wire: WireClient, key: str, kind: int = 0) -> Any:
    """Return the coordinator of a group (0) or a transactional id (1)."""
    return (await wire.call(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})).coordinators[0]


@pytest.mark.parametrize("kind", [0, 1])
async def test_the_coordinator_is_the_leader_of_the_internal_partition(kind: int) -> None:
    """The coordinator moves with the partition's leader, and all brokers name the same one."""
    async with several() as (broker, wires):
        first = [await find(wire, "k", kind) for wire in wires]
        assert {(one.node_id, one.error_code) for one in first} == {(1, 0)}
        take_down(broker, 1)
        after = [await find(wire, "k", kind) for wire in wires[1:]]
        assert {(one.node_id, one.port) for one in after} == {(2, broker.addresses.kafka[1].port)}


async def test_other_brokers_are_not_the_coordinator() -> None:
    """Other brokers answer NOT_COORDINATOR, and list only groups of their own."""
    async with several() as (_, wires):
        await find(wires[0], "g")
        beat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        codes = [(await wire.call(HEARTBEAT, 4, beat)).error_code for wire in wires]
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]
        described = [(await wire.call(DESCRIBE_GROUPS, 5, {"groups": ["g"]})).groups[0].error_code for wire in wires]
        assert described == [0, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]


@pytest.mark.parametrize(
    ("key", "version", "fields", "topic"),
    [
        (22, 4, {"transactional_id": "x", "transaction_timeout_ms": 1000}, "__transaction_state"),
        (25, 3, {"transactional_id": "x", "group_id": "g"}, "__transaction_state"),
        (26, 3, {"transactional_id": "x", "committed": True}, "__transaction_state"),
        (9, 7, {"group_id": "g", "topics": [], "require_stable": False}, "__consumer_offsets"),
    ],
)
async def test_the_key_of_a_request_chooses_its_coordinator(
    key: int, version: int, fields: dict[str, Any], topic: str
) -> None:
    """A request that names a group and a transactional id is for the coordinator of one of them."""
    counts = {"offsets_topic_num_partitions": 2, "transaction_state_log_num_partitions": 2}
    async with several(**counts) as (broker, wires):
        await find(wires[0], "g", 0)
        await find(wires[0], "x", 1)
        here, elsewhere = (2, 3) if topic == "__transaction_state" else (3, 2)
        # "x" belongs to partition 0 of a topic with two, "g" to partition 1.
        table(broker).move_leaders(
            [("__transaction_state", 0, 2), ("__transaction_state", 1, 3), ("__consumer_offsets", 1, 3)]
        )
        fields = {"producer_id": 1, "producer_epoch": 0, "generation_id": -1, "member_id": "", **fields}
        answers = [str(await wires[one - 1].call(key, version, fields)) for one in (here, elsewhere)]
        assert ["not_coordinator" in answer for answer in answers] == [False, True]


async def test_the_table_survives_a_restart(tmp_path: Any) -> None:
    """Leaders, epochs, in-sync replicas, and which brokers are down."""
    from tests.memory_env import MemoryEnv

    env = MemoryEnv()
    async with several(env=env) as (broker, wires):
        await create(wires[0], partitions=3, factor=3)
        table(broker).move_leader("t", 0, 3)
        take_down(broker, 2)
        before = await leaders(wires[0])
    async with several(env=env) as (broker, wires):
        assert table(broker).live == [1, 3]
        assert await leaders(wires[0]) == before
        bring_up(broker, 2)
        assert [isr for _, _, isr in await leaders(wires[0])] == [[1, 3, 2], [3, 1, 2], [3, 1, 2]]


async def test_the_oldest_metadata_leaves_out_replicas_that_are_down() -> None:
    """Version 0 has no list of those: their absence is the error of the partition, which still has its leader."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        take_down(broker, 3)
        (part,) = (await wires[0].call(METADATA, 0, {"topics": [{"name": "t"}]})).topics[0].partitions
        assert part.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
        assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (1, (1, 2), (1, 2))
        assert not (await metadata(wires[0])).topics[0].partitions[0].error_code
