"""Fixtures for tests that need a broker. They work without any configuration.

    def test_it(diamant_broker, diamant_topic):
        diamant_broker.produce(diamant_topic, "value", key="key")
        consumer = Consumer({"bootstrap.servers": diamant_broker.bootstrap_servers, "group.id": "test"})

The broker starts with the first test that uses it, on a free port and in a temporary directory, and also serves HTTP. It runs
for the whole session (under pytest-xdist, each worker has its own). `diamant_topic` gives every test its own topic name, so
tests need no cleanup. `diamant_manual_broker` is a broker for one test, with a clock that stands still until the test moves it:

    def test_it_is_forgotten(diamant_manual_broker):
        diamant_manual_broker.clock.advance("8d")

A mark gives a test, class or module (`pytestmark`) a broker with other settings, which may be any fields of `BrokerConfig`:

    @pytest.mark.diamant(num_partitions=3, auto_create=False)
    def test_it(diamant_broker): ...

`diamant_secure_broker` requires a login. It has the users alice and bob, and client configurations for them:

    def test_it(diamant_secure_broker):
        producer = Producer(diamant_secure_broker.client_config("alice").confluent())
        with pytest.raises(ClientRefused):
            diamant_secure_broker.client_config("alice", password="wrong").check()

`diamant_config` in a conftest.py applies settings to all brokers:

    @pytest.fixture(scope="session")
    def diamant_config():
        return {"num_partitions": 3}

`@pytest.mark.diamant_any_compaction(examples=50)` runs a consumer's test 50 times, each time with the cleaner running between
different fetches:

    @pytest.mark.diamant_any_compaction
    def test_the_table_is_right(diamant_broker): ...

`diamant_faults` injects faults into the broker for the duration of a test:

    def test_the_producer_tries_again(diamant_broker, diamant_topic, diamant_faults):
        fault = diamant_faults.add("Produce", topic=diamant_topic, error="NOT_LEADER_OR_FOLLOWER", times=2)
        ...
        fault.wait_fired(2)
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from diamant.broker.broker import BlockingBroker, Broker
    from diamant.broker.faults.installed_faults import Faults

MAX_NAME_LENGTH = 180
ANY_COMPACTION = "diamant_any_compaction"
OWN_CLEANER_OFF = {"log_cleaner_enable": False}
SECURE_USERS = {"alice": "alice-secret", "bob": "bob-secret"}
"""The users of `diamant_secure_broker`, and their passwords."""
_counter = itertools.count(1)


def pytest_load_initial_conftests() -> None:
    """Keep pytest from rewriting Diamant's modules even if `diamant` was imported before pytest."""
    from diamant.plain_imports import keep_plain

    keep_plain()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    config.addinivalue_line(
        "markers",
        "diamant(**settings): the settings of `diamant_broker`, `diamant_manual_broker`, `diamant_secure_broker`",
    )
    config.addinivalue_line(
        "markers",
        f"{ANY_COMPACTION}(examples=50, seed=None, schedule=None, late=True): run the test `examples` times, with the cleaner "
        "running between the fetches of its consumer",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that cannot be applied."""
    marked = [item for item in items if item.get_closest_marker(ANY_COMPACTION)]
    if marked:
        from diamant.broker.schedules.schedule_mark import check_mark

        for item in marked:
            check_mark(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a marked test once for each schedule of compactions."""
    if item.get_closest_marker(ANY_COMPACTION) is None:
        return None
    from diamant.broker.schedules.schedule_mark import run_marked

    run_marked(item, nextitem)
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked test a broker with the mark's settings. Consecutive tests with equal settings share it."""
    settings: dict[str, object] = {}
    for mark in reversed([*metafunc.definition.iter_markers("diamant")]):
        if mark.args:
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: @pytest.mark.diamant takes settings by name only")
        settings |= mark.kwargs
    name = ",".join(f"{key}={value}" for key, value in settings.items())
    scope: Literal["function"] | None = None
    if metafunc.definition.get_closest_marker(ANY_COMPACTION):
        settings = {**OWN_CLEANER_OFF, "log_cleanup_policy": "compact", **settings}
        name, scope = name or "any-compaction", "function"
    if settings:
        for fixture in {"diamant_broker", "diamant_manual_broker", "diamant_secure_broker"} & {*metafunc.fixturenames}:
            metafunc.parametrize(fixture, [pytest.param(settings, id=name)], indirect=True, scope=scope)


@pytest.fixture(scope="session")
def diamant_config() -> Mapping[str, Any]:
    """The settings of every broker of the session, as keywords of `BrokerConfig`. Override it in a conftest.py."""
    return {}


_SEVERAL = pytest.StashKey["list[BlockingBroker]"]()
"""The session's running `BlockingBroker` objects with more than one broker."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Bring all brokers up and in sync again, without lag or delay, before the next test, even if this one failed."""
    for broker in item.session.stash.get(_SEVERAL, ()):
        _mend(broker)


def _mend(broker: BlockingBroker) -> None:
    brokers = broker.brokers
    for one in brokers.list().brokers:
        if one.state != "up":
            brokers.up(one.id)
        if one.lag is not None:
            brokers.lag(one.id, 0)
        if one.delay_ms:
            brokers.slow(one.id, 0)
    for one in brokers.list().brokers:
        if one.in_sync_count < one.replica_count:  # a broker that came up with a lag has not caught up yet
            brokers.down(one.id)
            brokers.up(one.id)


@contextmanager
def _shared(broker: Broker, request: pytest.FixtureRequest) -> Iterator[BlockingBroker]:
    """Run a broker that several tests use."""
    with broker as running:
        several = request.session.stash.setdefault(_SEVERAL, [])
        if running.config.diamant_brokers > 1:
            several.append(running)
        try:
            yield running
        finally:
            several[:] = [one for one in several if one is not running]


def _broker(config: Mapping[str, Any], request: pytest.FixtureRequest, **settings: Any) -> Broker:
    from diamant.broker.broker import Broker

    settings = {"diamant_http_listen": "127.0.0.1:0", **settings, **config, **getattr(request, "param", {})}
    if "auto_create" in settings:
        settings["auto_create_topics_enable"] = settings.pop("auto_create")
    return Broker(**settings)


def _play(broker: BlockingBroker, request: pytest.FixtureRequest) -> BlockingBroker:
    """Apply the schedule of a marked test to the cleaner of its broker."""
    if request.scope == "function" and request.node.get_closest_marker(ANY_COMPACTION) is not None:
        from diamant.broker.schedules.schedule_mark import EXAMPLE

        example = request.node.stash[EXAMPLE]
        example.history = broker.play(example.schedule)
    return broker


@pytest.fixture(scope="session")
def diamant_broker(diamant_config: Mapping[str, Any], request: pytest.FixtureRequest) -> Iterator[BlockingBroker]:
    """A running broker; `diamant_broker.bootstrap_servers` is its address."""
    with _shared(_broker(diamant_config, request), request) as broker:
        yield _play(broker, request)


@pytest.fixture(scope="session")
def diamant_secure_broker(
    diamant_config: Mapping[str, Any], request: pytest.FixtureRequest
) -> Iterator[BlockingBroker]:
    """A running broker that requires a login as alice or bob; see `diamant_secure_broker.client_config("alice")`."""
    with _shared(_broker(diamant_config, request, users=SECURE_USERS), request) as broker:
        yield broker


@pytest.fixture
def diamant_manual_broker(
    diamant_config: Mapping[str, Any], request: pytest.FixtureRequest
) -> Iterator[BlockingBroker]:
    """A running broker for this test alone, with a clock that stands still until the test moves it."""
    with _broker(diamant_config, request, diamant_clock="manual") as broker:
        broker.clock.freeze()
        yield _play(broker, request)


@pytest.fixture(scope="session")
def diamant_prepare() -> Callable[[BlockingBroker], object]:
    """A function that fills the broker of `diamant_fresh`, once per session. Override it in a conftest.py."""
    return lambda broker: None


@pytest.fixture(scope="session")
def _diamant_prepared(
    diamant_config: Mapping[str, Any],
    diamant_prepare: Callable[[BlockingBroker], object],
    request: pytest.FixtureRequest,
) -> Iterator[BlockingBroker]:
    with _broker(diamant_config, request) as broker:
        diamant_prepare(broker)
        yield broker


@pytest.fixture
def diamant_fresh(_diamant_prepared: BlockingBroker, request: pytest.FixtureRequest) -> Iterator[BlockingBroker]:
    """A broker for this test alone, in the state that `diamant_prepare` created."""
    settings = OWN_CLEANER_OFF if request.node.get_closest_marker(ANY_COMPACTION) else {}
    with _diamant_prepared.fork(**settings) as broker:
        yield _play(broker, request)


@pytest.fixture
def diamant_topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test has. The topic is created when it is first used, as on Kafka."""
    test_name = re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")[:MAX_NAME_LENGTH]
    return f"{test_name}-{next(_counter)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def diamant_faults(diamant_broker: BlockingBroker) -> Iterator[Faults]:
    """The faults of `diamant_broker`. Faults that a test adds are removed after the test."""
    faults = diamant_broker.faults
    before = {fault.id for fault in faults.list()}
    yield faults
    for fault in faults.list():
        if fault.id not in before:
            fault.remove()
