"""Real clients at the upper end: messages of 10 MB, and many messages that are counted."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.wire import WireClient

TIMEOUT_S = 60
LARGE_BYTES = 10_000_000
MAX_MESSAGE_BYTES = 10_500_000

# One that compresses to nothing, one that does not compress, and the end of the log after them.
LARGE = [b"x" * LARGE_BYTES, random.Random(10).randbytes(LARGE_BYTES), b"the last"]


def digests(values: list[bytes | None]) -> list[str]:
    """What is compared in place of 10 MB, whose difference nobody wants to read."""
    return [f"{len(value or b'')} bytes, {sha256(value or b'').hexdigest()}" for value in values]


@pytest.fixture(scope="module")
def roomy_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker whose data go with this module, as they are many."""
    config = BrokerConfig(
        listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("large"), auto_create_topics_enable=False
    )
    with Broker(config) as broker:
        yield broker
    shutil.rmtree(config.data_dir)


def create(broker: BlockingBroker, topic: str) -> str:
    """A topic that takes large messages; the broker's address."""

    async def run() -> None:
        async with WireClient(broker.bootstrap_servers) as client:
            created = await client.create(topic, max_message_bytes=str(MAX_MESSAGE_BYTES))
            assert created.error_code == ErrorCode.NONE, created

    asyncio.run(run())
    return broker.bootstrap_servers


def confluent_send(servers: str, topic: str, values: list[bytes], **config: Any) -> None:
    """Send with librdkafka; all must be acknowledged."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "queue.buffering.max.messages": 0,
            **config,
        }
    )
    errors: set[Any] = set()
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.add(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == {None}


def confluent_read(servers: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of everything, to the end of the partition; it must not go on after `count`."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.message.max.bytes": 1_000_000,  # KIP-74: a larger message comes all the same
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    received: list[tuple[int, bytes | None]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                received.append((message.offset(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                if len(received) >= count:
                    consumer.close()
                    return received
        assert time.monotonic() < deadline, f"{len(received)} of {count} came"


async def aiokafka_send(servers: str, topic: str, values: list[bytes], **config: Any) -> None:
    """Send with aiokafka; all must be acknowledged, at the offsets 0, 1, 2..."""
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=servers, max_request_size=MAX_MESSAGE_BYTES, **config) as producer:
        sent = [await producer.send(topic, value) for value in values]
        async with asyncio.timeout(TIMEOUT_S):
            assert [(await future).offset for future in sent] == list(range(len(values)))


async def aiokafka_read(servers: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of everything up to the end offset, which must be `count`."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="none", max_partition_fetch_bytes=1_000_000
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        received: list[tuple[int, bytes | None]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(received) < count:
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    received += [(message.offset, message.value) for message in messages]
        assert (await consumer.end_offsets([partition]))[partition] == count
        return received


def kafka_python_send(servers: str, topic: str, values: list[bytes], **config: Any) -> None:
    """Send with kafka-python; all must be acknowledged, at the offsets 0, 1, 2..."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, max_request_size=MAX_MESSAGE_BYTES, **config)
    sent = [producer.send(topic, value) for value in values]
    assert [future.get(TIMEOUT_S).offset for future in sent] == list(range(len(values)))
    producer.close()


def kafka_python_read(servers: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of everything up to the end offset, which must be `count`."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers, consumer_timeout_ms=TIMEOUT_S * 1000, max_partition_fetch_bytes=1_000_000
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    received: list[tuple[int, bytes | None]] = []
    while len(received) < count:
        for messages in consumer.poll(1000).values():
            received += [(message.offset, message.value) for message in messages]
    ends = consumer.end_offsets([partition])
    consumer.close()
    assert ends[partition] == count
    return received


def run_aiokafka_send(servers: str, topic: str, values: list[bytes], **config: Any) -> None:
    asyncio.run(aiokafka_send(servers, topic, values, **config))


def run_aiokafka_read(servers: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    return asyncio.run(aiokafka_read(servers, topic, count))


Send = Callable[..., None]
Read = Callable[[str, str, int], list[tuple[int, bytes | None]]]

CLIENTS = [
    pytest.param(confluent_send, confluent_read, id="confluent-kafka"),
    pytest.param(run_aiokafka_send, run_aiokafka_read, id="aiokafka"),
    pytest.param(
        kafka_python_send,
        kafka_python_read,
        id="kafka-python",
        marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of its own making
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("send", "read"), CLIENTS)
def test_ten_megabytes(roomy_broker: BlockingBroker, diamant_topic: str, send: Send, read: Read) -> None:
    """Messages of 10 MB go through whole where the topic allows them, also to a consumer that asks for less."""
    servers = create(roomy_broker, diamant_topic)
    send(servers, diamant_topic, LARGE)
    received = read(servers, diamant_topic, len(LARGE))
    assert [offset for offset, _ in received] == [0, 1, 2]
    assert digests([value for _, value in received]) == digests([*LARGE])


@pytest.mark.slow
@pytest.mark.parametrize(("send", "read"), CLIENTS)
def test_ten_megabytes_of_another_client(
    roomy_broker: BlockingBroker, diamant_topic: str, send: Send, read: Read
) -> None:
    """What one client sent, compressed, each other client reads."""
    servers = create(roomy_broker, diamant_topic)
    compression = "compression.type" if send is confluent_send else "compression_type"
    send(servers, diamant_topic, LARGE, **{compression: "lz4"})
    for other in (confluent_read, run_aiokafka_read, kafka_python_read):
        if other is not read:
            received = other(servers, diamant_topic, len(LARGE))
            assert digests([value for _, value in received]) == digests([*LARGE])


SETTINGS: dict[Any, dict[str, Any]] = {
    confluent_send: {"linger.ms": 5, "enable.idempotence": True},
    run_aiokafka_send: {"linger_ms": 5, "enable_idempotence": True, "max_batch_size": 200_000},
    kafka_python_send: {"linger_ms": 5, "enable_idempotence": True, "batch_size": 200_000},
}


@pytest.mark.parametrize(
    "count", [pytest.param(10_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("send", "read"), CLIENTS)
def test_many_messages(roomy_broker: BlockingBroker, diamant_topic: str, send: Send, read: Read, count: int) -> None:
    """Every message arrives once, at its own offset, in the order in which it was sent."""
    servers = create(roomy_broker, diamant_topic)
    values = [b"%d" % number for number in range(count)]
    send(servers, diamant_topic, values, **SETTINGS[send])
    received = read(servers, diamant_topic, count)
    assert len(received) == count
    assert received == list(enumerate(values))
