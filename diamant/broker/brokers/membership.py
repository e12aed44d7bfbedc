"""Brokers that go and come back, and what that changes in each partition.

A change of many partitions is a sequence of steps, each of at most `PER_STEP` partitions and complete in itself, so that other
work of the loop comes between. A client may then see some partitions moved and others not, as it does of Kafka between the
batches of its controller (10,000 records each). A step is taken when its result is asked for, and finds the partitions as they
are then.

Source: ReplicationControlManager (handleBrokerFenced, handleBrokerUnfenced).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TypeVar

from diamant.broker.brokers.table import BrokerTable, Changes
from diamant.protocol.kraft.records import NO_LEADER
from diamant.storage.kraft.image import PartitionImage

T = TypeVar("T")

PER_STEP = 100
"""Partitions that change in one turn of the loop: some 5 ms."""


def set_down(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Fence a broker: it leads nothing and leaves every ISR. As long as it still leads partitions it is up.

    Yields the changes of each step. Raises NotFound; NotPossible if it is down.
    """
    table.check_state(broker_id, is_up=True)

    def has_it(partition: PartitionImage) -> bool:
        return partition.leader == broker_id or (broker_id in partition.isr and len(partition.isr) > 1)

    def without_it(partitions: Iterable[tuple[str, PartitionImage]], fence: tuple[int, ...] = ()) -> Changes:
        plans = [
            table.plan(topic, one, isr=tuple(each for each in one.isr if each != broker_id), gone=broker_id)
            for topic, one in partitions
        ]
        return table.apply(plans, *(table.fence(each, 1) for each in fence))

    for step in steps(table, has_it, leave=PER_STEP):
        yield without_it(step)
    # Those that are left, and what was created or changed in between.
    yield without_it([one for one in table.partitions() if has_it(one[1])], (broker_id,))


def set_up(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Lift a broker's fence: it leads partitions without a leader for which it is eligible, and follows elsewhere.

    It is in no other ISR until `catch_up`. Raises NotFound; NotPossible if it is up.
    """
    table.check_state(broker_id, is_up=False)
    table.apply([], table.fence(broker_id, -1))
    for step in steps(table, lambda one: one.leader == NO_LEADER and broker_id in one.replicas):
        yield table.apply([table.plan(*one) for one in step])


def catch_up(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Add a broker that is up to the ISR of each partition that it follows. Yields the changes of each step.

    Raises NotFound; NotPossible if it is down.
    """
    table.check_state(broker_id, is_up=True)

    def lacks_it(one: PartitionImage) -> bool:
        return broker_id in one.replicas and broker_id not in one.isr and one.leader != NO_LEADER

    for step in steps(table, lacks_it):
        yield table.apply([table.plan(topic, one, isr=(*one.isr, broker_id)) for topic, one in step])


def elect_missing(table: BrokerTable) -> Iterator[Changes]:
    """Elect leaders where any replica may lead and none does (`maybeTriggerUncleanLeaderElection…`); yield the changes."""
    for step in steps(table, lambda one: one.leader == NO_LEADER):
        yield table.apply([table.plan(*one) for one in step if table.is_unclean(one[0])])


def elect_missing_soon(table: BrokerTable) -> None:
    """As `elect_missing`: the first step at once, each other one in a later turn."""
    changes = elect_missing(table)

    def step() -> None:
        if next(changes, None) is not None:
            asyncio.get_running_loop().call_soon(step)

    step()


def steps(
    table: BrokerTable, is_concerned: Callable[[PartitionImage], bool], *, topic: str | None = None, leave: int = 0
) -> Iterator[list[tuple[str, PartitionImage]]]:
    """Yield the partitions, of one topic or all, that a change concerns, in order, except the last `leave` of them."""
    named = sorted((name, one.partition_id) for name, one in table.partitions(topic) if is_concerned(one))
    for start in range(0, len(named) - leave, PER_STEP):
        found = table.present(named[start : start + PER_STEP])
        yield [one for one in found if is_concerned(one[1])]


async def in_turns(changes: Iterator[Changes]) -> list[Changes]:
    """Take each step in a turn of its own, or all that are left at once if the wait is cancelled; return their changes."""
    done = []
    try:
        for change in changes:
            done.append(change)
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        list(changes)
        raise
    return done


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items with a pause of one turn after each `PER_STEP` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % PER_STEP == 0:
            await asyncio.sleep(0)
