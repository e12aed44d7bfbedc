"""Real clients recover from what goes wrong on demand: each test is an example of a fault and of who survives it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.faults.faults import Faults

# Of kafka-python's and aiokafka's own making.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

TIMEOUT_S = 60
RETRY_MS = 20
VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def diamant_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker that does not wait for further members of a group."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("faults"),
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=1,
    )
    with Broker(config) as broker:
        yield broker


class Client(Protocol):
    """A client library: what the tests need of it."""

    def produce(self, servers: str, topic: str, values: list[bytes], *, idempotent: bool = False) -> None:
        """Send, one record in a request, and return when all are acknowledged."""
        ...

    def consume(self, servers: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        """Read partition 0 from its beginning, or as the only member of a group."""
        ...


class ConfluentKafka:
    """librdkafka."""

    def produce(self, servers: str, topic: str, values: list[bytes], *, idempotent: bool = False) -> None:
        """As `Client`."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": idempotent,
                "linger.ms": 0,
                "retry.backoff.ms": RETRY_MS,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": RETRY_MS,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": RETRY_MS,
                "topic.metadata.refresh.interval.ms": 300,
                "log_level": 0,
            }
        )
        errors: list[Any] = []
        for value in values:
            producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(TIMEOUT_S) == 0
        assert errors == [None] * len(values)

    def consume(self, servers: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        """As `Client`."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group or "none",
                "enable.auto.commit": group is not None,
                "auto.offset.reset": "earliest",
                "fetch.error.backoff.ms": RETRY_MS,
                "retry.backoff.ms": RETRY_MS,
                "reconnect.backoff.ms": RETRY_MS,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": RETRY_MS,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        if group is None:
            consumer.assign([TopicPartition(topic, 0, 0)])
        else:
            consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().retriable() or not message.error().fatal()
        consumer.close()
        return found


class KafkaPython:
    """kafka-python."""

    def produce(self, servers: str, topic: str, values: list[bytes], *, idempotent: bool = False) -> None:
        """As `Client`."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=servers,
            enable_idempotence=idempotent,
            retries=100,
            retry_backoff_ms=RETRY_MS,
            reconnect_backoff_ms=RETRY_MS,
            reconnect_backoff_max_ms=100,
            max_in_flight_requests_per_connection=1,
        )
        for value in values:
            producer.send(topic, value).get(TIMEOUT_S)
        producer.close()

    def consume(self, servers: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        """As `Client`."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_S * 1000,
            retry_backoff_ms=RETRY_MS,
            reconnect_backoff_ms=RETRY_MS,
            reconnect_backoff_max_ms=100,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,  # or it may miss the topic of a subscription for five minutes
        )
        if group is None:
            consumer.assign([TopicPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        found: list[bytes] = []
        for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
        consumer.close()
        return found


class AioKafka:
    """aiokafka."""

    def produce(self, servers: str, topic: str, values: list[bytes], *, idempotent: bool = False) -> None:
        """As `Client`."""
        asyncio.run(self._produce(servers, topic, values, idempotent))

    def consume(self, servers: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        """As `Client`."""
        return asyncio.run(self._consume(servers, topic, count, group))

    async def _produce(self, servers: str, topic: str, values: list[bytes], idempotent: bool) -> None:
        from aiokafka import AIOKafkaProducer

        async with (
            asyncio.timeout(TIMEOUT_S),
            AIOKafkaProducer(
                bootstrap_servers=servers, enable_idempotence=idempotent, acks="all", retry_backoff_ms=RETRY_MS
            ) as producer,
        ):
            for value in values:
                await producer.send_and_wait(topic, value)

    async def _consume(self, servers: str, topic: str, count: int, group: str | None) -> list[bytes]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            retry_backoff_ms=RETRY_MS,
            fetch_max_wait_ms=100,
        )
        if group is None:
            consumer.assign([TopicPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        async with asyncio.timeout(TIMEOUT_S), consumer:
            return [(await consumer.getone()).value for _ in range(count)]


CLIENTS = [ConfluentKafka(), *(pytest.param(client, marks=pytest.mark.slow) for client in (KafkaPython(), AioKafka()))]
with_each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: type(client).__name__)


def stored(broker: BlockingBroker, topic: str) -> list[bytes | None]:
    """The values in the topic's first partition."""
    from diamant.protocol.batches.batch import iter_headers
    from diamant.protocol.batches.records import iter_records

    log = broker.node.topics.log(topic, 0)
    with open(log.active.file.path, "rb") as file:
        data = file.read()
    return [record.value for position, _ in iter_headers(data) for record in iter_records(data, position)]


# -- producers ---------------------------------------------------------------------------------------------------------


@with_each_client
def test_a_producer_looks_for_the_new_leader(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """NOT_LEADER_OR_FOLLOWER: it asks for metadata and tries again; nothing is lost and nothing twice."""
    fault = diamant_faults.add("Produce", topic=diamant_topic, error="NOT_LEADER_OR_FOLLOWER", times=2)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    assert fault.count == 2
    assert stored(diamant_broker, diamant_topic) == VALUES


@pytest.mark.slow
@with_each_client
def test_an_idempotent_producer_sends_again_what_was_written(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """The connection goes after the batch was appended: the producer cannot know, sends again, and it counts once."""
    fault = diamant_faults.add("Produce", topic=diamant_topic, after=1, times=1, drop=True, after_applying=True)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES, idempotent=True)
    assert (fault.count, fault.matched) == (1, 4)
    assert stored(diamant_broker, diamant_topic) == VALUES


@with_each_client
def test_a_producer_survives_a_request_that_is_lost(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """The connection goes before anything is done: even without idempotence the batch is there once."""
    fault = diamant_faults.add("Produce", topic=diamant_topic, times=1, drop=True)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    assert fault.count == 1
    assert stored(diamant_broker, diamant_topic) == VALUES


@with_each_client
def test_a_producer_bears_throttling(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """An answer that says the client is over its quota holds it up and is no failure."""
    fault = diamant_faults.add("Produce", topic=diamant_topic, throttle_time_ms=30)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    assert fault.count == 3
    assert stored(diamant_broker, diamant_topic) == VALUES


# -- metadata ----------------------------------------------------------------------------------------------------------


@with_each_client
def test_a_client_gets_over_metadata_without_the_topic(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """As right after a creation that not every broker knows of: it asks until the topic is there."""
    fault = diamant_faults.add(topic=diamant_topic, stale={"missing": True}, times=2)
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    assert fault.count == 2
    assert stored(diamant_broker, diamant_topic) == VALUES


@pytest.mark.slow
@with_each_client
def test_a_client_gets_over_a_leader_that_is_gone(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """Stale metadata name a broker that nobody answers for: the client cannot connect and asks again."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        port = nobody.getsockname()[1]
        fault = diamant_faults.add(topic=diamant_topic, stale={"leader_id": 7, "port": port}, times=1)
        client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    assert fault.count == 1
    assert stored(diamant_broker, diamant_topic) == VALUES


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@with_each_client
def test_a_consumer_starts_over_where_its_offset_is_gone(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """OFFSET_OUT_OF_RANGE: with a reset policy it asks for the beginning and reads on from there."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    fault = diamant_faults.add("Fetch", topic=diamant_topic, error="OFFSET_OUT_OF_RANGE", times=1)
    assert client.consume(diamant_broker.bootstrap_servers, diamant_topic, 3) == VALUES
    assert fault.count == 1


@with_each_client
@pytest.mark.slow
def test_a_consumer_survives_an_answer_that_is_cut(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """Half a frame, then the end of the connection: it connects again and fetches once more."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    fault = diamant_faults.add("Fetch", topic=diamant_topic, cut=True, times=1)
    assert client.consume(diamant_broker.bootstrap_servers, diamant_topic, 3) == VALUES
    assert fault.count == 1


@pytest.mark.slow
@with_each_client
def test_a_consumer_waits_for_an_answer_that_is_late(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """It neither gives up nor reads anything twice."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    fault = diamant_faults.add("Fetch", topic=diamant_topic, delay_ms=200, times=1)
    started_s = time.monotonic()
    assert client.consume(diamant_broker.bootstrap_servers, diamant_topic, 3) == VALUES
    assert time.monotonic() - started_s >= 0.2
    assert fault.count == 1


@with_each_client
def test_a_consumer_gets_what_was_held(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """A fetch that is held until it is let go holds up nothing but itself: the consumer then reads on."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    fault = diamant_faults.add("Fetch", topic=diamant_topic, hold=True, times=1)
    with ThreadPoolExecutor(1) as threads:
        consumed = threads.submit(client.consume, diamant_broker.bootstrap_servers, diamant_topic, 3)
        fault.wait_fired()
        assert (fault.held, consumed.done()) == (1, False)
        assert fault.release() == 1
        assert consumed.result() == VALUES
    assert (fault.count, fault.held) == (1, 0)


@with_each_client
@pytest.mark.slow
def test_a_group_waits_for_its_coordinator(
    diamant_broker: BlockingBroker, diamant_topic: str, diamant_faults: Faults, client: Client
) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS, as after a restart: the consumer comes again until it may join."""
    client.produce(diamant_broker.bootstrap_servers, diamant_topic, VALUES)
    fault = diamant_faults.add(coordinator_loading=True, times=1)
    found = client.consume(diamant_broker.bootstrap_servers, diamant_topic, 3, group=f"group-of-{diamant_topic}")
    assert found == VALUES
    assert fault.count == 1
