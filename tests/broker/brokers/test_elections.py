"""Elections and reassignments: the cases of Kafka's PartitionChangeBuilder, and the APIs that cause them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from diamant.broker.broker import Broker
from diamant.broker.brokers.membership import set_down, set_up
from diamant.broker.operation_errors import NotFound, NotPossible
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import BROKER_RESOURCE, TOPIC_RESOURCE
from diamant.storage.kraft.elections import partition_change
from diamant.storage.kraft.image import PartitionImage
from tests.broker.brokers.several import bring_up, create, leaders, several, table, take_down
from tests.broker.configurations import alter
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

TOPIC_ID = UUID(int=7)
ELECT, REASSIGN = 43, 45
PREFERRED, UNCLEAN = 0, 1


def partition(isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = ()) -> PartitionImage:
    """Return a partition with replicas 1, 2 and 3."""
    return PartitionImage(0, (1, 2, 3), isr, leader, 5, 9, eligible_leader_replicas=elr)


def changed(before: PartitionImage, live: set[int], **options: Any) -> tuple[Any, ...] | None:
    """What changes: ISR, leader, eligible and last known replicas."""
    change = partition_change(TOPIC_ID, before, live.__contains__, **options)
    if change is None:
        return None
    return change.isr, change.leader, change.eligible_leader_replicas, change.last_known_elr


UNCHANGED = -2


@pytest.mark.parametrize(
    ("before", "live", "options", "expected"),
    [
        (partition((1, 2, 3), 1), {1, 2, 3}, {}, None),
        (partition((1, 2, 3), 1), {2, 3}, {"isr": (2, 3)}, ((2, 3), 2, None, None)),
        (partition((1, 2, 3), 1), {1, 3}, {"isr": (1, 3)}, ((1, 3), UNCHANGED, None, None)),
        (partition((3, 2), 3), {2}, {"isr": (2,), "min_isr": 2}, ((2,), 2, (3,), None)),
        (partition((1,), 1), {2, 3}, {"isr": ()}, ((), -1, (1,), (1,))),
        (partition((1,), 1), {2, 3}, {"isr": (), "has_elr": False}, (None, -1, None, None)),
        (partition((), -1, (1, 3)), {3}, {"min_isr": 2}, ((3,), 3, (1,), None)),
        (partition((), -1, (1,)), {2, 3}, {}, None),
        (partition((), -1, (1,)), {2, 3}, {"is_unclean": True}, ((2,), 2, (), None)),
        (partition((1, 2), 1), {1, 2, 3}, {"isr": (1, 2, 3)}, ((1, 2, 3), UNCHANGED, None, None)),
        (partition((1, 2, 3), 1), {1, 2, 3}, {"leader": 3}, (None, 3, None, None)),
    ],
)
def test_a_change_elects_the_first_live_replica_that_lacks_nothing(
    before: PartitionImage, live: set[int], options: dict[str, Any], expected: tuple[Any, ...] | None
) -> None:
    """Leaders that may stay do; replicas below the minimum ISR remain eligible; none leads unless it may."""
    assert changed(before, live, **options) == expected


async def elect(wire: WireClient, kind: int = PREFERRED, *, is_for_all: bool = False) -> list[tuple[str, list[int]]]:
    """Elect the leaders of t-0, or of all partitions; the codes by topic."""
    named = None if is_for_all else [{"topic": "t", "partitions": [0]}]
    fields = {"election_type": kind, "topic_partitions": named, "timeout_ms": 1000}
    answer = await wire.call(ELECT, 2, fields)
    assert answer.error_code == 0
    return [(one.topic, [each.error_code for each in one.partition_result]) for one in answer.replica_election_results]


async def test_a_preferred_leader_is_elected() -> None:
    """A preferred leader is elected if it is in sync; an election for all partitions returns only those that needed one."""
    async with several() as (broker, wires):
        await create(wires[0], partitions=2, factor=3)
        assert await elect(wires[0]) == [("t", [ErrorCode.ELECTION_NOT_NEEDED])]
        table(broker).move_leader("t", 0, 3)
        assert await elect(wires[0], is_for_all=True) == [("t", [0])]
        assert await leaders(wires[0]) == [(1, 2, [1, 2, 3]), (2, 0, [2, 3, 1])]
        take_down(broker, 1)
        assert await elect(wires[1]) == [("t", [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE])]


async def test_an_unclean_election_takes_a_replica_that_is_not_in_sync() -> None:
    """The replica that is not in sync leads alone; before the election, nothing led."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[2, 3]])
        take_down(broker, 3)
        take_down(broker, 2)
        assert await elect(wires[0], UNCLEAN) == [("t", [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE])]
        broker.services.ports.open(3)
        list(set_up(table(broker), 3))
        assert [leader for leader, _, _ in await leaders(wires[0])] == [-1]
        assert await elect(wires[0], UNCLEAN) == [("t", [0])]
        assert [(leader, isr) for leader, _, isr in await leaders(wires[0])] == [(3, [3])]
        assert not table(broker).partition("t", 0).eligible_leader_replicas


UNCLEAN_ENABLE = "unclean.leader.election.enable"


async def follow_out_of_sync(broker: Broker) -> None:
    """Bring broker 3 up out of sync, and take broker 2 down, which alone is in sync: of t-0, they are the replicas."""
    take_down(broker, 3)
    broker.services.ports.open(3)
    list(set_up(table(broker), 3))
    take_down(broker, 2)


