"""The coordinators' writes: batches like Kafka's, flushed as `flush.messages` requires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.groups.classic.events import GroupProtocol, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from diamant.broker.network.api import CloseConnection
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import ErrorCode
from diamant.storage.log.log import Log
from tests.broker.groups.offsets.offset_requests import NONE, commit, find_coordinator, wait_until_loaded
from tests.broker.request_fields import offset_commit
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import WireClient
from tests.golden_groups import consumer_offsets_log
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


async def test_a_commit_that_cannot_be_synced_is_not_answered(make_broker: Callable[..., Broker]) -> None:
    """If the sync fails the connection is closed: the client must not take its offsets as safe."""
    async with make_broker(log_flush_interval_messages=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("t", 1)
        await find_coordinator(client)
        log = broker.services.groups().log.log_of("g")
        broker.node.flusher.flushed = lambda logs: _failing(log)  # type: ignore[method-assign,misc]
        client.send(8, 8, offset_commit("g", ("t", [(0, 1, "")])))
        assert await client.is_closed()


async def _failing(log: object) -> None:
    log.write_failure = OSError("no space")  # type: ignore[attr-defined]


class HeldFlush:
    """Holds the flusher's sync of a log until `go_on`, or makes it fail."""

    def __init__(self, broker: Broker, log: Log) -> None:
        self._may_go_on = asyncio.Event()
        self._error: OSError | None = None
        flush = broker.node.flusher._flush

        async def held(due: Log) -> None:
            if due is log:
                await self._may_go_on.wait()
                if self._error is not None:
                    log.fail(self._error)
                    return
            await flush(due)

        broker.node.flusher._flush = held  # type: ignore[method-assign,assignment]

    def go_on(self, error: OSError | None = None) -> None:
        """Let the sync proceed, or fail."""
        self._error = error
        self._may_go_on.set()


class Members:
    """A classic group whose members have joined; collects their answers."""

    def __init__(self, broker: Broker, names: Iterable[str]) -> None:
        self._groups = broker.services.groups().classic
        self._names = list(names)
        self.assigned: dict[str, bytes] = {}

    async def join(self) -> None:
        """Let all join the first generation."""
        answers = [self._join(name) for name in self._names]
        for answer in answers:
            if not isinstance(answer, bytes):
                await answer

    def _join(self, name: str) -> bytes | asyncio.Future[bytes]:
        protocols = (GroupProtocol("range", b""),)
        request = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, 3, name)
        return self._groups.join("g", request, lambda answer: _checked(answer))

    def sync(self, name: str, generation: int = 1) -> bytes | asyncio.Future[bytes]:
        """Sync a member; the first one, the leader, assigns each its name."""
        is_leader = name == self._names[0]
        assignments = tuple((name, name.encode()) for name in self._names) if is_leader else ()

        def encode(answer: SyncAnswer) -> bytes:
            assert answer.error is ErrorCode.NONE
            self.assigned[name] = answer.assignment
            return b"answered"

        return self._groups.sync("g", SyncRequest(name, None, generation, None, None, assignments), encode)


def _checked(answer: JoinAnswer) -> bytes:
    assert answer.error is ErrorCode.NONE
    return b"answered"


async def test_assignments_wait_for_the_disk(make_broker: Callable[..., Broker]) -> None:
    """Neither the leader, nor a parked follower, nor one that syncs during the flush gets its assignment before the leader's
    record is on disk; a later one gets it at once.
    """
    properties = {"log_flush_interval_messages": 1, "group_initial_rebalance_delay_ms": 50}
    async with make_broker(**properties) as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        members = Members(broker, ("leader", "waits", "comes", "late"))
        await members.join()
        await broker.node.flusher.settled()
        log = broker.services.groups().log.log_of("g")
        held = HeldFlush(broker, log)
        waiting = [members.sync("waits"), members.sync("leader")]
        await wait_until(lambda: log not in broker.node.flusher._due)  # it is under way
        waiting.append(members.sync("comes"))
        assert log.recovery_point < log.log_end_offset
        assert members.assigned == {}
        held.go_on()
        for answer in waiting:
            assert not isinstance(answer, bytes)
            assert await answer == b"answered"
        assert log.recovery_point == log.log_end_offset
        assert members.sync("late") == b"answered"
        assert members.assigned == {name: name.encode() for name in ("leader", "waits", "comes", "late")}


async def test_assignments_that_cannot_be_synced(make_broker: Callable[..., Broker]) -> None:
    """The connections of all waiting members are closed."""
    properties = {"log_flush_interval_messages": 1, "group_initial_rebalance_delay_ms": 50}
    async with make_broker(**properties) as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        members = Members(broker, ("leader", "waits"))
        await members.join()
        await broker.node.flusher.settled()
        held = HeldFlush(broker, broker.services.groups().log.log_of("g"))
        waiting = [members.sync("waits"), members.sync("leader")]
        held.go_on(OSError("no space"))
        for answer in waiting:
            assert not isinstance(answer, bytes)
            with pytest.raises(CloseConnection, match="could not be synced"):
                await answer
        assert members.assigned == {}


async def test_without_flush_messages_nobody_waits(make_broker: Callable[..., Broker]) -> None:
    """By default, as in Kafka, the page cache suffices; an unrelated flush delays no answer."""
    async with (
        make_broker(group_initial_rebalance_delay_ms=50) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        await find_coordinator(client)
        members = Members(broker, ("leader", "waits"))
        await members.join()
        log = broker.services.groups().log.log_of("g")
        held = HeldFlush(broker, log)
        broker.node.flusher.request(log)
        waits = members.sync("waits")
        leader = members.sync("leader")
        assert not isinstance(waits, bytes)
        assert not isinstance(leader, bytes)
        assert await waits == await leader == b"answered"
        held.go_on()


def data_batches(data: bytes) -> Iterator[BatchHeader]:
    """All batches without markers."""
    return (header for _, header in iter_headers(data) if not header.is_control)


@pytest.mark.slow
async def test_sequences_are_those_of_kafka(broker: Broker, wire: WireClient, tmp_path: Path) -> None:
    """Every batch begins with sequence 0; Kafka's cleaner fails on one with a producer and -1."""
    txn = TxnProducer(wire, "id")
    await txn.wait_for_coordinator("g")
    await txn.wait_for_init()
    await wire.create("t")
    for offset in (1, 2):
        assert await txn.commit_offset("g", "t", offset, version=5) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await commit(wire, "g", {("t", 0): offset + 10}) == [NONE]
    partition = broker.services.groups().log.topic.partition_of("g")
    written = (tmp_path / f"{GROUP_OFFSETS_TOPIC}-{partition}" / f"{0:020d}.log").read_bytes()
    for log in (written, consumer_offsets_log()):
        found = {(header.is_transactional, header.base_sequence) for header in data_batches(log)}
        assert found == {(False, 0), (True, 0)}
