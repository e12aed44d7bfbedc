"""Brokers for tests: one per session for clients, a fresh one where a test looks inside or restarts it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.pytest_plugin import diamant_broker, diamant_faults, diamant_topic
from tests.broker.wire import WireClient

__all__ = ["diamant_broker", "diamant_faults", "diamant_topic"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker of this test's own, in this test's loop."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as running:
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[WireClient]:
    """A connection to `broker` that speaks the protocol byte by byte."""
    async with WireClient(broker.bootstrap_servers) as client:
        yield client
