"""Each client library writes a record with its own form of a client's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from diamant.broker.client.client_config import ClientConfig

Write = Callable[[ClientConfig, str], Awaitable[None]]


async def by_aiokafka(config: ClientConfig, topic: str) -> None:
    """Write by aiokafka."""
    import aiokafka

    async with aiokafka.AIOKafkaProducer(**config.aiokafka()) as producer:
        await producer.send_and_wait(topic, b"value")


async def by_confluent_kafka(config: ClientConfig, topic: str) -> None:
    """Write by librdkafka."""
    from confluent_kafka import Producer

    producer = Producer(config.confluent())
    producer.produce(topic, b"value")
    assert await asyncio.to_thread(producer.flush, 60) == 0


async def by_kafka_python(config: ClientConfig, topic: str) -> None:
    """Write by kafka-python."""
    import kafka

    producer = kafka.KafkaProducer(**config.kafka_python())
    await asyncio.to_thread(producer.send(topic, b"value").get, 60)
    producer.close()


LIBRARIES = (by_aiokafka, by_confluent_kafka, by_kafka_python)
