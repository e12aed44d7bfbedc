"""Brokers with a group coordinator, on a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> SettableClock:
    """A frozen clock."""
    return SettableClock(START_MS)


@pytest.fixture
def groups_env(clock: SettableClock) -> MemoryEnv:
    """The file system of these brokers."""
    return MemoryEnv(clock)


@pytest.fixture
def make_broker(groups_env: MemoryEnv) -> Callable[..., Broker]:
    """Start brokers on one directory, one after the other; properties have underscores for dots."""

    def make(**properties: Any) -> Broker:
        settings = {"offsets_topic_num_partitions": 3, **properties}
        return Broker(BrokerConfig("127.0.0.1:0", "/data", **settings), env=groups_env)

    return make


@pytest.fixture
async def groups_broker(make_broker: Callable[..., Broker]) -> AsyncIterator[Broker]:
    """A broker with a frozen clock."""
    async with make_broker() as broker:
        yield broker


@pytest.fixture
async def client(groups_broker: Broker) -> AsyncIterator[WireClient]:
    """A connection to `groups_broker`, with `__consumer_offsets` and topics "t" (3 partitions) and "u" (1)."""
    async with WireClient(groups_broker.bootstrap_servers) as wire_client:
        await wire_client.create("t", 3)
        await wire_client.create("u", 1)
        await find_coordinator(wire_client)
        yield wire_client
