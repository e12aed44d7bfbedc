"""A broker for the stories of `classic_cases`, in its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.groups.classic.classic_cases import BROKER_CONFIGS, wait_for_coordinator


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """Short sessions and small groups are allowed; the group coordinator has its topic."""
    data_dir = tmp_path_factory.mktemp("groups")
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, properties=dict(BROKER_CONFIGS))) as broker:
        asyncio.run(wait_for_coordinator(broker.bootstrap_servers))
        yield broker
