"""An erasure over many partitions: no more work for each than it needs, and turns for everybody else."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from diamant.broker.broker import Broker
from diamant.broker.operations.calls.progress import Progress
from diamant.broker.operations.compactions.compact import PARTITIONS_PER_TURN
from tests.broker.erasure.cases import create_with_key, erase
from tests.broker.erasure.obstacles import hold_up
from tests.waiting import wait_until


async def test_one_that_is_held_up_does_not_have_the_others_compacted_again(broker: Broker) -> None:
    """What is clean is left alone while an open transaction keeps another partition."""
    await create_with_key(broker, 3)
    producer = hold_up(broker, partition=2)
    rounds = 0

    def count(progress: Progress) -> None:
        nonlocal rounds
        rounds += progress.stage == "compacting" and progress.done == progress.total

    call = asyncio.ensure_future(erase(broker, progress=Progress(count)))
    await wait_until(lambda: rounds >= 3)
    producer.end(is_commit=True)
    erasure = await call
    assert erasure.state == "values-gone"
    assert [one["compactions"] for one in erasure.certificate["done"]] == [1, 1, rounds]


async def test_segments_are_closed_a_few_at_a_time(broker: Broker) -> None:
    """Each takes a millisecond or two of the loop's time, in which nobody else is answered."""
    await create_with_key(broker, 12)
    loop, is_over = asyncio.get_running_loop(), False
    closed: list[int] = []
    """After each turn: the segments that are closed, or were."""

    def count() -> None:
        logs = [broker.node.topics.log("users", partition) for partition in range(12)]
        closed.append(sum(log.active.base_offset > 0 for log in logs))
        if not is_over:
            loop.call_soon(count)

    count()
    erasure = await erase(broker)
    is_over = True
    assert erasure.state == "values-gone"
    assert closed[-1] == 12
    assert max(after - before for before, after in pairwise(closed)) <= 2 * PARTITIONS_PER_TURN
