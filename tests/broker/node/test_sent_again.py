"""An idempotent producer sends a batch again that is in the log: it is there once, whatever the disk does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.storage.log.log import Log
from tests.broker.node.test_sigkill import read_all
from tests.broker.running import running
from tests.injected_faults import InjectedFault
from tests.memory_env import MemoryEnv

VALUES = [b"%d" % number + b"x" * 600 for number in range(20)]
SEGMENT_BYTES = 1000
"""Of one record."""


def produce(servers: str, values: Sequence[bytes]) -> None:
    """Send each value in a request of its own, five at a time, by librdkafka, and wait until all are acknowledged."""
    from confluent_kafka import Producer

    again = {"retry.backoff.ms": 5, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}
    producer = Producer({
        "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1, **again
    })  # fmt: skip
    errors = set()
    for value in values:
        producer.produce("t", value, partition=0, on_delivery=lambda error, _: errors.add(error))
    assert producer.flush(60) == 0
    assert errors == {None}


def fail_flush(env: MemoryEnv, _: Broker, log: Log) -> list[InjectedFault]:
    """The first batch is in the log and cannot be synced, the second finds no room."""
    log.become_leader(log.leader_epoch + 1)
    epochs = env.fail("create", f"{log.path}/leader-epoch-checkpoint.tmp", errno.EMFILE, times=1)
    return [epochs, env.fail("append", f"{log.path}/*.log", errno.ENOSPC, after=1, times=1)]


def fail_roll(env: MemoryEnv, broker: Broker, log: Log) -> list[InjectedFault]:
    """The answer to the first batch is lost; there is no room for the segment that the next two would begin."""
    broker.faults.add("Produce", drop=True, after_applying=True, times=1)
    return [env.fail("create", f"{log.path}/*.log", errno.ENOSPC, times=2)]


def fail_first(env: MemoryEnv, _: Broker, log: Log) -> list[InjectedFault]:
    """There is no room for the first batch, and for the next there is."""
    return [env.fail("append", f"{log.path}/*.log", errno.ENOSPC, times=1)]


@pytest.mark.parametrize("fail", [fail_flush, fail_roll, fail_first])
async def test_a_batch_in_the_log_is_not_said_to_be_missing(
    fail: Callable[[MemoryEnv, Broker, Log], list[InjectedFault]],
) -> None:
    """Librdkafka begins a new epoch, in which nothing is a duplicate, when the sequence has a gap after an error. So a batch
    that is in the log is not answered by an error, and the next ones that fail leave no gap behind it.
    """
    env = MemoryEnv()
    async with running(env) as (broker, client):
        await client.create("t", flush_messages="1", internal_segment_bytes=str(SEGMENT_BYTES))
        faults = fail(env, broker, broker.node.topics.log("t", 0))
        await asyncio.to_thread(produce, broker.bootstrap_servers, VALUES)
        assert faults[0].hits > 0
        assert await read_all(client, "t") == VALUES


async def test_a_duplicate_needs_no_room() -> None:
    """A batch that was sent again is answered with its offset, also if its segment is full and no other can begin."""
    env = MemoryEnv()
    async with running(env) as (broker, client):
        await client.create("t", internal_segment_bytes=str(SEGMENT_BYTES))
        sent = {"producer_id": 7, "producer_epoch": 0}
        await client.produce("t", VALUES[:1], base_sequence=0, **sent)
        env.fail("create", f"{broker.node.topics.log('t', 0).path}/*.log", errno.ENOSPC)
        again = await client.produce("t", VALUES[:1], base_sequence=0, **sent)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        refused = await client.produce("t", VALUES[1:2], base_sequence=1, **sent)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_first_batch_that_finds_no_room_is_not_overtaken() -> None:
    """An unknown producer may begin at any sequence, but not behind a batch that was refused for want of room; once that one
    is there, the next are taken.
    """
    env = MemoryEnv()
    async with running(env) as (broker, client):
        await client.create("t")
        fault = env.fail("append", f"{broker.node.topics.log('t', 0).path}/*.log", errno.ENOSPC, times=1)
        codes = []
        for sequence in (5, 6, 5, 6):
            sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            codes.append(ErrorCode((await client.produce("t", VALUES[:1], **sent)).error_code).name)
        assert (codes, fault.hits) == (["KAFKA_STORAGE_ERROR", "OUT_OF_ORDER_SEQUENCE_NUMBER", "NONE", "NONE"], 1)
