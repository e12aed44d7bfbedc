"""Share groups of several brokers: partitions have a leader, and records in flight outlive their broker."""

from __future__ import annotations

from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.groups.delivery.share_sessions import FINAL_EPOCH
from diamant.protocol.errors import ErrorCode
from diamant.storage.uuid_text import uuid_to_text
from tests.broker.brokers.several import create, several, table, take_down
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    DESCRIBE_SHARE_OFFSETS,
    RELEASE,
    SHARE_GROUP_DESCRIBE,
    ShareMemberClient,
    acquired,
    code,
    configure,
)
from tests.broker.wire import FIND_COORDINATOR, WireClient
from tests.waiting import wait_until


def leader_of(broker: Broker) -> int:
    """Return the broker that leads t-0."""
    return table(broker).partition("t", 0).leader


async def coordinator_of(wire: WireClient, group_id: str) -> int:
    """Return the broker that coordinates a group."""
    answer = await wire.call(FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": [group_id]})
    return int(answer.coordinators[0].node_id)


async def test_records_in_flight_outlive_the_broker_that_gave_them() -> None:
    """The new leader gives what was not acknowledged, the new coordinator knows the members; another broker refuses both."""
    async with several() as (broker, wires):
        assert (await create(wires[0], partitions=1, factor=3)).error_code == 0
        await configure(wires[0], "g", share_auto_offset_reset="earliest")
        topic_id = broker.node.topics.by_name["t"].topic_id
        leader = leader_of(broker)
        asked = wires[leader - 1]
        await asked.produce("t", [b"v"] * 4)
        coordinator = await coordinator_of(wires[0], "g")
        group = ShareMemberClient(wires[coordinator - 1], "g", "t", topic_id, FIRST)
        await group.wait_until_assigned()
        for number, wire in enumerate(wires, start=1):
            if number != coordinator:
                answer = await ShareMemberClient(wire, "g", "t", topic_id, FIRST).heartbeat(0)
                assert answer.error_code == ErrorCode.NOT_COORDINATOR
                described = await wire.call(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["g"]})
                assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
                offsets = {"groups": [{"group_id": "g", "topics": None}]}
                described = await wire.call(DESCRIBE_SHARE_OFFSETS, 1, offsets)
                assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
            if number != leader:
                other = ShareMemberClient(wire, "g", "t", topic_id, SECOND)
                assert code(await other.fetch(wait_ms=0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        one = ShareMemberClient(asked, "g", "t", topic_id, FIRST)
        assert acquired(await one.fetch()) == [[0, 3, 1]]
        assert code(await one.acknowledge([(1, 1, [ACCEPT])])) == 0
        take_down(broker, leader)
        sessions = broker.services.groups().share.delivery.sessions
        await wait_until(lambda: leader_of(broker) != leader and not sessions.by_key.keys() & {("g", FIRST, leader)})
        now = wires[leader_of(broker) - 1]
        two = ShareMemberClient(now, "g", "t", topic_id, SECOND)
        assert acquired(await two.fetch()) == [[0, 0, 1], [2, 3, 1]]
        again = ShareMemberClient(wires[await coordinator_of(now, "g") - 1], "g", "t", topic_id, FIRST)
        again.member_epoch = group.member_epoch
        assert (await again.heartbeat()).error_code == ErrorCode.NONE


async def test_a_member_has_a_session_with_each_leader() -> None:
    """Sessions of one member with two brokers count their own requests, have their own partitions, and end one by one."""
    async with several(group_share_max_share_sessions=1) as (broker, wires):
        assert (await create(wires[0], replicas=[[1, 2, 3], [2, 3, 1]])).error_code == 0
        await configure(wires[0], "g", share_auto_offset_reset="earliest")
        topic_id = broker.node.topics.by_name["t"].topic_id
        coordinator = await coordinator_of(wires[0], "g")
        await ShareMemberClient(wires[coordinator - 1], "g", "t", topic_id, FIRST).wait_until_assigned()
        ones = [ShareMemberClient(wire, "g", "t", topic_id, FIRST) for wire in wires[:2]]
        for _ in range(2):
            for partition, one in enumerate(ones):
                await one.wire.produce("t", [b"v"], partition=partition)
                assert [place.partition_index for place in places(await one.fetch(partition=partition))] == [partition]
        await ones[0].acknowledge([], FINAL_EPOCH)
        refused = ShareMemberClient(wires[1], "g", "t", topic_id, SECOND)
        assert code(await refused.fetch(partition=1, wait_ms=0)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert code(await ones[1].acknowledge([(0, 1, [ACCEPT])], partition=1)) == 0


async def test_what_was_held_is_available_at_once_with_a_new_leader() -> None:
    """The delivery is not counted; the end of the member's old session leaves alone what it got of the new leader."""
    async with several() as (broker, wires):
        assert (await create(wires[0], replicas=[[1, 2, 3]])).error_code == 0
        await configure(wires[0], "g", share_auto_offset_reset="earliest")
        topic_id = broker.node.topics.by_name["t"].topic_id
        await wires[0].produce("t", [b"v"] * 4)
        coordinator = await coordinator_of(wires[0], "g")
        await ShareMemberClient(wires[coordinator - 1], "g", "t", topic_id, FIRST).wait_until_assigned()
        old, new = (ShareMemberClient(wire, "g", "t", topic_id, FIRST) for wire in wires[:2])
        assert acquired(await old.fetch(max_records=2, batch_size=2)) == [[0, 3, 1]]
        assert code(await old.acknowledge([(0, 0, [ACCEPT]), (1, 1, [RELEASE])])) == 0
        assert acquired(await old.fetch()) == [[1, 1, 2]]
        table(broker).move_leader("t", 0, 2)
        assert code(await old.acknowledge([(1, 1, [ACCEPT])])) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(await new.fetch(acks=[(1, 1, [ACCEPT])])) == ErrorCode.INVALID_REQUEST
        assert acquired(await new.fetch()) == [[1, 1, 2], [2, 3, 1]]
        await old.acknowledge([], FINAL_EPOCH)
        assert code(await new.acknowledge([(1, 3, [ACCEPT])])) == 0


async def test_a_broker_that_does_not_lead_names_the_leader() -> None:
    """ShareFetch and ShareAcknowledge name the leader and its address beside NOT_LEADER_OR_FOLLOWER, as does Kafka."""
    async with several() as (broker, wires):
        assert (await create(wires[0], replicas=[[1, 2, 3]])).error_code == 0
        other = ShareMemberClient(wires[1], "g", "t", broker.node.topics.by_name["t"].topic_id, FIRST)
        address = broker.addresses.kafka[0]
        for answer in (await other.fetch(wait_ms=0), await other.acknowledge([(0, 0, [ACCEPT])])):
            (one,) = places(answer)
            assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (1, 0)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (1, address.host, address.port, "r1")


def places(answer: Any) -> list[Any]:
    """Return the partitions of an answer."""
    return [one for topic in answer.responses for one in topic.partitions]


async def test_the_states_of_share_partitions_have_a_coordinator_while_brokers_go() -> None:
    """Their topic has a replica on each broker, as `__consumer_offsets` has, so another broker leads when one goes."""
    async with several() as (broker, wires):
        assert (await create(wires[0], partitions=1, factor=3)).error_code == 0
        topic_id = broker.node.topics.by_name["t"].topic_id
        coordinator = await coordinator_of(wires[0], "g")
        await ShareMemberClient(wires[coordinator - 1], "g", "t", topic_id, FIRST).wait_until_assigned()
        assert sorted(table(broker).partition("__share_group_state", 0).replicas) == [1, 2, 3]
        asked = {"key_type": 2, "coordinator_keys": [f"g:{uuid_to_text(topic_id)}:0"]}
        (found,) = (await wires[0].call(FIND_COORDINATOR, 6, asked)).coordinators
        take_down(broker, found.node_id)
        (now,) = (await wires[found.node_id % 3].call(FIND_COORDINATOR, 6, asked)).coordinators
        assert now.error_code == ErrorCode.NONE
        assert now.node_id in {1, 2, 3} - {found.node_id}
