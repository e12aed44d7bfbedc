"""Heartbeats of share groups: the epochs that they answer, and which of them has the assignment."""

from __future__ import annotations

from datetime import timedelta

from diamant.broker.groups.membership.share_service import SOONEST_HEARTBEAT_MS
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

INTERVAL_MS = 10_000
"""`group.share.assignment.interval.ms`: longer than a test takes, and no session ends within three."""


async def beat(one: ShareMemberClient, epoch: int | None = None) -> tuple[int, int | None]:
    """Send a heartbeat; return the member's epoch, and how many partitions are assigned if the answer says so."""
    answer = await one.heartbeat(epoch)
    assert int(answer.error_code) == 0
    assigned = answer.assignment
    return answer.member_epoch, None if assigned is None else sum(
        len(one.partitions) for one in assigned.topic_partitions
    )


async def next_beat_ms(one: ShareMemberClient) -> float:
    """Send a heartbeat; return when the next one is wanted."""
    return float((await one.heartbeat()).heartbeat_interval / timedelta(milliseconds=1))


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
    async with sharing(MemoryEnv(clock)) as (broker, wire):
        await move_start(wire, 0)
        await move_start(wire, 0)
        assert await epochs(wire) == (1, 1)
        one = member(broker, wire)
        assert await beat(one) == (2, 1)
        await one.heartbeat(-1)
        await move_start(wire, 1)
        assert await epochs(wire) == (3, 2)
        assert await beat(one, 0) == (4, 1)


async def test_a_group_that_a_moved_start_offset_began_is_there_after_a_start(clock: SettableClock) -> None:
    """It has no record of an epoch, as in Kafka, and its first member reads from that offset."""
    env = MemoryEnv(clock)
    async with sharing(env) as (_, wire):
        await wire.produce("t", [b"v"] * 3, timestamp=clock.now_ms())
        await move_start(wire, 2)
    async with running(env) as (broker, wire):
        broker.services.groups()
        assert await epochs(wire) == (1, 1)
        one = member(broker, wire)
        assert await beat(one) == (2, 1)


async def test_partitions_are_assigned_as_by_kafka() -> None:
    """The first heartbeat begins their states, one after the interval assigns them; later members get theirs with the first
    one, if the last assignment is an interval ago. Epochs and assignments are those of Kafka 4.3.1.
    """
    async with sharing(MemoryEnv(), group_share_assignment_interval_ms=INTERVAL_MS) as (broker, wire):
        one, two = member(broker, wire), member(broker, wire, SECOND)
        advance_ms = broker.services.groups().share.timers.advance_ms
        assert await beat(one) == (2, 0)
        assert await beat(one) == (2, None)
        advance_ms(INTERVAL_MS)
        assert await beat(one) == (3, 1)
        assert await beat(two) == (3, 0)
        advance_ms(INTERVAL_MS)
        assert await beat(two) == (4, 1)
        advance_ms(INTERVAL_MS)
        three = member(broker, wire, FIRST + SECOND)
        assert await beat(three) == (5, 1)
        await three.heartbeat(-1)
        assert await beat(three, 0) == (5, 0), "it has left and is back within the interval"
        advance_ms(INTERVAL_MS)
        assert await beat(three) == (7, 1)


async def test_a_member_that_waits_for_partitions_sends_its_next_heartbeat_when_they_are_due() -> None:
    """Kafka lets it wait for the interval of all heartbeats, five seconds with most clients."""
    async with sharing(MemoryEnv(), group_share_assignment_interval_ms=4_000) as (broker, wire):
        one, two = member(broker, wire), member(broker, wire, SECOND)
        advance_ms = broker.services.groups().share.timers.advance_ms
        assert SOONEST_HEARTBEAT_MS < await next_beat_ms(one) <= 4_000
        advance_ms(2_000)
        assert await next_beat_ms(two) <= 2_000
        advance_ms(2_000)
        for each in (one, two):
            assert await next_beat_ms(each) == 5_000
        assert await epochs(wire) == (3, 3)


async def test_partitions_are_assigned_though_the_brokers_clock_stands(clock: SettableClock) -> None:
    """The interval passes in real time, as sessions do; without one the next heartbeat is wanted soon."""
    async with sharing(MemoryEnv(clock), group_share_assignment_interval_ms=1) as (broker, wire):
        await member(broker, wire).wait_until_assigned()
    async with sharing(MemoryEnv(clock), group_share_assignment_interval_ms=0) as (broker, wire):
        one = member(broker, wire)
        assert await next_beat_ms(one) == SOONEST_HEARTBEAT_MS
        assert await beat(one) == (3, 1)
