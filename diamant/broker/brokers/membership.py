"""Brokers that leave and return, and how their partitions change.

A change to many partitions is split into steps. Each step is complete in itself and changes at most `PER_STEP` partitions, so
that the loop can do other work between steps. Between two steps, clients may see that some partitions have moved and others have
not; in Kafka this happens between the controller's batches of 10,000 records. The iterators below are lazy: `next` takes a step,
based on the state of the partitions at that time.

Source: ReplicationControlManager (handleBrokerFenced, handleBrokerUnfenced, maybeTriggerUncleanLeaderElection…).
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
"""The maximum number of partitions changed in one turn of the loop, which takes about 5 ms."""


def set_down(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Fence a broker: it loses its leaderships and leaves every ISR. The last step fences it; until then it counts as up.

    Yields the changes of each step. Raises NotFound, or NotPossible if the broker is already down.
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
    # The remaining partitions, and any that were created or changed between the steps.
    yield without_it([one for one in table.partitions() if has_it(one[1])], (broker_id,))


def set_up(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Unfence a broker: it becomes the leader of leaderless partitions if it is eligible, and follows the others.

    It joins ISRs only in `catch_up`. Yields the changes of each step. Raises NotFound, or NotPossible if it is already up.
    """
    table.check_state(broker_id, is_up=False)
    table.apply([], table.fence(broker_id, -1))
    for step in steps(table, lambda one: one.leader == NO_LEADER and broker_id in one.replicas):
        yield table.apply([table.plan(*one) for one in step])


def catch_up(table: BrokerTable, broker_id: int) -> Iterator[Changes]:
    """Add a broker that is up to the ISR of each partition that it follows. Yields the changes of each step.

    Raises NotFound, or NotPossible if the broker is down.
    """
    table.check_state(broker_id, is_up=True)

    def lacks_it(one: PartitionImage) -> bool:
        return broker_id in one.replicas and broker_id not in one.isr and one.leader != NO_LEADER

    for step in steps(table, lacks_it):
        yield table.apply([table.plan(topic, one, isr=(*one.isr, broker_id)) for topic, one in step])


def elect_missing(table: BrokerTable) -> Iterator[Changes]:
    """Elect leaders for leaderless partitions whose topics allow unclean elections; yield the changes of each step."""
    for step in steps(table, lambda one: one.leader == NO_LEADER):
        yield table.apply([table.plan(*one) for one in step if table.is_unclean(one[0])])


def elect_missing_soon(table: BrokerTable) -> None:
    """Run `elect_missing`: its first step immediately, each further step in a later turn of the loop."""
    changes = elect_missing(table)

    def step() -> None:
        if next(changes, None) is not None:
            asyncio.get_running_loop().call_soon(step)

    step()


def steps(
    table: BrokerTable, is_concerned: Callable[[PartitionImage], bool], *, topic: str | None = None, leave: int = 0
) -> Iterator[list[tuple[str, PartitionImage]]]:
    """Yield the partitions that `is_concerned` selects, sorted, `PER_STEP` at a time; leave out up to `leave` at the end."""
    named = sorted((name, one.partition_id) for name, one in table.partitions(topic) if is_concerned(one))
    for start in range(0, len(named) - leave, PER_STEP):
        found = table.present(named[start : start + PER_STEP])
        yield [one for one in found if is_concerned(one[1])]


async def in_turns(changes: Iterator[Changes]) -> list[Changes]:
    """Take each step in its own turn of the loop, and return all changes. If cancelled, take the remaining steps immediately."""
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
    """Yield the items, and let the loop turn once after every `PER_STEP` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % PER_STEP == 0:
            await asyncio.sleep(0)
