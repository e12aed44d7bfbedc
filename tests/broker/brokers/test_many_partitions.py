"""Changes of many partitions: they leave turns of the loop to others, and each partition is whole in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.brokers.membership import PER_STEP, set_down, set_up
from diamant.broker.operation_errors import NotPossible
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from tests.broker.brokers.several import create, several, table, take_down
from tests.broker.configurations import alter
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.waiting import wait_until

ELECT, REASSIGN = 43, 45
COUNT = 4 * PER_STEP


@pytest.fixture
async def three() -> AsyncIterator[tuple[Broker, list[WireClient]]]:
    """Three brokers, and a topic of four steps' partitions, with all replicas."""
    async with several() as (broker, wires):
        await create(wires[0], partitions=COUNT, factor=3)
        yield broker, wires


def of_leader(broker: Broker, broker_id: int) -> int:
    """How many partitions of `t` a broker leads. Asserts that each has a leader that is up and in sync."""
    brokers = table(broker)
    found = [one for _, one in brokers.partitions("t")]
    assert all(one.leader in one.isr and brokers.is_up(one.leader) for one in found)
    return sum(one.leader == broker_id for one in found)


async def during(work: Awaitable[Any], look: Callable[[], int]) -> list[int]:
    """What there is to see in each turn of the loop, as long as the work lasts; each value once in a row."""
    task = asyncio.ensure_future(work)
    seen = [look()]
    while not task.done():
        await asyncio.sleep(0)
        if (now := look()) != seen[-1]:
            seen.append(now)
    await task
    return seen


async def elect(wire: WireClient) -> None:
    """Elect the preferred leader of every partition."""
    await wire.call(ELECT, 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 1000})


async def reassign(wire: WireClient) -> None:
    """Give every partition the replicas 2 and 3."""
    partitions = [{"partition_index": index, "replicas": [2, 3]} for index in range(COUNT)]
    await wire.call(REASSIGN, 1, {"timeout_ms": 1000, "topics": [{"name": "t", "partitions": partitions}]})


@pytest.mark.parametrize(
    ("prepare", "work"),
    [
        (None, lambda broker, _: broker.brokers.down(1)),
        (None, lambda broker, _: broker.brokers.fence(1)),
        (None, lambda broker, _: broker.brokers.shuffle("t", seed=1)),
        (lambda broker: broker.brokers.shuffle("t", seed=1), lambda _, wires: elect(wires[0])),
        (None, lambda _, wires: reassign(wires[0])),
    ],
    ids=["down", "fence", "shuffle", "elect", "reassign"],
)
async def test_leaders_move_in_turns(
    three: tuple[Broker, list[WireClient]],
    prepare: Callable[[Broker], Awaitable[Any]] | None,
    work: Callable[[Broker, list[WireClient]], Awaitable[Any]],
) -> None:
    """No turn moves more than a step's partitions; each partition has a leader that is up and in sync in between."""
    broker, wires = three
    if prepare is not None:
        await prepare(broker)
    seen = await during(work(broker, wires), lambda: of_leader(broker, 1))
    assert len(seen) > 2
    assert max(abs(after - before) for before, after in itertools.pairwise(seen)) <= PER_STEP


async def test_a_broker_catches_up_in_turns(three: tuple[Broker, list[WireClient]]) -> None:
    """Each turn adds it to the ISR of at most a step's partitions."""
    broker, _ = three
    await broker.brokers.down(1)
    seen = await during(broker.brokers.up(1), lambda: sum(1 in one.isr for _, one in table(broker).partitions("t")))
    assert (seen[0], seen[-1]) == (0, COUNT)
    assert max(after - before for before, after in itertools.pairwise(seen)) == PER_STEP


async def test_a_topic_that_is_created_meanwhile_is_not_led_by_a_broker_that_is_down(
    three: tuple[Broker, list[WireClient]],
) -> None:
    """The last turn moves what the others could not know of."""
    broker, wires = three
    changes = set_down(table(broker), 1)
    next(changes)
    await create(wires[0], "new", partitions=3 * PER_STEP, factor=3)
    list(changes)
    assert not table(broker).is_up(1)
    assert not [one for _, one in table(broker).partitions() if one.leader == 1 or 1 in one.isr]


async def test_a_topic_that_is_deleted_meanwhile_is_left_out(three: tuple[Broker, list[WireClient]]) -> None:
    """Its partitions are no obstacle to the change of the others."""
    broker, wires = three
    changes = set_down(table(broker), 1)
    next(changes)
    await wires[0].call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})
    list(changes)
    assert not table(broker).is_up(1)


async def test_changes_of_brokers_follow_one_another(three: tuple[Broker, list[WireClient]]) -> None:
    """Of two requests at the same time to take a broker down, one is told that it is down; another broker follows."""
    broker, _ = three
    first, second, third = await asyncio.gather(
        broker.brokers.down(1), broker.brokers.down(1), broker.brokers.down(2), return_exceptions=True
    )
    assert isinstance(second, NotPossible)
    assert first.cut_connection_count == third.cut_connection_count == 1
    assert of_leader(broker, 3) == COUNT


async def test_a_change_whose_caller_leaves_is_completed(three: tuple[Broker, list[WireClient]]) -> None:
    """No partition is left in between."""
    broker, _ = three
    task = asyncio.create_task(broker.brokers.down(1))
    led = of_leader(broker, 1)
    while of_leader(broker, 1) == led:
        await asyncio.sleep(0)
    assert table(broker).is_up(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not table(broker).is_up(1)
    assert of_leader(broker, 1) == 0


async def test_unclean_elections_that_are_enabled_late_come_in_turns(three: tuple[Broker, list[WireClient]]) -> None:
    """Partitions without a leader get one when that is enabled, a step's at a time."""
    broker, wires = three
    brokers = table(broker)
    await create(wires[0], "u", replicas=[[2, 3]] * COUNT)
    take_down(broker, 3)
    list(set_up(brokers, 3))
    take_down(broker, 2)
    enable = alter(wires[0], TOPIC_RESOURCE, "u", ("unclean.leader.election.enable", 0, "true"))
    seen = await during(enable, lambda: sum(one.leader == -1 for _, one in brokers.partitions("u")))
    await wait_until(lambda: all(one.leader == 3 for _, one in brokers.partitions("u")))
    assert seen[:2] == [COUNT, COUNT - PER_STEP]
