"""Shared parts of the tests of compaction on demand: a broker that cleans only on request, and a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.compacted import produce
from tests.broker.wire import WireClient

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock(START_MS)


@pytest.fixture
async def broker(tmp_path: Path, clock: SettableClock) -> AsyncIterator[Broker]:
    """A broker whose cleaner does nothing without a request."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties={"log.cleaner.enable": "false"})
    async with Broker(config, env=RealEnv(clock=clock)) as running:
        yield running


async def fill(wire: WireClient, topic: str = "t", **configs: str) -> None:
    """Create a compacted topic with three values of one key."""
    configs.setdefault("cleanup_policy", "compact")
    assert (await wire.create(topic, **configs)).error_code == 0
    for value in "123":
        await produce(wire, topic, f"a={value}", timestamp=START_MS)