@pytest.mark.parametrize(
    ("of_broker", "of_topic", "expected"),
    [
        ("true", {}, (3, [3])),
        ("false", {"unclean_leader_election_enable": "true"}, (3, [3])),
        ("true", {"unclean_leader_election_enable": "false"}, (-1, [])),
        ("false", {}, (-1, [])),
    ],
)
async def test_a_replica_out_of_sync_leads_where_that_is_enabled(
    of_broker: str, of_topic: dict[str, Any], expected: tuple[int, list[int]]
) -> None:
    """The last replica in sync goes down: another one leads if the topic, else the broker, says so. It lacks no record."""
    async with several(unclean_leader_election_enable=of_broker) as (broker, wires):
        await create(wires[0], replicas=[[2, 3]], **of_topic)
        await wires[1].produce("t", [b"a", b"b"])
        await follow_out_of_sync(broker)
        assert [(leader, isr) for leader, _, isr in await leaders(wires[0])] == [expected]
        assert broker.node.topics.log("t", 0).log_end_offset == 2


async def test_a_replica_that_comes_back_leads_while_those_in_sync_are_down() -> None:
    """All replicas are down; the first to come back leads, and the one that was in sync follows it."""
    async with several(unclean_leader_election_enable="true") as (broker, wires):
        await create(wires[0], replicas=[[2, 3]])
        for broker_id in (3, 2):
            take_down(broker, broker_id)
        assert [leader for leader, _, _ in await leaders(wires[0])] == [-1]
        for broker_id in (3, 2):
            bring_up(broker, broker_id)
        assert [(leader, isr) for leader, _, isr in await leaders(wires[0])] == [(3, [3, 2])]


@pytest.mark.parametrize(("resource_type", "name"), [(TOPIC_RESOURCE, "t"), (BROKER_RESOURCE, "")])
async def test_unclean_elections_that_are_enabled_late_elect_at_once(resource_type: int, name: str) -> None:
    """The topic's value, or the cluster's default, becomes true while no replica in sync is up; one with none up waits."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[2, 3]])
        await create(wires[0], "lone", replicas=[[2]])
        await follow_out_of_sync(broker)
        assert not (await alter(wires[0], resource_type, name, (UNCLEAN_ENABLE, 0, "true"))).error_code
        assert [leader for leader, _, _ in await leaders(wires[0])] == [3]
        assert [leader for leader, _, _ in await leaders(wires[0], "lone")] == [-1]


async def test_a_start_with_unclean_elections_elects_where_there_was_no_leader() -> None:
    """The brokers start where they stopped: one is down, and now another may lead."""
    env = MemoryEnv()
    async with several(env=env) as (broker, wires):
        await create(wires[0], replicas=[[2, 3]])
        await follow_out_of_sync(broker)
    async with several(env=env, unclean_leader_election_enable="true") as (_, wires):
        assert [leader for leader, _, _ in await leaders(wires[0])] == [3]


async def reassign(wire: WireClient, replicas: list[int], **fields: Any) -> tuple[int, str | None]:
    """Give t-0 other replicas; code and message."""
    partitions = [{"partition_index": 0, "replicas": replicas}]
    request = {"timeout_ms": 1000, "topics": [{"name": "t", "partitions": partitions}], **fields}
    one = (await wire.call(REASSIGN, 1, request)).responses[0].partitions[0]
    return one.error_code, one.error_message


async def test_replicas_are_reassigned() -> None:
    """The leader stays if it still is a replica, else the first new one leads; brokers that do not exist are refused."""
    async with several() as (_, wires):
        await create(wires[0], replicas=[[1, 2]])
        assert await reassign(wires[0], [1, 2, 3]) == (0, None)
        assert await leaders(wires[0]) == [(1, 0, [1, 2, 3])]
        assert await reassign(wires[0], [3, 2]) == (0, None)
        assert await leaders(wires[0]) == [(3, 1, [3, 2])]
        code, message = await reassign(wires[0], [3, 4])
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "broker 4, but no such broker is registered" in str(message)
        code, _ = await reassign(wires[0], [3], allow_replication_factor_change=False)
        assert code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_refused_changes_say_why_and_change_nothing() -> None:
    """Brokers and partitions that do not exist, brokers that are up or down already, leaders out of sync."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        brokers = table(broker)
        with pytest.raises(NotFound, match="no broker 4: expected one of 1, 2, 3"):
            list(set_down(brokers, 4))
        with pytest.raises(NotPossible, match="broker 2 is up already"):
            list(set_up(brokers, 2))
        with pytest.raises(NotPossible, match="leads t-0 already"):
            brokers.move_leader("t", 0, 1)
        with pytest.raises(NotFound):
            brokers.move_leader("t", 1, 2)
        with pytest.raises(NotFound):
            brokers.move_leader("missing", 0, 2)
        take_down(broker, 2)
        with pytest.raises(NotPossible, match="broker 2 is down already"):
            list(set_down(brokers, 2))
        with pytest.raises(NotPossible, match=r"cannot lead t-0, because it is not in sync.*`unclean`"):
            brokers.move_leaders([("t", 0, 3), ("t", 0, 2)])
        assert await leaders(wires[0]) == [(1, 0, [1, 3])]
        bring_up(broker, 2)
        assert await leaders(wires[0]) == [(1, 0, [1, 3, 2])]
