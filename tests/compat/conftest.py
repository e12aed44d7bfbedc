"""The broker that the programs talk to: quick groups, and nothing else out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig


@pytest.fixture(scope="session")
def compat_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker on a free port whose groups do not wait for members to come, and that hears of changes 5 times a second."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("compat"),
        group_initial_rebalance_delay_ms=0,
        group_consumer_min_heartbeat_interval_ms=100,
        group_consumer_heartbeat_interval_ms=200,
    )
    with Broker(config) as broker:
        yield broker
