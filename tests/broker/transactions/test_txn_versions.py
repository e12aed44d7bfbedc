"""`transaction.version`: the finalized level of a directory decides how transactions are written and ended."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from diamant.broker.broker import Broker
from diamant.storage.kraft.format import format_directory
from tests.broker.real_clients import TIMEOUT_S, ConfluentKafka
from tests.broker.running import running
from tests.broker.stored import records_of
from tests.broker.transactions.txn_cases import CASES, run_case
from tests.broker.transactions.txn_wire import TxnProducer, read_committed, started
from tests.broker.wire import API_VERSIONS, WireClient
from tests.memory_env import MemoryEnv


def directory(level: int) -> MemoryEnv:
    """Return a directory formatted with this `transaction.version`."""
    env = MemoryEnv()
    features = {"metadata.version": 25, "group.version": 1, "transaction.version": level}
    format_directory(env, "/data", features=features)
    return env


async def finalized(wire: WireClient) -> dict[str, int]:
    """Return the level that ApiVersions reports."""
    response = await wire.call(API_VERSIONS, 3, {"client_software_name": "test", "client_software_version": "1"})
    assert response.finalized_features_epoch > 0
    return {feature.name: feature.max_version_level for feature in response.finalized_features}


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_transactions_at_every_level(level: int) -> None:
    """Clients get the level; values have version 0 or 1; TV1 always works, TV2 from level 1 on, as in Kafka."""
    env = directory(level)
    async with running(env) as (broker, wire):
        assert (await finalized(wire)).get("transaction.version", 0) == level
        txn = await started(wire)
        assert await txn.add(("t", 0)) == ["NONE"]
        assert await txn.produce("t", 0, values=(b"tv1",)) == "NONE"
        assert await txn.end(commit=True) == "NONE"
        tv2 = "NONE" if level else "UNSUPPORTED_VERSION"
        assert await txn.produce("t", 1, version=12, values=(b"tv2",)) == tv2
        assert await txn.end(commit=True, version=5) == tv2
        assert await read_committed(wire, "t") == [b"tv1", b"tv2"][: 2 if level else 1]
        stored = records_of(broker.node.topics.log("__transaction_state", 0))
        versions = {record.value[:2] for record in stored if record.value}
        assert versions == {b"\x00\x01" if level else b"\x00\x00"}
    async with running(env) as (_, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        assert (await txn.describe()).state == "CompleteCommit"


@pytest.mark.parametrize(("level", "code"), [(0, "PRODUCER_FENCED"), (1, "PRODUCER_FENCED"), (2, "NONE")])
async def test_a_fenced_producer_that_comes_back(level: int, code: str) -> None:
    """After an abort by another producer, the fenced one may use its old epoch from level 2 on, as in Kafka."""
    async with running(directory(level)) as (_, wire):
        txn = await started(wire)
        assert await txn.add(("t", 0)) == ["NONE"]
        assert await txn.init() == "CONCURRENT_TRANSACTIONS"
        assert (await txn.describe()).producer_epoch == 1
        assert await txn.init(producer_id=txn.producer_id, epoch=0) == code


async def test_an_old_directory_has_no_transaction_version() -> None:
    """A directory of an earlier version of this broker gives all clients TV1."""
    env = MemoryEnv()
    format_directory(env, "/data", features={"metadata.version": 25, "group.version": 1})
    async with running(env) as (broker, wire):
        assert "transaction.version" not in await finalized(wire)
        assert broker.services.transactions().store.server_version == 0


@pytest.mark.parametrize("name", CASES)
async def test_every_step_gets_kafkas_code_and_state(diamant_broker: Broker, name: str) -> None:
    """Every step gets Kafka's error code, and every transaction Kafka's state and epoch."""
    run_name = f"{name}-{uuid.uuid4().hex[:8]}"
    assert await run_case(diamant_broker.bootstrap_servers, name, run_name=run_name) == []


@pytest.mark.slow
async def test_a_tv1_client_takes_over_from_a_tv2_client(diamant_broker: Broker, diamant_topic: str) -> None:
    """One id is used by a TV2 client, then by librdkafka with TV1, then by TV2 again."""
    from confluent_kafka import Producer

    servers = diamant_broker.bootstrap_servers
    async with WireClient(servers) as wire:
        txn = await started(wire, topic=diamant_topic, transactional_id=diamant_topic)
        for value in (b"tv2", b"tv2 again"):
            await txn.wait_for_init()
            assert await txn.produce(diamant_topic, 0, version=12, values=(value,)) == "NONE"
            assert await txn.end(commit=True, version=5) == "NONE"
            producer = Producer({"bootstrap.servers": servers, "transactional.id": diamant_topic})
            await asyncio.to_thread(producer.init_transactions, TIMEOUT_S)
            producer.begin_transaction()
            producer.produce(diamant_topic, value + b", then tv1", partition=0)
            await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)
    read = await asyncio.to_thread(ConfluentKafka().consume, servers, diamant_topic)
    assert [one.value for one in read] == [b"tv2", b"tv2, then tv1", b"tv2 again", b"tv2 again, then tv1"]
