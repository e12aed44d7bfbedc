"""Resets during rebalances, compactions, transactions, erasures, the creation of topics, and with active clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from diamant.broker.broker import Broker
from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.operation_errors import BrokerStopping, NotPossible
from diamant.protocol.errors import ErrorCode
from diamant.storage import names
from tests.broker.compacted import SMALL
from tests.broker.compacted import fill as fill_keyed
from tests.broker.compacted import read as read_keyed
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.erasing import erase, intents_of
from tests.broker.erasure.records import create_with_key
from tests.broker.groups.consumer.consumer_wire import PROPERTIES, A, B, Members
from tests.broker.groups.offsets.offset_requests import find_coordinator, join, list_groups
from tests.broker.held_rounds import Gate, gate
from tests.broker.snapshots.copied import config, fill
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import WireClient
from tests.waiting import wait_until

__all__ = ["gate"]


async def test_a_group_in_a_rebalance(tmp_path: Path) -> None:
    """A new member is unknown, an old one is fenced or continues. Both rejoin and share the partitions."""
    async with (
        Broker(config(tmp_path, properties=PROPERTIES)) as broker,
        WireClient(broker.bootstrap_servers) as wire,
    ):
        await wire.create("t1", 4)
        await find_coordinator(wire)
        members = Members(wire, broker)
        await members.wait_until_loaded("g")
        await members.beat("g", A, 0, names=["t1"])
        snapshot = await broker.snapshot()
        epoch, _ = await members.beat("g", B, 0, names=["t1"])
        assert (await members.state("g"))[0] == "Reconciling"
        await broker.reset(snapshot, seamless=True)
        assert (await members.state("g"))[0] == "Stable"
        assert await members.error("g", B, epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await members.error("g", A, epoch) == ErrorCode.FENCED_MEMBER_EPOCH
        await members.beat("g", A, 0, names=["t1"])
        epoch, assignment = await members.beat("g", B, 0, names=["t1"])
        assert (epoch, assignment) == (3, {})


async def test_a_classic_group_in_a_rebalance(tmp_path: Path) -> None:
    """A pending join is told to find its coordinator; then the member can join."""
    async with (
        Broker(config(tmp_path, properties=PROPERTIES)) as broker,
        WireClient(broker.bootstrap_servers) as wire,
        WireClient(broker.bootstrap_servers) as other,
    ):
        await wire.create("t")
        await find_coordinator(wire)
        snapshot = await broker.snapshot()
        await join(wire, "g", "t")
        waiting = asyncio.create_task(join(other, "g", "t", sync=False))
        states = broker.services.groups().classic.count_by_state
        await wait_until(lambda: states()[GroupState.PREPARING_REBALANCE] == 1)
        await broker.reset(snapshot, seamless=True)
        with pytest.raises(AssertionError, match="coordinator"):
            await waiting
        assert await list_groups(wire) == {}
        await join(other, "g", "t")


async def test_a_reset_ends_a_compaction_with_an_error(tmp_path: Path, gate: Gate) -> None:
    """The caller of a compaction gets an error. The records are those of the snapshot, and another compaction cleans them."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        await fill_keyed(wire, "t", 100)
        before = await read_keyed(wire, "t")
        snapshot = await broker.snapshot()
        compaction = asyncio.create_task(broker.compact("t"))
        await wait_until(gate.begun.is_set)
        await broker.reset(snapshot, seamless=True)
        with pytest.raises(BrokerStopping):
            await compaction
        assert await read_keyed(wire, "t") == before
        gate.opened.set()
        assert (await broker.compact("t")).is_clean
        assert len(await read_keyed(wire, "t")) < 30


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_open_transaction(tmp_path: Path, is_known: bool) -> None:
    """The records of the transaction are gone. Its producer gets errors that make clients start over, and can use its id
    again.
    """
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        producer = TxnProducer(wire, "x")
        if is_known:
            await producer.wait_for_coordinator()
            await producer.wait_for_init()
        snapshot = await broker.snapshot()
        await producer.wait_for_coordinator()
        await producer.wait_for_init()
        assert await producer.add(("t", 0)) == ["NONE"]
        assert await producer.produce("t", 0) == "NONE"
        await broker.reset(snapshot, seamless=True)
        told = [await producer.produce("t", 1), *await producer.add(("t", 0)), await producer.end(commit=True)]
        if is_known:
            assert told == ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "PRODUCER_FENCED"]
        else:
            assert told == ["NOT_ENOUGH_REPLICAS", "NOT_COORDINATOR", "NOT_COORDINATOR"]
            await producer.wait_for_coordinator()
            assert await producer.end(commit=True) == "INVALID_PRODUCER_ID_MAPPING"
        log = broker.node.topics.log("t", 0)
        assert (log.log_end_offset, log.last_stable_offset) == (0, 0)
        await producer.wait_for_init()
        assert await producer.add(("t", 0)) == ["NONE"]
        assert await producer.produce("t", 0) == "NONE"
        assert await producer.end(commit=True) == "NONE"
        assert [one.value async for _, one in broker.records("t")] == [b"value"]


@pytest.mark.parametrize("seamless", [False, True])
async def test_aiokafka_continues(tmp_path: Path, seamless: bool) -> None:
    """A producer continues at the end of the snapshot, and a consumer reads the topic again from its start."""
    async with Broker(config(tmp_path)) as broker:
        await broker.create_topic("t")
        await broker.produce("t", "kept")
        snapshot = await broker.snapshot()
        servers = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10}
        async with (
            asyncio.timeout(60),
            AIOKafkaProducer(**servers) as producer,
            AIOKafkaConsumer(
                "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, **servers
            ) as consumer,
        ):
            for _ in range(4):
                await producer.send_and_wait("t", b"later")
            assert [(await consumer.getone()).value for _ in range(5)] == [b"kept", *[b"later"] * 4]
            await broker.reset(snapshot, seamless=seamless)
            assert (await producer.send_and_wait("t", b"again")).offset == 1
            await producer.send_and_wait("t", b"and again")
            found = [(await consumer.getone()).value for _ in range(3)]
            assert found == [b"kept", b"again", b"and again"]


async def test_an_erasure_refuses_it(tmp_path: Path) -> None:
    """The error has the reason and the remedy; nothing is reset."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        snapshot = await broker.snapshot()
        hidden = (tmp_path / "data.snapshots").rename(tmp_path / "hidden")  # else the erasure is refused
        erasing = asyncio.create_task(erase(broker))
        await wait_until(lambda: bool(intents_of(broker)))
        hidden.rename(tmp_path / "data.snapshots")
        with pytest.raises(
            NotPossible, match=r"restore the data that it removes: let it finish, or cancel it \(`diamant cancel`\)"
        ):
            await broker.reset(snapshot)
        erasing.cancel()


async def test_topics_in_the_making(tmp_path: Path) -> None:
    """A topic exists with its directory or not at all. No partition being created appears in the new state."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        for round_ in range(5):
            making = [asyncio.create_task(broker.create_topic(f"new-{round_}-{number}", 3)) for number in range(3)]
            for _ in range(round_):
                await asyncio.sleep(0)
            await broker.reset(snapshot)
            await asyncio.wait(making)
            for task in making:
                task.exception()
            found = {names.parse_partition_dir(path.name)[0] for path in data_of(broker).glob("*-[0-9]")}
            assert found - {"__cluster_metadata"} == {*broker.node.topics.by_name}
