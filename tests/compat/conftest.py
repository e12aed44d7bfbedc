"""The broker that the programs talk to: quick groups, and nothing else out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker

QUICK_GROUPS = {
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_heartbeat_interval_ms": 200,
}


@pytest.fixture(scope="session")
def compat_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker on a free port whose groups do not wait for members to come, and that hears of changes 5 times a second."""
    with Broker(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("compat"), **QUICK_GROUPS) as broker:
        yield broker


@pytest.fixture
def fresh_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """The same for one test."""
    with Broker(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("fresh"), **QUICK_GROUPS) as broker:
        yield broker


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """The same with TLS, and a certificate of a throw-away CA."""
    with Broker(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("secured"), tls=True, **QUICK_GROUPS) as broker:
        yield broker
