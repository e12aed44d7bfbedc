"""Steps of members, the group's assignor, and target assignments computed in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.coordinators.java_order import copied_map_capacity, strings_in_timeline_order
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import Assignment, ConsumerGroupMember, MemberState
from diamant.broker.groups.consumer.partition_holders import NOT_ASSIGNED
from diamant.broker.groups.decisions import target_assignment
from diamant.broker.groups.decisions.reconciliation import Owned, next_step
from diamant.broker.groups.decisions.target_assignment import TargetTask
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_wire import DELETE_GROUPS, PROPERTIES, T1, A, Members, prepare
from tests.broker.wire import WireClient
from tests.waiting import wait_until

TOPIC = UUID(int=1)


def step(member: ConsumerGroupMember, *, subscribed: set[UUID], owned: Owned | None = None) -> ConsumerGroupMember:
    """Return the step of a member that has just subscribed to `subscribed`, with a target of its own epoch."""
    return next_step(
        member,
        member.member_epoch,
        {},
        subscribed_topic_ids=subscribed,
        has_subscription_changed=True,
        owned=owned,
        current_epoch_of=lambda topic_id, partition: NOT_ASSIGNED,
    )


def test_subscribing_to_nothing_is_a_step() -> None:
    """The previous epoch becomes invalid; with another subscription it stays valid."""
    member = ConsumerGroupMember(member_id="m", member_epoch=2, previous_member_epoch=1)
    assert step(member, subscribed={TOPIC}) == member
    after = step(member, subscribed=set())
    assert after == member.changed(previous_member_epoch=2)
    assert step(after, subscribed=set()) == after


def test_partitions_of_an_ended_subscription_are_given_up() -> None:
    """The member gives a partition up at once if it reports that it does not own it, otherwise when it reports that."""
    member = ConsumerGroupMember(member_id="m", member_epoch=2, previous_member_epoch=1, assigned={TOPIC: {0: 2}})
    waiting = step(member, subscribed=set())
    assert (waiting.state, waiting.assigned, waiting.pending_revocation) == (
        MemberState.UNREVOKED_PARTITIONS,
        {},
        {TOPIC: {0: 2}},
    )
    done = step(member, subscribed=set(), owned={})
    assert (done.state, done.assigned, done.pending_revocation) == (MemberState.STABLE, {}, {})


def group_of(*assignors: str | None) -> tuple[ConsumerGroup, list[ConsumerGroupMember]]:
    group = ConsumerGroup("g")
    members = [
        ConsumerGroupMember(member_id=f"m{number}", server_assignor=name) for number, name in enumerate(assignors)
    ]
    group.members.update({member.member_id: member for member in members})
    return group, members


@pytest.mark.parametrize(("first", "second"), [("uniform", "range"), ("range", "uniform")])
def test_as_many_members_for_each_assignor(first: str, second: str) -> None:
    """A tie goes to the assignor of the heartbeat's sender if it alone requests it; for others to uniform."""
    group, (one,) = group_of(first)
    newcomer = ConsumerGroupMember(member_id="new", server_assignor=second)
    assert group.preferred_assignor(newcomer, newcomer) == second
    group, (one, two, three) = group_of(first, second, None)
    assert group.preferred_assignor(one, one) == first
    assert group.preferred_assignor(two, two) == second
    assert group.preferred_assignor(three, three) == "uniform"
    assert group.preferred_assignor(None, None) == "uniform"


def test_most_members_win() -> None:
    """Whoever sends the heartbeat; without requests the result is None."""
    group, (one, _, three) = group_of("range", "range", "uniform")
    assert group.preferred_assignor(three, three) == "range"
    assert group.preferred_assignor(one, one.changed(server_assignor="uniform")) == "uniform"
    group, (one,) = group_of("range")
    assert group.preferred_assignor(one, one.changed(server_assignor=None)) is None


def test_order_of_kafkas_own_maps() -> None:
    """Slots use the highest bits of a multiplied hash code; copies of hash maps are as small as possible."""
    assert strings_in_timeline_order(["range", "uniform"]) == ["uniform", "range"]
    assert [copied_map_capacity(count) for count in (0, 1, 2, 3, 6)] == [16, 2, 4, 8, 16]


WAIT_S = 60


class Thread:
    """Computes its tasks when released."""

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
    """Treat all groups as large ones, whose targets are applied one member at a time."""
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
    """No request waits for the thread: a join is answered without partitions, the next heartbeat has them."""
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


async def test_a_group_that_is_deleted_meanwhile(members: Members, thread: Thread) -> None:
    """The thread's result does not create the group again."""
    thread.may_go_on.clear()
    await members.beat("g", A, 0, names=["t1"])
    await wait_until(lambda: len(thread.names) == 1)
    await members.beat("g", A, -1)
    answer = await members.wire.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})
    assert answer.results[0].error_code == ErrorCode.NONE
    thread.may_go_on.set()
    await wait_until(lambda: thread.ended == 1)
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
