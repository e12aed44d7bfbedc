"""Real clients and a redacted topic: consumers read across the gaps to the end, producers go on where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from tests.ports import ReservedPort

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
COUNT = 300
TOPIC = "orders"
WHERE = 'value.email == "ada@example.com"'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker in a thread of its own, whose segments are small."""
    with Broker(config(tmp_path)) as running:
        yield running


def config(tmp_path: Path, listen: str = "127.0.0.1:0") -> BrokerConfig:
    properties = {"diamant.certificate.key.file": str(tmp_path / "certificate.key")}
    return BrokerConfig(listen=listen, data_dir=tmp_path / "data", properties=properties)


def is_adas(number: int) -> bool:
    """The beginning, the end, a run of whole batches, and every seventh."""
    return number < 25 or COUNT - 25 <= number < COUNT or 100 <= number < 180 or number % 7 == 0


def value(number: int) -> bytes:
    email = "ada" if is_adas(number) else "bob"
    return b'{"number": %d, "email": "%s@example.com", "pad": "%s"}' % (number, email.encode(), b"x" * 40)


async def create(broker: BlockingBroker) -> None:
    configs = {"internal.segment.bytes": "4000"}
    await create_topics(broker.node.topics, [check_new_topic(broker.node.topics, TOPIC, 1, 1, None, configs)])


def produce(producer: Any, first: int, last: int, flush_every: int = 10) -> None:
    errors: list[Any] = []
    for number in range(first, last):
        producer.produce(TOPIC, value(number), b"%d" % number, on_delivery=lambda error, _: errors.append(error))
        if number % flush_every == 0:
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0
    assert set(errors) == {None}


def filled(broker: BlockingBroker, **settings: Any) -> Any:
    """A topic with all values, and the idempotent producer that has written them."""
    from confluent_kafka import Producer

    broker.call(create(broker))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **settings})
    produce(producer, 0, COUNT)
    return producer


def redact(broker: BlockingBroker, where: str = WHERE, **options: Any) -> Any:
    redaction = broker.call(broker.redact(TOPIC, where=where, reason="asked for", **options))
    assert redaction.state == "records-gone"
    return redaction


EXPECTED = [number for number in range(COUNT) if not is_adas(number)]


def read_with_confluent(broker: BlockingBroker, isolation: str = "read_committed") -> list[tuple[Any, Any]]:
    """Offset and value of everything up to the end of the partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.message.max.bytes": 1000,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the end is never reached"
            error = message.error()
            if error is None:
                found.append((message.offset(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_confluent_kafka_reads_to_the_end(broker: BlockingBroker, codec: str) -> None:
    """What is left with its offsets, through batches of which nothing is left, in small fetches; at the end, too."""
    filled(broker, **{"compression.type": codec})
    assert redact(broker).removed == COUNT - len(EXPECTED)
    assert read_with_confluent(broker) == [(number, value(number)) for number in EXPECTED]


async def test_aiokafka_reads_to_the_end(tmp_path: Path) -> None:
    """Its position goes past the last batch, of which nothing is left."""
    import asyncio

    from aiokafka import AIOKafkaConsumer, TopicPartition

    with Broker(config(tmp_path)) as broker:
        await asyncio.to_thread(filled, broker)
        await asyncio.to_thread(redact, broker)
        partition = TopicPartition(TOPIC, 0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False, max_partition_fetch_bytes=1000
        )
        await consumer.start()
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            found: list[Any] = []
            async with asyncio.timeout(TIMEOUT_S):
                while await consumer.position(partition) < COUNT:
                    for batch in (await consumer.getmany(timeout_ms=100)).values():
                        found += [(one.offset, one.value) for one in batch]
            assert found == [(number, value(number)) for number in EXPECTED]
        finally:
            await consumer.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
def test_kafka_python_reads_to_the_end(broker: BlockingBroker) -> None:
    """The same with another decoder of batches."""
    from kafka import KafkaConsumer, TopicPartition

    filled(broker, **{"compression.type": "gzip"})
    redact(broker)
    partition = TopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False, max_partition_fetch_bytes=1000
    )
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[Any] = []
        for _ in range(10_000):
            if consumer.position(partition) >= COUNT:
                break
            for batch in consumer.poll(timeout_ms=100).values():
                found += [(one.offset, one.value) for one in batch]
        assert found == [(number, value(number)) for number in EXPECTED]
    finally:
        consumer.close()


def test_idempotent_and_transactional_producers_go_on(tmp_path: Path) -> None:
    """After everything of theirs was removed, and after a restart of the broker; nothing is lost or written twice."""
    with ReservedPort() as port:
        go_on(tmp_path, port.address)


def go_on(tmp_path: Path, address: str) -> None:
    """See above: both brokers are where the producers look for them."""
    from confluent_kafka import Producer

    with Broker(config(tmp_path, address)) as broker:
        producer = filled(broker)
        redact(broker, "value exists", yes_all=True)
        produce(producer, COUNT, COUNT + 30)
        assert [offset for offset, _ in read_with_confluent(broker)] == list(range(COUNT, COUNT + 30))
        transactional = Producer({"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0})
        transactional.init_transactions(TIMEOUT_S)
        for is_commit in (True, False, True):
            transactional.begin_transaction()
            produce(transactional, 0, 5)
            (transactional.commit_transaction if is_commit else transactional.abort_transaction)(TIMEOUT_S)
        redact(broker)
        end = [offset for offset, _ in read_with_confluent(broker)]
        transactional.begin_transaction()
        produce(transactional, 35, 37)
        transactional.commit_transaction(TIMEOUT_S)
        redact(broker, "value.number exists", yes_all=True)
        assert end == [offset for offset in range(COUNT, COUNT + 30) if not is_adas(offset)]
        assert read_with_confluent(broker, "read_uncommitted") == []
    with Broker(config(tmp_path, address)) as broker:
        produce(producer, 26, 27)
        transactional.begin_transaction()
        produce(transactional, 29, 30)
        transactional.commit_transaction(TIMEOUT_S)
        assert [found for _, found in read_with_confluent(broker)] == [value(26), value(29)]
