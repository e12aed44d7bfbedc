"""Transactions of real clients: commit, abort, offsets in a transaction, fencing, and readers of committed records."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker
from tests.broker.transactions.txn_wire import TxnProducer, wait_for_committed_offset
from tests.broker.wire import WireClient

TIMEOUT_S = 60


@pytest.fixture
def new_id() -> str:
    """A unique transactional id or group id."""
    return uuid.uuid4().hex


# -- confluent-kafka -----------------------------------------------------------------------------------------------------


def confluent_producer(broker: Broker, transactional_id: str) -> Any:
    """An initialized producer."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    return producer


def confluent_read(broker: Broker, topic: str, count: int, *, isolation: str = "read_committed") -> list[bytes]:
    """Return this many values from the beginning of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while len(values) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(values)} of {count} messages came"
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


@pytest.mark.slow
def test_confluent_kafka(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """Librdkafka commits, aborts, and continues; read_committed readers get committed values only, others get all."""
    producer = confluent_producer(diamant_broker, new_id)
    for number in range(4):
        producer.begin_transaction()
        for part in (b"a", b"b"):
            producer.produce(diamant_topic, b"%d%b" % (number, part))
        if number % 2:
            assert producer.flush(TIMEOUT_S) == 0
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    assert confluent_read(diamant_broker, diamant_topic, 4) == [b"0a", b"0b", b"2a", b"2b"]
    assert len(confluent_read(diamant_broker, diamant_topic, 8, isolation="read_uncommitted")) == 8


@pytest.mark.slow
def test_confluent_kafka_is_fenced(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """A second producer with the id fences the first, whose open transaction is aborted."""
    from confluent_kafka import KafkaException

    first = confluent_producer(diamant_broker, new_id)
    first.begin_transaction()
    first.produce(diamant_topic, b"first")
    assert first.flush(TIMEOUT_S) == 0
    second = confluent_producer(diamant_broker, new_id)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(diamant_topic, b"second")
    second.commit_transaction(TIMEOUT_S)
    assert confluent_read(diamant_broker, diamant_topic, 1) == [b"second"]


@pytest.mark.slow
def test_confluent_kafka_reads_processes_and_writes(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """Offsets of a transaction follow its records: dropped by an abort, effective after a commit."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    source = f"{diamant_topic}-source"
    plain = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers})
    for number in range(6):
        plain.produce(source, b"%d" % number)
    assert plain.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": diamant_broker.bootstrap_servers,
            "group.id": new_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = confluent_producer(diamant_broker, new_id)
    for number in range(6):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        producer.begin_transaction()
        producer.produce(diamant_topic, message.value() + b"!")
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, message.offset() + 1)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if number == 3:
            producer.abort_transaction(TIMEOUT_S)
            break
        producer.commit_transaction(TIMEOUT_S)
    assert [part.offset for part in consumer.committed([TopicPartition(source, 0)], TIMEOUT_S)] == [3]
    consumer.close()
    assert confluent_read(diamant_broker, diamant_topic, 3) == [b"0!", b"1!", b"2!"]


# -- aiokafka ------------------------------------------------------------------------------------------------------------


async def test_aiokafka(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """It commits, aborts and sends offsets; its reader gets committed values."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    servers = diamant_broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=new_id) as producer:
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait(diamant_topic, b"%d" % number, partition=0)
            await producer.send_offsets_to_transaction({TopicPartition(diamant_topic, 0): number + 10}, new_id)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    consumer = AIOKafkaConsumer(
        diamant_topic, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer, asyncio.timeout(TIMEOUT_S):
        assert [(await consumer.getone()).value for _ in range(2)] == [b"0", b"2"]
    async with WireClient(servers) as wire:
        assert await wait_for_committed_offset(wire, new_id, diamant_topic) == ("NONE", 12)


async def test_aiokafka_is_fenced(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """The first of two producers with one id gets a fencing error on every call."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError, ProducerFenced

    servers = diamant_broker.bootstrap_servers
    first = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=new_id)
    await first.start()
    await first.begin_transaction()
    await first.send_and_wait(diamant_topic, b"first")
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=new_id) as second:
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        await second.begin_transaction()
        await second.send_and_wait(diamant_topic, b"second")
        await second.commit_transaction()
    try:
        await first.stop()
    except KafkaError:
        pass  # it says once more that it is fenced
    assert confluent_read(diamant_broker, diamant_topic, 1) == [b"second"]


# -- kafka-python --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
@pytest.mark.slow
def test_kafka_python(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """It commits, aborts and sends offsets; its reader gets committed values."""
    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
    from kafka.consumer.group import ConsumerGroupMetadata

    servers = diamant_broker.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=new_id)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(diamant_topic, b"%d" % number, partition=0)
        producer.send_offsets_to_transaction(
            {TopicPartition(diamant_topic, 0): OffsetAndMetadata(number + 10, "", -1)}, ConsumerGroupMetadata(new_id)
        )
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest", group_id=None
    )
    consumer.assign([TopicPartition(diamant_topic, 0)])
    values: list[bytes] = []
    wait_until(lambda: values.extend(read_some(consumer)) or len(values) >= 2)
    assert values == [b"0", b"2"]
    consumer.close()


def read_some(consumer: Any) -> list[bytes]:
    """Return the records that arrive within 100 ms."""
    return [record.value for records in consumer.poll(100).values() for record in records]


def wait_until(is_true: Callable[[], object]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
@pytest.mark.slow
def test_kafka_python_is_fenced(diamant_broker: Broker, diamant_topic: str, new_id: str) -> None:
    """The first of two producers with one id can no longer commit."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    servers = diamant_broker.bootstrap_servers
    first, second = (KafkaProducer(bootstrap_servers=servers, transactional_id=new_id) for _ in range(2))
    first.init_transactions()
    first.begin_transaction()
    first.send(diamant_topic, b"first").get(TIMEOUT_S)
    second.init_transactions()
    second.begin_transaction()
    second.send(diamant_topic, b"second")
    second.commit_transaction()
    with pytest.raises(KafkaError):
        first.commit_transaction()
    first.close()
    second.close()
    assert confluent_read(diamant_broker, diamant_topic, 1) == [b"second"]


# -- both ways at once ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_tv1_client_takes_over_from_a_tv2_client(
    diamant_broker: Broker, diamant_topic: str, new_id: str
) -> None:
    """One id is used by a TV2 client, then by librdkafka with TV1, then by TV2 again."""
    async with WireClient(diamant_broker.bootstrap_servers) as wire:
        txn = TxnProducer(wire, new_id)
        await txn.wait_for_coordinator()
        await wire.create(diamant_topic)
        for value in (b"tv2", b"tv2 again"):
            await txn.wait_for_init()
            assert await txn.produce(diamant_topic, 0, version=12, values=(value,)) == "NONE"
            assert await txn.end(commit=True, version=5) == "NONE"
            producer = await asyncio.to_thread(confluent_producer, diamant_broker, new_id)
            producer.begin_transaction()
            producer.produce(diamant_topic, value + b", then tv1")
            await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)
    values = await asyncio.to_thread(confluent_read, diamant_broker, diamant_topic, 4)
    assert values == [b"tv2", b"tv2, then tv1", b"tv2 again", b"tv2 again, then tv1"]
