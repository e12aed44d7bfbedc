"""Fixtures for tests against a broker, with nothing to configure.

    def test_it(diamant_broker, diamant_topic):
        producer = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers})
        producer.produce(diamant_topic, b"value")

The broker starts with the first test that asks for it, on a free port, in a temporary directory, and lives as long as
the session (under pytest-xdist: one for each worker). Every test has a topic name of its own, so tests need no
cleaning up between them. `diamant_faults` has the broker do something wrong, for the length of a test:

    def test_the_producer_tries_again(diamant_broker, diamant_topic, diamant_faults):
        fault = diamant_faults.add("Produce", topic=diamant_topic, error="NOT_LEADER_OR_FOLLOWER", times=2)
        ...
        fault.wait_fired(2)

`diamant_manual_broker` is a broker of the test's own whose clock stands until the test moves it:

    def test_it_is_forgotten(diamant_manual_broker):
        diamant_manual_broker.call(diamant_manual_broker.clock.advance("8d"))
        admin = diamant.Admin(diamant_manual_broker.bootstrap_servers)
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from diamant.broker.broker import Broker
    from diamant.broker.faults.faults import Faults

MAX_NAME_LENGTH = 180
_counter = itertools.count(1)


def pytest_load_initial_conftests() -> None:
    """Keep pytest's hands off our modules also where `diamant` was imported before pytest."""
    from diamant.plain_imports import keep_plain

    keep_plain()


@pytest.fixture(scope="session")
def diamant_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker; `diamant_broker.bootstrap_servers` is its address."""
    from diamant.broker.broker import Broker
    from diamant.broker.config.broker_config import BrokerConfig

    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("diamant"))
    with Broker(config) as broker:
        yield broker


@pytest.fixture
def diamant_manual_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker of this test's own, with HTTP on a free port, whose clock stands until the test moves it."""
    from diamant.broker.broker import Broker
    from diamant.broker.config.broker_config import BrokerConfig

    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("diamant"),
        diamant_http_listen="127.0.0.1:0",
        diamant_clock="manual",
    )
    with Broker(config) as broker:
        broker.call(broker.clock.freeze())
        yield broker


@pytest.fixture
def diamant_topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test has; the topic comes into being when it is first used."""
    test_name = re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")[:MAX_NAME_LENGTH]
    return f"{test_name}-{next(_counter)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def diamant_faults(diamant_broker: Broker) -> Iterator[Faults]:
    """The faults of `diamant_broker`; those that the test adds are removed after it."""
    faults = diamant_broker.faults
    before = {fault.id for fault in faults.list()}
    yield faults
    for fault in faults.list():
        if fault.id not in before:
            fault.remove()
