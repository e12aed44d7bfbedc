"""Heartbeats of share groups: the epochs that they answer, and which of them has the assignment."""

from __future__ import annotations

from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import (
    ALTER_SHARE_OFFSETS,
    SHARE_GROUP_DESCRIBE,
    ShareMemberClient,
)
from tests.broker.groups.share.test_share_wire import member, sharing
from tests.broker.running import running
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

INTERVAL_MS = 1_000
"""`group.share.assignment.interval.ms`, Kafka's default."""
KAFKAS_INTERVAL = {"group_share_assignment_interval_ms": INTERVAL_MS}


async def beat(one: ShareMemberClient, epoch: int | None = None) -> tuple[int, int | None]:
    """Send a heartbeat; return the member's epoch, and how many partitions are assigned if the answer says so."""
    answer = await one.heartbeat(epoch)
    assert int(answer.error_code) == 0
    assigned = answer.assignment
    return answer.member_epoch, None if assigned is None else sum(
        len(one.partitions) for one in assigned.topic_partitions
    )


async def epochs(wire: WireClient) -> tuple[int, int]:
    """Return the epochs of the group `g` and of its assignment."""
    answer = await wire.call(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["g"]})
    return answer.groups[0].group_epoch, answer.groups[0].assignment_epoch


async def move_start(wire: WireClient, offset: int) -> None:
    """Move the start offset of the group's partition."""
    partitions = [{"partition_index": 0, "start_offset": offset}]
    answer = await wire.call(
        ALTER_SHARE_OFFSETS, 0, {"group_id": "g", "topics": [{"topic_name": "t", "partitions": partitions}]}
    )
    assert int(answer.responses[0].partitions[0].error_code) == 0


async def test_a_moved_start_offset_leaves_the_epochs_alone(clock: SettableClock) -> None:
    """They are those of Kafka 4.3.1: 1 for a group that a moved offset begins, one more for each member that comes or goes."""
    async with sharing(MemoryEnv(clock), **KAFKAS_INTERVAL) as (broker, wire):
        await move_start(wire, 0)
        await move_start(wire, 0)
        assert await epochs(wire) == (1, 1)
        one = member(broker, wire)
        assert await beat(one) == (2, 1)
        await one.heartbeat(-1)
        await move_start(wire, 1)
        assert await epochs(wire) == (3, 2)
        clock.advance_ms(INTERVAL_MS)
        assert await beat(one, 0) == (4, 1)


async def test_a_group_that_a_moved_start_offset_began_is_there_after_a_start(clock: SettableClock) -> None:
    """It has no record of an epoch, as in Kafka, and its first member reads from that offset."""
    env = MemoryEnv(clock)
    async with sharing(env) as (_, wire):
        await wire.produce("t", [b"v"] * 3, timestamp=clock.now_ms())
        await move_start(wire, 2)
    async with running(env) as (broker, wire):
        await broker.services.groups.loaded()
        assert await epochs(wire) == (1, 1)
        one = member(broker, wire)
        assert await beat(one) == (2, 1)


async def test_a_member_that_joins_later_is_assigned_as_by_kafka(clock: SettableClock) -> None:
    """With its first heartbeat if the last assignment is an interval ago, else with the first one that is."""
    async with sharing(MemoryEnv(clock), **KAFKAS_INTERVAL) as (broker, wire):
        one, two = member(broker, wire), member(broker, wire, SECOND)
        assert await beat(one) == (2, 1), "the first member of all: Kafka assigns with a later heartbeat"
        clock.advance_ms(INTERVAL_MS - 1)
        assert await beat(two) == (2, 0)
        clock.advance_ms(1)
        assert await beat(two) == (3, 1)
        clock.advance_ms(INTERVAL_MS)
        three = member(broker, wire, FIRST + SECOND)
        assert await beat(three) == (4, 1)
        await three.heartbeat(-1)
        assert await beat(three, 0) == (4, 0), "it has left and is back within the interval"
