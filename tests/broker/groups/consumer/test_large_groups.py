"""Target assignments that are computed in a thread: what members are told meanwhile, and what comes of it if all changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.groups.consumer.member import Assignment
from diamant.broker.groups.decisions import target_assignment
from diamant.broker.groups.decisions.target_assignment import TargetTask
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_wire import DELETE_GROUPS, PROPERTIES, T1, A, B, Members, prepare
from tests.broker.wire import WireClient
from tests.waiting import wait_until

WAIT_S = 60


class Thread:
    """Computes what it is given, when it is let."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.names: list[str] = []
        self.ended = 0

    def run(self, task: TargetTask) -> list[dict[str, Assignment]]:
        self.names.append(threading.current_thread().name)
        assert self.may_go_on.wait(WAIT_S)
        try:
            return COMPUTE(task)
        finally:
            self.ended += 1


COMPUTE = TargetTask.run_in_parts


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    """All groups are large ones, whose members are told one at a time."""
    thread = Thread()
    monkeypatch.setattr(target_assignment, "LIGHT_WEIGHT", -1)
    monkeypatch.setattr(target_assignment, "PARTITIONS_PER_PART", 1)
    monkeypatch.setattr(TargetTask, "run_in_parts", lambda task: thread.run(task))
    yield thread
    thread.may_go_on.set()


@pytest.fixture
async def broker(tmp_path: Path, thread: Thread) -> AsyncIterator[Broker]:
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=PROPERTIES)) as running:
        yield running
        thread.may_go_on.set()


@pytest.fixture
async def members(broker: Broker, wire: WireClient) -> Members:
    await prepare(wire)
    return Members(wire, broker)


async def wait_until_assigned(members: Members, epoch: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await members.state("g"))[2] != epoch:
            await asyncio.sleep(0.005)


async def test_members_are_told_a_heartbeat_later(members: Members, thread: Thread) -> None:
    """Nobody waits for the thread: a join is answered with nothing, and the next heartbeat has the partitions."""
    thread.may_go_on.clear()
    assert await members.beat("g", A, 0, names=["t1"]) == (1, {})
    assert await members.state("g") == ("Assigning", 2, 1)
    assert await members.beat("g", A, 1) == (1, None)
    thread.may_go_on.set()
    await wait_until_assigned(members, 2)
    assert await members.beat("g", A, 1) == (2, T1)
    assert await members.state("g") == ("Stable", 2, 2)
    assert len(thread.names) == 1
    assert thread.names[0] != threading.current_thread().name


async def test_a_member_that_joins_meanwhile(members: Members, thread: Thread) -> None:
    """What was computed counts for the epoch that it was computed for; the newer member is looked at by the next heartbeat."""
    thread.may_go_on.clear()
    await members.beat("g", A, 0, names=["t1"])
    assert await members.beat("g", B, 0, names=["t1"]) == (1, {})
    assert await members.state("g") == ("Assigning", 3, 1)
    thread.may_go_on.set()
    await wait_until_assigned(members, 2)
    assert await members.beat("g", A, 1) == (2, T1)
    await wait_until_assigned(members, 3)
    assert await members.beat("g", A, 2) == (2, {"t1": [0, 1]})
    assert await members.beat("g", A, 2, owned={"t1": [0, 1]}) == (3, None)
    assert await members.beat("g", B, 1) == (3, {"t1": [2, 3]})
    assert await members.state("g") == ("Stable", 3, 3)
    assert len(thread.names) == 2


async def test_a_member_that_leaves_meanwhile(members: Members, thread: Thread) -> None:
    """It gets nothing any more, and what it would have had goes to the others."""
    await members.beat("g", A, 0, names=["t1"])
    await wait_until_assigned(members, 2)
    thread.may_go_on.clear()
    await members.beat("g", B, 0, names=["t1"])
    await members.beat("g", B, -1)
    thread.may_go_on.set()
    await wait_until_assigned(members, 3)
    assert [found.member_id for found in (await members.describe("g")).members] == [A]
    assert await members.beat("g", A, 1) == (3, {"t1": [0, 1]})
    await wait_until_assigned(members, 4)
    assert await members.beat("g", A, 3) == (4, T1)


async def test_a_group_that_is_deleted_meanwhile(members: Members, thread: Thread) -> None:
    """What the thread comes to makes no group of it again."""
    thread.may_go_on.clear()
    await members.beat("g", A, 0, names=["t1"])
    await wait_until(lambda: len(thread.names) == 1)
    await members.beat("g", A, -1)
    answer = await members.wire.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})
    assert answer.results[0].error_code == ErrorCode.NONE
    thread.may_go_on.set()
    await wait_until(lambda: thread.ended == 1)
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
