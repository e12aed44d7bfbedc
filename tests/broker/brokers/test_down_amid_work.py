"""A broker goes down during work that it takes part in: a long fetch, a rebalance, a transaction, a snapshot, a compaction, an
erasure.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from diamant.broker.brokers import ports
from diamant.broker.config.listeners import Listener
from diamant.broker.topics.internal_names import TRANSACTION_STATE_TOPIC
from tests.broker.brokers.several import bring_up, create, several, table, take_down
from tests.broker.compacted import produce
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import verify
from tests.broker.erasure.obstacles import SCANNING, at_stage
from tests.broker.erasure.records import create_with_key, values_left
from tests.broker.held_rounds import Gate, gate
from tests.broker.request_fields import join_group
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import FETCH, FIND_COORDINATOR, METADATA, WireClient, fetch_fields
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["gate"]
JOIN_GROUP, SYNC_GROUP = 11, 14
READ_COMMITTED = 1
THREE: dict[str, Any] = {"diamant.brokers": "3", "default.replication.factor": "3"}


async def coordinator(wire: WireClient, key: str = "id", kind: int = 1) -> int:
    """Return the coordinator of a transactional id, or of a group (0)."""
    answer = await wire.call(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
    assert not answer.coordinators[0].error_code
    return int(answer.coordinators[0].node_id)


async def test_a_broker_that_goes_down_without_descriptors_cuts_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ports cannot be kept for its return, which is an error, but nobody hangs at a broker that is down. It still returns."""

    def refuse(listener: Listener) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with several() as (broker, wires):
        with monkeypatch.context() as patch:
            patch.setattr(ports, "bound_socket", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                take_down(broker, 1)
        async with asyncio.timeout(PATIENCE_S):
            assert await wires[0].is_closed()
        await create(wires[1])
        bring_up(broker, 1)
        async with WireClient(broker.addresses.kafka[0].address) as wire:
            assert [each.name for each in (await wire.call(METADATA, 12, {"topics": None})).topics] == ["t"]


async def test_a_long_fetch_is_cut_off_with_its_broker_and_waits_on_elsewhere() -> None:
    """The fetch at the leader that goes down ends at once, and nothing is kept for it. One at a follower waits for the record
    that the new leader accepts.
    """
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[1, 2, 3]])
        fields = fetch_fields("t", 0, max_wait_ms=60_000, min_bytes=1)
        at_leader, at_next, at_last = (asyncio.create_task(wire.call(FETCH, 11, fields)) for wire in wires)
        await wait_until(lambda: len(broker.node.purgatory) == 3)
        take_down(broker, 1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await at_leader
        await wait_until(lambda: len(broker.node.purgatory) == 2)
        async with WireClient(broker.addresses.kafka[1].address) as producer:
            await producer.produce("t", [b"value"])
        for waiting in (at_next, at_last):
            partition = (await waiting).responses[0].partitions[0]
            assert (partition.error_code, partition.high_watermark, bool(partition.records)) == (0, 1, True)


async def joined(wire: WireClient, member_id: str) -> Any:
    """Join the group `g`."""
    return await wire.call(JOIN_GROUP, 9, join_group("g", member_id=member_id, group_instance_id=None))


async def synced(wire: WireClient, join: Any, *assigned: str) -> tuple[int, bytes]:
    """Sync as this member; return error code and assignment. `assigned`: by the leader only, members, each of which is assigned
    its id.
    """
    assignments = [{"member_id": one, "assignment": one.encode()} for one in assigned]
    fields = {
        "group_id": "g",
        "generation_id": join.generation_id,
        "member_id": join.member_id,
        "assignments": assignments,
    }
    answer = await wire.call(SYNC_GROUP, 5, {**fields, "protocol_type": "consumer", "protocol_name": "range"})
    return answer.error_code, bytes(answer.assignment)


@pytest.mark.parametrize("parked", ["join", "sync"])
async def test_a_rebalance_is_completed_at_the_new_coordinator(parked: str) -> None:
    """The coordinator goes down while a member waits in JoinGroup for the other, or in SyncGroup for its leader. Both continue at
    the next coordinator, which knows them.
    """
    async with several(group_initial_rebalance_delay_ms=0) as (broker, wires), AsyncExitStack() as stack:
        old = await coordinator(wires[0], "g", 0)

        async def members(broker_id: int) -> list[WireClient]:
            address = broker.addresses.kafka[broker_id - 1].address
            return [await stack.enter_async_context(WireClient(address)) for _ in range(2)]

        leader, follower = await members(old)
        first, second = [(await joined(wire, "")).member_id for wire in (leader, follower)]
        assert (await joined(leader, first)).leader == first
        waiting: asyncio.Task[Any] = asyncio.create_task(joined(follower, second))
        group = broker.services.groups().group("g")
        assert group is not None
        assert group.classic is not None
        await wait_until(lambda: second in group.classic.members)
        if parked == "sync":
            assert (await joined(leader, first)).leader == first
            waiting = asyncio.create_task(synced(follower, await waiting))
            await asyncio.sleep(0)
        take_down(broker, old)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await waiting
        new = await coordinator(wires[table(broker).live[0] - 1], "g", 0)
        assert new != old
        leader, follower = await members(new)
        joins = await asyncio.gather(joined(leader, first), joined(follower, second))
        assert {(one.error_code, one.leader, one.generation_id) for one in joins} == {
            (0, first, joins[0].generation_id)
        }
        ends = await asyncio.gather(synced(leader, joins[0], first, second), synced(follower, joins[1]))
        assert ends == [(0, first.encode()), (0, second.encode())]


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


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("topic", ["t", TRANSACTION_STATE_TOPIC])
async def test_an_end_of_transaction_without_an_answer_is_repeated_at_the_new_coordinator(
    topic: str, version: int
) -> None:
    """The coordinator goes down in the middle of EndTxn, at its decision or its marker; the transaction ends once."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[1, 2, 3]])
        old = await coordinator(wires[0])
        producer = TxnProducer(wires[old - 1], "id")
        await producer.wait_for_init()
        assert await producer.add(("t", 0)) == ["NONE"]
        leader = TxnProducer(wires[0], "id")
        leader.producer_id, leader.epoch = producer.producer_id, producer.epoch
        assert await leader.produce("t", 0) == "NONE"

        def go() -> None:
            if table(broker).is_up(old):
                take_down(broker, old)

        for log in broker.node.topics.by_name[topic].logs.values():
            log.on_change.append(go)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await producer.end(commit=True, version=version)
        producer.wire = wires[await coordinator(wires[table(broker).live[0] - 1]) - 1]
        assert await producer.end(commit=True, version=version) == "NONE"
        log = broker.node.topics.log("t", 0)
        assert (log.log_end_offset, log.last_stable_offset) == (2, 2)
        assert await producer.add(("t", 0)) == ["NONE"]


async def test_a_snapshot_has_the_brokers_of_its_moment(tmp_path: Path) -> None:
    """A broker goes down before the state is copied: after a reset to the snapshot it is down again, and loses no record."""
    async with broker_at(tmp_path, **THREE) as broker:
        await broker.create_topic("t")
        await broker.produce("t", "value")
        snapshot = asyncio.create_task(broker.snapshot())
        await asyncio.sleep(0)
        take_down(broker, 1)
        copied = await snapshot
        bring_up(broker, 1)
        table(broker).move_leader("t", 0, 1)
        await broker.reset(copied)
        assert (table(broker).is_up(1), broker.services.ports.is_open(1)) == (False, False)
        assert table(broker).leader("t", 0) == 2
        assert broker.node.topics.log("t", 0).log_end_offset == 1


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
    async with broker_at(tmp_path, **THREE) as broker:
        await create_with_key(broker, others=5)

        def go() -> None:
            if table(broker).is_up(1):
                take_down(broker, 1)

        erasure = await erase(broker, now=True, progress=at_stage(stage, go))
        assert table(broker).leader("users", 0) == 2
        assert (erasure.state, values_left(broker)) == ("key-gone", [])
        assert (await verify(broker, erasure.certificate)).outcome == "valid"
