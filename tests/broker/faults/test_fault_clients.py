"""Real clients recover from faults: each test is an example of a fault and the clients that survive it."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.faults.installed_faults import Faults
from tests.broker.real_clients import OWN_WARNINGS, AioKafka, Client, ConfluentKafka, KafkaPython, Message

pytestmark = OWN_WARNINGS


@pytest.fixture(scope="module")
def diamant_broker() -> Iterator[BlockingBroker]:
    """A broker without an initial rebalance delay."""
    with Broker(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1) as broker:
        yield broker


@pytest.fixture(autouse=True)
def no_sockets_left(client: Client) -> Iterator[None]:
    """kafka-python that is closed while it connects leaves the socket to the garbage collector: not in a later test."""
    yield
    if isinstance(client, KafkaPython):
        gc.collect()


MESSAGES = [Message(None, value) for value in (b"one", b"two", b"three")]
VALUES = [one.value for one in MESSAGES]
SLOW = pytest.mark.slow
EACH_CLIENT = [
    pytest.param(ConfluentKafka(), id="confluent-kafka"),
    pytest.param(KafkaPython(), id="kafka-python", marks=SLOW),
    pytest.param(AioKafka(), id="aiokafka", marks=SLOW),
]
with_each_client = pytest.mark.parametrize("client", EACH_CLIENT)


def stored(broker: BlockingBroker, topic: str) -> list[bytes | None]:
    """Return the values in the topic's first partition."""
    from diamant.protocol.batches.batch import iter_headers
    from diamant.protocol.batches.batch_records import iter_records

    log = broker.node.topics.log(topic, 0)
    with open(log.active.file.path, "rb") as file:
        data = file.read()
    return [record.value for position, _ in iter_headers(data) for record in iter_records(data, position)]


@pytest.mark.parametrize(
    ("fault", "count", "idempotent"),
    [
        # NOT_LEADER_OR_FOLLOWER: it asks for metadata and tries again; nothing is lost and nothing twice.
        pytest.param({"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}, 2, False, id="new-leader"),
        # The connection goes after the batch was appended: the producer cannot know, sends again, and it counts once.
        pytest.param(
            {"api": "Produce", "after": 1, "times": 1, "drop": True, "after_applying": True},
            1,
            True,
            id="written-and-lost",
            marks=SLOW,
        ),
        # The connection goes before anything is done: even without idempotence the batch is there once.
        pytest.param({"api": "Produce", "times": 1, "drop": True}, 1, False, id="lost"),
        # An answer that says the client is over its quota holds it up and is no failure.
        pytest.param({"api": "Produce", "throttle_time_ms": 30}, 3, False, id="throttled"),
        # Metadata as right after a creation that not every broker knows of: it asks until the topic is there.
        pytest.param({"stale": {"missing": True}, "times": 2}, 2, False, id="topic-missing"),
    ],
)
@with_each_client
def test_a_producer_recovers(
    diamant_broker: BlockingBroker,
    diamant_topic: str,
    diamant_faults: Faults,
    client: Client,
    fault: dict[str, Any],
    count: int,
    idempotent: bool,
) -> None:
    """Under any fault of its requests, each record is stored once and in order."""
    armed = diamant_faults.add(topic=diamant_topic, **fault)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, MESSAGES, idempotent=idempotent, one_by_one=True)
    assert armed.count == count
    assert not idempotent or armed.matched == 4
    assert stored(diamant_broker, diamant_topic) == VALUES


@pytest.mark.slow
@with_each_client
def test_a_client_gets_over_a_leader_that_is_gone(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """Stale metadata name a dead broker: the client cannot connect, and refreshes its metadata."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        port = nobody.getsockname()[1]
        fault = diamant_faults.add(topic=diamant_topic, stale={"leader_id": 7, "port": port}, times=1)
        client.produce(diamant_broker.bootstrap_servers, diamant_topic, MESSAGES, one_by_one=True)
    assert fault.count == 1
    assert stored(diamant_broker, diamant_topic) == VALUES


@pytest.fixture
def servers(diamant_broker: BlockingBroker, diamant_topic: str, client: Client) -> str:
    """The address of a broker whose topic has three messages."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, MESSAGES, one_by_one=True)
    return diamant_broker.bootstrap_servers


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        # With a reset policy it asks for the beginning and reads on from there.
        pytest.param({"error": "OFFSET_OUT_OF_RANGE"}, id="offset-gone"),
        # Half a frame, then the end of the connection: it connects again and fetches once more.
        pytest.param({"cut": True}, id="cut"),
        # It neither gives up nor reads anything twice.
        pytest.param({"delay_ms": 200}, id="late"),
    ],
)
@with_each_client
def test_a_consumer_recovers(
    servers: str, diamant_topic: str, diamant_faults: Faults, client: Client, fault: dict[str, Any]
) -> None:
    """Under any fault of a response, it reads each record once, and none before it may."""
    armed = diamant_faults.add("Fetch", topic=diamant_topic, times=1, **fault)
    started_s = time.monotonic()
    assert [one.value for one in client.consume(servers, diamant_topic)] == VALUES
    assert time.monotonic() - started_s >= fault.get("delay_ms", 0) / 1000
    assert armed.count == 1


@with_each_client
def test_a_consumer_gets_what_was_held(
    servers: str, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """A held fetch blocks only itself; after its release the consumer continues."""
    fault = diamant_faults.add("Fetch", topic=diamant_topic, hold=True, times=1)
    with ThreadPoolExecutor(1) as threads:
        consumed = threads.submit(client.consume, servers, diamant_topic)
        fault.wait_fired()
        assert (fault.held, consumed.done()) == (1, False)
        assert fault.release() == 1
        assert [one.value for one in consumed.result()] == VALUES
    assert (fault.count, fault.held) == (1, 0)


@with_each_client
@pytest.mark.slow
def test_a_group_waits_for_its_coordinator(
    servers: str, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """As after a restart, the consumer gets COORDINATOR_LOAD_IN_PROGRESS and retries until it joins."""
    fault = diamant_faults.add(coordinator_loading=True, times=1)
    found = client.consume(servers, diamant_topic, group=f"group-of-{diamant_topic}", count=3)
    assert [one.value for one in found] == VALUES
    assert fault.count == 1
