"""Writes with acks=all during which replicas leave: what followers have decides, as in Kafka 4.3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.brokers.several import bring_up, create, several, table, take_down
from tests.broker.held_disk import HeldDisk, held_disk
from tests.broker.wire import DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, PRODUCE, WireClient, batch_of
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until

LONG_MS = 600_000


def request(partitions: int, timeout_ms: int, acks: int) -> dict[str, Any]:
    """One record for each of the first partitions of t."""
    data = [{"index": index, "records": bytes(batch_of([b"v"]))} for index in range(partitions)]
    return {"acks": acks, "timeout_ms": timeout_ms, "topic_data": [{"name": "t", "partition_data": data}]}


@asynccontextmanager
async def writing(
    *, partitions: int = 1, timeout_ms: int = LONG_MS, min_isr: int = 3, acks: int = -1
) -> AsyncIterator[tuple[Broker, WireClient, asyncio.Task[Any], HeldDisk]]:
    """A write to the first partitions of t, led by broker 1, that waits for the disk under the last of them."""
    env = MemoryEnv()
    async with several(env=env) as (broker, wires):
        await create(wires[0], replicas=[[1, 2, 3]] * partitions, min_insync_replicas=str(min_isr), flush_messages="1")
        log = broker.node.topics.log("t", partitions - 1)
        with held_disk([log], env) as disk:
            producing = asyncio.create_task(wires[0].call(PRODUCE, 9, request(partitions, timeout_ms, acks)))
            await asyncio.to_thread(disk.begun[log].wait, PATIENCE_S)
            yield broker, wires[1], producing, disk


async def results(producing: asyncio.Task[Any]) -> list[tuple[int, int]]:
    """Return the error code and the base offset of each partition."""
    return [(one.error_code, one.base_offset) for one in (await producing).responses[0].partition_responses]


async def written(broker: Broker, disk: HeldDisk, partition: int = 0) -> None:
    """Let the disk go on, and wait until the answer waits for replicas."""
    disk.go_on(broker.node.topics.log("t", partition))
    await wait_until(lambda: len(broker.node.purgatory) == 1)


async def test_replicas_that_left_before_they_had_the_records_are_waited_for() -> None:
    """The high watermark stays before the records; the time of the request ends, REQUEST_TIMED_OUT."""
    async with writing(timeout_ms=300) as (broker, _, producing, disk):
        take_down(broker, 3)
        disk.go_on(log := broker.node.topics.log("t", 0))
        assert await results(producing) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
        assert (log.log_end_offset, table(broker).end_at(1, log)) == (1, 0)


async def test_replicas_that_left_when_they_had_the_records() -> None:
    """Of partition 0 the high watermark is beyond them: NOT_ENOUGH_REPLICAS_AFTER_APPEND. Partition 1 is still before them."""
    async with writing(partitions=2, timeout_ms=300) as (broker, _, producing, disk):
        take_down(broker, 3)
        disk.go_on(broker.node.topics.log("t", 1))
        after, before = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT
        assert await results(producing) == [(after, 0), (before, 0)]


async def test_replicas_that_come_back_in_time_get_the_records() -> None:
    """The write succeeds."""
    async with writing() as (broker, _, producing, disk):
        take_down(broker, 3)
        await written(broker, disk)
        bring_up(broker, 3)
        assert await results(producing) == [(0, 0)]


async def test_a_lower_minimum_completes_the_write() -> None:
    """As the next write, for which there are enough replicas now."""
    async with writing() as (broker, wire, producing, disk):
        take_down(broker, 3)
        await written(broker, disk)
        config = {"name": "min.insync.replicas", "config_operation": 0, "value": "2"}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
        await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert await results(producing) == [(0, 0)]


async def test_a_leader_that_moves_ends_the_wait() -> None:
    """NOT_LEADER_OR_FOLLOWER, whether it moves before the disk has the records or after."""
    async with writing() as (broker, _, producing, disk):
        take_down(broker, 3)
        await written(broker, disk)
        table(broker).move_leader("t", 0, 2)
        assert (await results(producing))[0][0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("acks", "code"), [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.NONE)])
async def test_a_leader_that_moves_during_the_write(acks: int, code: ErrorCode) -> None:
    """With acks=1 the leader answers what it has written."""
    async with writing(acks=acks) as (broker, _, producing, disk):
        table(broker).move_leader("t", 0, 2)
        disk.go_on(broker.node.topics.log("t", 0))
        assert (await results(producing))[0][0] == code


async def test_a_topic_deleted_during_the_write() -> None:
    """A waiting produce request gets UNKNOWN_TOPIC_OR_PARTITION at once when its topic is deleted."""
    async with writing() as (broker, wire, producing, disk):
        take_down(broker, 3)
        await written(broker, disk)
        await wire.call(DELETE_TOPICS, 1, {"topic_names": ["t"], "timeout_ms": 1000})
        assert (await results(producing))[0][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_broker_stops_while_a_write_waits() -> None:
    """It answers REQUEST_TIMED_OUT, and does not wait for replicas."""
    async with writing() as (broker, _, producing, disk):
        take_down(broker, 3)
        await written(broker, disk)
        await broker.stop()
        assert (await results(producing))[0][0] == ErrorCode.REQUEST_TIMED_OUT
