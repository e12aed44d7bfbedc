"""A broker goes down during work that it takes part in: a transaction, a compaction, an erasure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.brokers.several import bring_up, create, several, table, take_down
from tests.broker.compacted import produce
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import verify
from tests.broker.erasure.obstacles import SCANNING, at_stage
from tests.broker.erasure.records import create_with_key, values_left
from tests.broker.held_rounds import Gate, gate
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import FETCH, FIND_COORDINATOR, WireClient, fetch_fields
from tests.memory_env import MemoryEnv

__all__ = ["gate"]
READ_COMMITTED = 1


async def coordinator(wire: WireClient) -> int:
    """The coordinator of the transactional id `id`."""
    answer = await wire.call(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["id"]})
    assert not answer.coordinators[0].error_code
    return int(answer.coordinators[0].node_id)


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_an_open_transaction_ends_at_the_new_coordinator(commit: bool, is_back: bool) -> None:
    """The new coordinator knows the transaction, with the producer's id and epoch; an old one that is back does not."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[1, 2, 3]])
        old = await coordinator(wires[0])
        producer = TxnProducer(wires[old - 1], "id")
        await producer.wait_for_init()
        assert await producer.add(("t", 0)) == ["NONE"]
        leader = TxnProducer(wires[0], "id")
        leader.producer_id, leader.epoch = producer.producer_id, producer.epoch
        assert await leader.produce("t", 0) == "NONE"
        take_down(broker, old)
        live = table(broker).live[0]
        new = await coordinator(wires[live - 1])
        assert new != old
        if is_back:
            bring_up(broker, old)
            async with WireClient(broker.addresses.kafka[old - 1].address) as again:
                producer.wire = again
                assert await producer.end(commit=commit) == "NOT_COORDINATOR"
        producer.wire = wires[new - 1]
        assert await producer.end(commit=commit) == "NONE"
        at = wires[table(broker).leader("t", 0) - 1]
        response = await at.call(FETCH, 11, {**fetch_fields("t", 0), "isolation_level": READ_COMMITTED})
        part = response.responses[0].partitions[0]
        assert (part.last_stable_offset, len(part.aborted_transactions or ())) == (2, not commit)
        await producer.wait_for_init()


@pytest.mark.parametrize("down", [(1,), (1, 2), (1, 2, 3)])
async def test_a_compaction_is_complete_whoever_goes_down(gate: Gate, down: tuple[int, ...]) -> None:
    """The leader, the next one, all replicas: there is one log, which it cleans."""
    async with several(env=MemoryEnv()) as (broker, wires):
        await create(wires[0], replicas=[[1, 2, 3]], cleanup_policy="compact")
        for value in "123":
            await produce(wires[0], "t", f"a={value}")
        compacting = asyncio.create_task(broker.compact("t"))
        await asyncio.to_thread(gate.begun.wait, 60)
        for broker_id in down:
            take_down(broker, broker_id)
        gate.opened.set()
        assert (await compacting).removed == {"superseded": 2}


@pytest.mark.parametrize("stage", ["compacting", SCANNING])
async def test_an_erasure_is_complete_whoever_goes_down(tmp_path: Path, stage: str) -> None:
    """The leader goes down in the middle of an erasure; the certificate is valid."""
    three = {"diamant.brokers": "3", "default.replication.factor": "3"}
    async with broker_at(tmp_path, **three) as broker:
        await create_with_key(broker, others=5)

        def go() -> None:
            if table(broker).is_up(1):
                take_down(broker, 1)

        erasure = await erase(broker, now=True, progress=at_stage(stage, go))
        assert table(broker).leader("users", 0) == 2
        assert (erasure.state, values_left(broker)) == ("key-gone", [])
        assert (await verify(broker, erasure.certificate)).outcome == "valid"
