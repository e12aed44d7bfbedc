"""The coordinators' writes: batches like Kafka's, flushed as `flush.messages` requires."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.network.api import CloseConnection
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.classic.direct import Direct, join_request
from tests.broker.groups.offsets.offset_requests import NONE, commit, find_coordinator, wait_until_loaded
from tests.broker.held_disk import held_disk
from tests.broker.request_fields import offset_commit
from tests.broker.transactions.txn_wire import started
from tests.broker.wire import WireClient
from tests.golden_groups import consumer_offsets_log
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until


async def test_a_commit_is_on_disk_when_it_is_answered(make_broker: Callable[..., Broker]) -> None:
    """With `log.flush.interval.messages=1`, OffsetCommit is answered after the sync."""
    async with make_broker(log_flush_interval_messages=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("t", 1)
        assert await find_coordinator(client) is ErrorCode.NONE
        await wait_until_loaded(broker)
        await commit(client, "g", {("t", 0): 7})
        log = broker.services.groups().log.log_of("g")
        assert log.log_end_offset > 0
        assert log.recovery_point == log.log_end_offset


async def test_a_commit_that_cannot_be_synced_is_not_answered(
    make_broker: Callable[..., Broker], groups_env: MemoryEnv
) -> None:
    """If the sync fails the connection is closed: the client must not take its offsets as safe."""
    async with make_broker(log_flush_interval_messages=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("t", 1)
        await find_coordinator(client)
        groups_env.fail("sync", "/data/__consumer_offsets-*/*.log", errno.EIO)
        client.send(8, 8, offset_commit("g", ("t", [(0, 1, "")])))
        assert await client.is_closed()


async def joined(broker: Broker, names: Sequence[str]) -> Direct:
    """Let members join the first generation of group "g"; the first one leads."""
    direct = Direct(broker)
    await asyncio.gather(*(direct.join("g", name, join_request(fresh_id=name)) for name in names))  # type: ignore[arg-type]
    await broker.node.flusher.settled()
    return direct


SYNCED = {"log_flush_interval_messages": 1, "group_initial_rebalance_delay_ms": 50}


async def test_assignments_wait_for_the_disk(make_broker: Callable[..., Broker], groups_env: MemoryEnv) -> None:
    """Neither the leader, nor a parked follower, nor one that syncs during the flush gets its assignment before the leader's
    record is on disk; a later one gets it at once.
    """
    names = ("leader", "waits", "comes", "late")
    async with make_broker(**SYNCED) as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        direct = await joined(broker, names)
        log = broker.services.groups().log.log_of("g")
        with held_disk([log], groups_env) as disk:
            waiting = [direct.sync("g", "waits", 1)]
            waiting.append(direct.sync("g", "leader", 1, [(name, name.encode()) for name in names]))
            await wait_until(disk.begun[log].is_set)
            waiting.append(direct.sync("g", "comes", 1))
            assert log.recovery_point < log.log_end_offset
            assert direct.syncs == {}
        for answer in waiting:
            assert not isinstance(answer, bytes)
            assert await answer == b"answered"
        assert log.recovery_point == log.log_end_offset
        assert direct.sync("g", "late", 1) == b"answered"
        assert {name: answer.assignment for name, answer in direct.syncs.items()} == {
            name: name.encode() for name in names
        }


async def test_assignments_that_cannot_be_synced(make_broker: Callable[..., Broker], groups_env: MemoryEnv) -> None:
    """The connections of all waiting members are closed."""
    async with make_broker(**SYNCED) as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        direct = await joined(broker, ("leader", "waits"))
        groups_env.fail("sync", "/data/__consumer_offsets-*/*.log", errno.EIO)
        for answer in (direct.sync("g", "waits", 1), direct.sync("g", "leader", 1)):
            assert not isinstance(answer, bytes)
            with pytest.raises(CloseConnection, match="could not be synced"):
                await answer
        assert direct.syncs == {}


async def test_without_flush_messages_nobody_waits(make_broker: Callable[..., Broker], groups_env: MemoryEnv) -> None:
    """By default, as in Kafka, a commit is answered once it is in the page cache; an unrelated flush delays no answer."""
    async with (
        make_broker(group_initial_rebalance_delay_ms=50) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        await find_coordinator(client)
        direct = await joined(broker, ("leader", "waits"))
        log = broker.services.groups().log.log_of("g")
        with held_disk([log], groups_env):
            broker.node.flusher.request(log)
            waits, leader = direct.sync("g", "waits", 1), direct.sync("g", "leader", 1)
            assert not isinstance(waits, bytes)
            assert not isinstance(leader, bytes)
            assert await waits == await leader == b"answered"


@pytest.mark.slow
async def test_sequences_are_those_of_kafka(broker: Broker, wire: WireClient, tmp_path: Path) -> None:
    """Every batch begins with sequence 0; Kafka's cleaner fails on one with a producer and -1."""
    txn = await started(wire)
    for offset in (1, 2):
        assert await txn.commit_offset("g", "t", offset, version=5) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await commit(wire, "g", {("t", 0): offset + 10}) == [NONE]
    partition = broker.services.groups().log.topic.partition_of("g")
    written = (tmp_path / f"{GROUP_OFFSETS_TOPIC}-{partition}" / f"{0:020d}.log").read_bytes()
    for log in (written, consumer_offsets_log()):
        headers = [header for _, header in iter_headers(log) if not header.is_control]
        assert {(header.is_transactional, header.base_sequence) for header in headers} == {(False, 0), (True, 0)}
