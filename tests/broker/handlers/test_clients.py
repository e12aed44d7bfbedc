"""Real clients against a running broker: every codec, idempotent and not, headers, nulls, large messages, admin."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker

Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

MESSAGES: list[Message] = [
    (b"key", b"value", []),
    (None, b"no key", []),
    (b"tombstone", None, []),
    (b"", b"", []),
    (
        b"headers",
        b"v",
        [("a", b"1"), ("a", b"2"), ("empty", b""), ("", b"no name"), ("\u00e9", b"\xff")],
    ),
    (b"large", bytes(range(256)) * 3000, []),
    *((str(number).encode(), b"x" * number, []) for number in range(200)),
]
# kafka-python refuses to send the first, both Python clients the others.
WITHOUT_VALUES: list[Message] = [
    (b"null header", b"v", [("null", None), ("one", b"1")]),
    (None, None, []),
    (None, None, [("header alone", b"1")]),
]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_S = 60


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka(diamant_broker: Broker, diamant_topic: str, codec: str, idempotent: bool) -> None:
    """Librdkafka gets back what it sent, in order, and the batches are stored in the codec it was told to use."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    sent = MESSAGES + WITHOUT_VALUES
    errors: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": diamant_broker.bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 20,
        }
    )
    for key, value, headers in sent:
        producer.produce(diamant_topic, value, key, headers=headers, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert set(errors) == {None}
    consumer = Consumer(
        {"bootstrap.servers": diamant_broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(diamant_topic, 0, 0)])
    received: list[Message] = []
    while len(received) < len(sent):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        received.append((message.key(), message.value(), message.headers() or []))
    consumer.close()
    assert received == sent
    assert diamant_broker.node.topics.log(diamant_topic, 0).log_end_offset == len(sent)
    assert CODECS.index(codec) in stored_codecs(diamant_broker, diamant_topic)


def stored_codecs(broker: Broker, topic: str) -> set[int]:
    """The codecs of the batches on disk."""
    from diamant.protocol.batches.batch import iter_headers

    log = broker.node.topics.log(topic, 0)
    with open(log.active.file.path, "rb") as file:
        return {header.codec for _, header in iter_headers(file.read())}


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
async def test_aiokafka(diamant_broker: Broker, diamant_topic: str, codec: str, idempotent: bool) -> None:
    """Aiokafka gets back what it sent, in order."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    servers = diamant_broker.bootstrap_servers
    async with AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        acks="all" if idempotent else 1,
    ) as producer:
        sent = [await producer.send(diamant_topic, value, key, headers=headers) for key, value, headers in MESSAGES]
        offsets = [(await future).offset for future in sent]
        assert offsets == list(range(len(MESSAGES)))
    async with AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(diamant_topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        received: list[Message] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(received) < len(MESSAGES):
                message = await consumer.getone()
                received.append((message.key, message.value, list(message.headers)))
        assert received == MESSAGES
        assert (await consumer.end_offsets([partition]))[partition] == len(MESSAGES)
    assert CODECS.index(codec) in stored_codecs(diamant_broker, diamant_topic)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python(diamant_broker: Broker, diamant_topic: str, codec: str, idempotent: bool) -> None:
    """kafka-python gets back what it sent, in order."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(
        bootstrap_servers=diamant_broker.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
    )
    sent = [producer.send(diamant_topic, value, key, headers=headers) for key, value, headers in MESSAGES]
    assert [future.get(TIMEOUT_S).offset for future in sent] == list(range(len(MESSAGES)))
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=diamant_broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    partition = TopicPartition(diamant_topic, 0)
    consumer.assign([partition])
    received: list[Message] = []
    for message in consumer:
        received.append((message.key, message.value, list(message.headers)))
        if len(received) == len(MESSAGES):
            break
    ends = consumer.end_offsets([partition])
    consumer.close()
    assert received == MESSAGES
    assert ends[partition] == len(MESSAGES)
    assert CODECS.index(codec) in stored_codecs(diamant_broker, diamant_topic)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(diamant_broker: Broker, diamant_topic: str, acks: str) -> None:
    """Every level of acknowledgement delivers."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers, "acks": acks})
    for number in range(100):
        producer.produce(diamant_topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    wait_for(lambda: diamant_broker.node.topics.log(diamant_topic, 0).log_end_offset == 100)


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_megabyte_that_does_not_compress(diamant_broker: Broker, diamant_topic: str) -> None:
    """A message near max.message.bytes goes through whole; one beyond it is refused with the right error."""
    from confluent_kafka import KafkaError, Producer

    producer = Producer(
        {"bootstrap.servers": diamant_broker.bootstrap_servers, "message.max.bytes": 10_000_000, "linger.ms": 0}
    )
    errors: list[Any] = []
    for size in (1_000_000, 3_000_000):
        producer.produce(diamant_topic, os.urandom(size), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
    assert errors[0] is None
    assert errors[1].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_confluent_admin(diamant_broker: Broker, diamant_topic: str) -> None:
    """Librdkafka's admin client creates, grows, configures, describes, cuts and deletes a topic."""
    from confluent_kafka import TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )

    admin = AdminClient({"bootstrap.servers": diamant_broker.bootstrap_servers})

    def done(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    done(admin.create_topics([NewTopic(diamant_topic, 2, 1, config={"retention.ms": "5000"})]))
    done(admin.create_partitions([NewPartitions(diamant_topic, 4)]))
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[diamant_topic].partitions) == 4
    described = done(admin.describe_topics(TopicCollection([diamant_topic])))
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    entry = ConfigEntry("retention.ms", "6000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, diamant_topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    configs = done(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, diamant_topic)]))
    assert configs["retention.ms"].value == "6000"
    partition = TopicPartition(diamant_topic, 0)
    assert done(admin.list_offsets({partition: OffsetSpec.latest()})).offset == 0
    assert done(admin.delete_records([TopicPartition(diamant_topic, 0, 0)])).low_watermark == 0
    assert admin.describe_cluster().result(TIMEOUT_S).controller.id == 1
    done(admin.delete_topics([diamant_topic]))
    assert diamant_topic not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
def test_kafka_python_admin(diamant_broker: Broker, diamant_topic: str) -> None:
    """kafka-python's admin client creates, describes and deletes a topic."""
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=diamant_broker.bootstrap_servers)
    admin.create_topics([NewTopic(diamant_topic, 3, 1)])
    assert diamant_topic in admin.list_topics()
    (described,) = admin.describe_topics([diamant_topic])
    assert len(described["partitions"]) == 3
    admin.delete_topics([diamant_topic])
    assert diamant_topic not in admin.list_topics()
    admin.close()
