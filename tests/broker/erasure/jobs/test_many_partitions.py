"""An erasure over many partitions: no more work for each than it needs, and turns for everybody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operations.compact import PARTITIONS_PER_TURN, Compactions
from diamant.cleaner.on_demand.report import CompactionReport
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.storage.log.log import Log
from tests.broker.erasure.cases import create_with_key, erase
from tests.broker.erasure.obstacles import hold_up
from tests.waiting import wait_until


async def test_one_that_is_held_up_does_not_have_the_others_compacted_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is clean is left alone while an open transaction keeps another partition."""
    await create_with_key(broker, 3)
    producer = hold_up(broker, partition=2)
    counts: Counter[int] = Counter()
    real = Compactions.compact

    async def compact(self: Compactions, request: CompactRequest) -> CompactionReport:
        assert request.partition is not None
        counts[request.partition] += 1
        return await real(self, request)

    monkeypatch.setattr(Compactions, "compact", compact)
    call = asyncio.ensure_future(erase(broker))
    await wait_until(lambda: counts[2] >= 3)
    assert (counts[0], counts[1]) == (1, 1)
    producer.end(is_commit=True)
    erasure = await call
    assert erasure.state == "values-gone"
    assert [one["compactions"] for one in erasure.certificate["done"]] == [1, 1, counts[2]]


async def test_segments_are_closed_a_few_at_a_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond or two of the loop's time, in which nobody else is answered."""
    await create_with_key(broker, 12)
    loop, turn, is_over = asyncio.get_running_loop(), 0, False
    rolls: Counter[int] = Counter()
    real = Log.roll

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if not is_over:
            loop.call_soon(count_turns)

    def roll(self: Log, *arguments: Any, **options: Any) -> Any:
        rolls[turn] += 1
        return real(self, *arguments, **options)

    monkeypatch.setattr(Log, "roll", roll)
    count_turns()
    erasure = await erase(broker)
    is_over = True
    assert erasure.state == "values-gone"
    assert sum(rolls.values()) == 12
    assert max(rolls.values()) <= 2 * PARTITIONS_PER_TURN
