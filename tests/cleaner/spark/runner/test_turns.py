"""Turns among the runners of a broker, and the drivers that are kept between jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner.driver_process import DriverProcess
from diamant.cleaner.spark.runner.turns import SparkTurns

CLUSTER = SparkSettings("spark://h:1", driver_max_idle_ms=600_000)


@dataclass(eq=False)
class KeptDriver:
    """A driver whose end takes until the test releases it."""

    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    settings: SparkSettings = CLUSTER
    is_usable: bool = True
    has_ended: bool = False

    async def end(self) -> None:
        await self.may_end.wait()
        self.has_ended = True


async def test_runners_that_ask_at_once_get_a_driver_each() -> None:
    """On a cluster, while one runner waits for the end of unusable drivers, others take the usable ones."""
    turns = SparkTurns(CLUSTER)
    drivers = [KeptDriver() for _ in range(4)]
    for driver in drivers:
        await turns.release(cast(DriverProcess, driver))
    useless = [drivers[0], drivers[3]]
    for driver in useless:
        driver.is_usable = False  # ended while it was idle
    asking = [asyncio.create_task(turns.take(CLUSTER)) for _ in range(4)]
    await asyncio.sleep(0)
    for driver in useless:
        driver.may_end.set()
    taken = await asyncio.gather(*asking)
    assert {one for one in taken if one is not None} == {cast(DriverProcess, one) for one in drivers[1:3]}
    assert taken.count(None) == 2
    assert all(driver.has_ended for driver in useless)
