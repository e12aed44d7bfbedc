"""Real clients and their committed offsets: consumers resume at their position, administrators read and change offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from diamant.broker.broker import BlockingBroker

TIMEOUT_S = 60
GROUP_CONFIG: dict[str, Any] = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


def produce(broker: BlockingBroker, topic: str, count: int) -> None:
    """Write records with the values 0, 1, ..."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def read_confluent(
    broker: BlockingBroker, group_id: str, topic: str, count: int, protocol: str = "classic"
) -> list[int]:
    """Return the values of the next records of a group, committed one by one."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group_id,
            "group.protocol": protocol,
            **GROUP_CONFIG,
        }
    )
    consumer.subscribe([topic])
    values = []
    for message in consumer.consume(count, TIMEOUT_S):
        assert message.error() is None, message.error()
        values.append(int(message.value() or b""))
        consumer.commit(message=message, asynchronous=False)
    assert consumer.committed(consumer.assignment(), TIMEOUT_S)[0].offset == values[-1] + 1
    consumer.close()
    return values


async def read_aiokafka(broker: BlockingBroker, group_id: str, topic: str, count: int) -> list[int]:
    """Read as `read_confluent`, with aiokafka."""
    from aiokafka import AIOKafkaConsumer

    values: list[int] = []
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            while len(values) < count:
                values.append(int((await consumer.getone()).value))
                await consumer.commit()
    return values


def test_clients_of_one_group_go_on_where_the_others_were(diamant_broker: BlockingBroker, diamant_topic: str) -> None:
    """Librdkafka by both protocols, then aiokafka: no record is read twice or lost."""
    produce(diamant_broker, diamant_topic, 8)
    values = read_confluent(diamant_broker, "one-group", diamant_topic, 2)
    values += asyncio.run(read_aiokafka(diamant_broker, "one-group", diamant_topic, 2))
    values += read_confluent(diamant_broker, "one-group", diamant_topic, 2, protocol="consumer")
    values += asyncio.run(read_aiokafka(diamant_broker, "one-group", diamant_topic, 2))
    assert values == list(range(8))
