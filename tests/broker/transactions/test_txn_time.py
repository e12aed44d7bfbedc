"""Effects of the clock: open transactions time out and are aborted, unused ids expire."""

from __future__ import annotations

import asyncio

import pytest

from diamant.broker.broker import Broker
from diamant.broker.transactions.transaction import LAST_CLIENT_EPOCH
from diamant.storage.env.clocks import SettableClock
from tests.broker.running import running
from tests.broker.stored import records_of
from tests.broker.transactions.txn_wire import TxnProducer, read_committed, started, wait_for_committed_offset
from tests.broker.wire import FETCH, WireClient, fetch_fields
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def clock() -> SettableClock:
    """A frozen clock."""
    return SettableClock()


async def wait_for(broker: Broker, state: str, transactional_id: str = "id") -> None:
    """Wait until the due jobs have brought a transaction to `state`."""
    await wait_until(lambda: broker.services.transactions().store.transactions[transactional_id].state.label == state)


@pytest.mark.parametrize("version", [9, 12], ids=["tv1", "tv2"])
async def test_a_transaction_left_open_is_aborted(clock: SettableClock, version: int) -> None:
    """At the check after its timeout readers continue, offsets are dropped, and its producer is fenced everywhere."""
    async with running(MemoryEnv(clock)) as (broker, wire):
        txn = await started(wire, timeout_ms=30_000)
        if version == 9:
            assert await txn.add(("t", 0)) == ["NONE"]
            assert await txn.add_offsets("g") == "NONE"
        assert await txn.produce("t", 0, version=version) == "NONE"
        assert await txn.commit_offset("g", "t", 5, version=3 if version == 9 else 5) == "NONE"
        assert await wait_for_committed_offset(wire, "g", "t") == ("UNSTABLE_OFFSET_COMMIT", -1)
        log = broker.node.topics.log("t", 0)
        clock.advance_ms(30_000)
        await asyncio.sleep(0)
        assert (await txn.describe()).state == "Ongoing"
        assert log.last_stable_offset == 0
        clock.advance_ms(10_001)
        await wait_for(broker, "CompleteAbort")
        assert log.last_stable_offset == log.log_end_offset == 2
        assert await read_committed(wire, "t") == []
        assert await wait_for_committed_offset(wire, "g", "t") == ("NONE", -1)
        assert await txn.produce("t", 1, version=version) == "INVALID_PRODUCER_EPOCH"
        assert await txn.end(commit=True, version=3 if version == 9 else 5) in ("PRODUCER_FENCED", "INVALID_TXN_STATE")
        assert await txn.end(commit=True, version=1) == "INVALID_PRODUCER_EPOCH"
        assert await txn.add(("t", 0)) == ["PRODUCER_FENCED"]
        await txn.wait_for_init()
        assert txn.epoch == 2


async def test_a_timeout_wakes_waiting_readers(clock: SettableClock) -> None:
    """A read_committed fetch that waits for an open transaction is answered when it is aborted."""
    async with running(MemoryEnv(clock)) as (_, wire):
        txn = await started(wire, timeout_ms=1000)
        assert await txn.produce("t", 0, version=12) == "NONE"
        await wire.produce("t", [b"after"])
        async with WireClient(f"{wire._host}:{wire._port}") as reader:
            request = fetch_fields("t", 0, max_wait_ms=60_000)
            request["isolation_level"] = 1
            correlation_id = reader.send(FETCH, 11, request)
            await reader.writer.drain()
            assert await read_committed(wire, "t") == []
            clock.advance_ms(11_001)
            fetched = (await reader.receive(FETCH, 11, correlation_id)).responses[0].partitions[0]
        assert fetched.last_stable_offset == 3
        assert [(each.producer_id, each.first_offset) for each in fetched.aborted_transactions] == [
            (txn.producer_id, 0)
        ]


async def test_a_timeout_counts_over_a_restart(clock: SettableClock) -> None:
    """A transaction open at a kill is aborted after its timeout, without a request."""
    env = MemoryEnv(clock)
    async with running(env) as (_, wire):
        txn = await started(wire, timeout_ms=1000)
        assert await txn.produce("t", 0, version=12) == "NONE"
        killed = env.copy(clock)
    async with running(killed) as (broker, wire):
        log = broker.node.topics.log("t", 0)
        assert log.last_stable_offset == 0
        await wait_until(lambda: broker.services.transactions().store.transactions != {})
        clock.advance_ms(11_001)
        await wait_for(broker, "CompleteAbort")
        assert log.last_stable_offset == 2


@pytest.mark.parametrize("server_version", [2, 1])
async def test_a_timeout_at_the_last_epoch(clock: SettableClock, server_version: int) -> None:
    """The reserved epoch ends the transaction; the producer continues with another id."""
    async with running(MemoryEnv(clock)) as (broker, wire):
        txn = await started(wire, timeout_ms=1000)
        broker.node.metadata.image.features["transaction.version"] = server_version
        store = broker.services.transactions().store
        store.put(store.transactions["id"]._replace(producer_epoch=LAST_CLIENT_EPOCH))
        txn.epoch = LAST_CLIENT_EPOCH
        assert await txn.add(("t", 0)) == ["NONE"]
        assert await txn.produce("t", 0) == "NONE"
        clock.advance_ms(11_001)
        await wait_for(broker, "CompleteAbort")
        assert (await txn.producers("t"))[txn.producer_id].producer_epoch == 32_767
        before = txn.producer_id
        await txn.wait_for_init()
        assert txn.producer_id != before
        assert txn.epoch == (1 if server_version == 2 else 0)


async def test_ids_that_nobody_uses_are_forgotten(clock: SettableClock) -> None:
    """A tombstone is written after transactional.id.expiration.ms; open transactions and ids in use stay."""
    env = MemoryEnv(clock)
    async with running(env, transaction_max_timeout_ms=2**31 - 2) as (broker, wire):
        txns = [TxnProducer(wire, name) for name in ("empty", "done", "open", "used")]
        await txns[0].wait_for_coordinator()
        await wire.create("t")
        for txn in txns:
            await txn.wait_for_init(timeout_ms=2**31 - 2)
        assert await txns[1].add(("t", 0)) == ["NONE"]
        assert await txns[1].end(commit=True) == "NONE"
        assert await txns[2].add(("t", 0)) == ["NONE"]
        clock.advance_ms(6 * DAY_MS)
        await txns[3].wait_for_init(timeout_ms=1000)
        clock.advance_ms(1 * DAY_MS + 3_600_000)
        await wait_until(lambda: len(broker.services.transactions().store.transactions) <= 2)
        assert sorted(broker.services.transactions().store.transactions) == ["open", "used"]
        assert (await txns[0].describe()).code == "TRANSACTIONAL_ID_NOT_FOUND"
        assert await txns[1].add(("t", 0)) == ["INVALID_PRODUCER_ID_MAPPING"]
        assert await txns[2].end(commit=True) == "NONE"
        stored = records_of(broker.node.topics.log("__transaction_state", 0))
        tombstones = [record.key for record in stored if record.value is None]
        assert tombstones == [b"\x00\x00\x00\x05empty", b"\x00\x00\x00\x04done"]
    async with running(env) as (broker, wire):
        txn = TxnProducer(wire, "empty")
        await txn.wait_for_coordinator()
        assert (await txn.describe()).code == "TRANSACTIONAL_ID_NOT_FOUND"
        assert sorted(broker.services.transactions().store.transactions) == ["open", "used"]
