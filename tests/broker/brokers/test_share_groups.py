"""Share groups of several brokers: partitions have a leader, and records in flight outlive their broker."""

from __future__ import annotations

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.storage.uuid_text import uuid_to_text
from tests.broker.brokers.several import create, several, table, take_down
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    DESCRIBE_SHARE_OFFSETS,
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
        await wait_until(lambda: leader_of(broker) != leader and not sessions.by_key.keys() & {("g", FIRST)})
        now = wires[leader_of(broker) - 1]
        two = ShareMemberClient(now, "g", "t", topic_id, SECOND)
        assert acquired(await two.fetch()) == [[0, 0, 2], [2, 3, 2]]
        again = ShareMemberClient(wires[await coordinator_of(now, "g") - 1], "g", "t", topic_id, FIRST)
        again.member_epoch = group.member_epoch
        assert (await again.heartbeat()).error_code == ErrorCode.NONE


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
