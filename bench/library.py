"""Measurements of any broker with librdkafka for a client, through confluent-kafka.

With small messages its Python is a limit of its own.
"""

from __future__ import annotations

import os
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from client import Client
from confluent_kafka import Consumer, Producer, TopicPartition
from figure import Figure
from processes import RunningBroker
from wire import timed

TOTAL_BYTES = {1000: 150_000_000, 100: 50_000_000}
"""Of the values of a size."""
CHUNK = 10_000
"""Messages that are handed over at once."""
QUEUES: Mapping[str, Mapping[str, int]] = {
    "": {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1 << 20},
    ", default queues": {},
}
END_TO_END_PER_S = 2_000
END_TO_END_S = 5
END_TO_END_WARM_S = 15
"""A JVM on a slow machine cannot keep up with the first messages, and works off its backlog."""


def librdkafka(broker: RunningBroker) -> Iterator[Figure]:
    """Produce messages of two sizes with and without idempotence, and read them back."""
    for value_bytes, total_bytes in TOTAL_BYTES.items():
        chunks = max(1, int(total_bytes * broker.scale) // value_bytes // CHUNK)
        size = chunks * CHUNK * value_bytes
        messages = [{"value": os.urandom(value_bytes)} for _ in range(CHUNK)]
        for suffix in ("", ", idempotent"):
            for partitions in (1, 6):
                topic = f"lib-{value_bytes}-{partitions}{suffix[2:]}"
                Client(broker.port).create(topic, partitions)
                producer = Producer(_config(broker.port, {"enable.idempotence": bool(suffix)}))
                _produce(producer, topic, messages, max(1, chunks // 4), partitions)
                name = f"produce {value_bytes} B, {partitions} p{suffix}"
                yield from timed(name, broker, size, _produce, producer, topic, messages, chunks, partitions)
        for partitions in (1, 6):
            for suffix, queues in QUEUES.items():
                consumer = _consumer(broker.port, queues)
                name, topic = f"consume {value_bytes} B, {partitions} p{suffix}", f"lib-{value_bytes}-{partitions}"
                yield from timed(name, broker, size, _consume, consumer, topic, chunks * CHUNK, partitions)
                consumer.close()


def end_to_end(broker: RunningBroker) -> Iterator[Figure]:
    """Messages at a steady pace, from before librdkafka takes them until it hands them out, after the warm-up."""
    Client(broker.port).create("ends")
    warm = max(10, int(END_TO_END_WARM_S * END_TO_END_PER_S * min(1, broker.scale)))
    count = warm + max(10, int(END_TO_END_S * END_TO_END_PER_S * broker.scale))
    consumer = _consumer(broker.port, {})
    consumer.assign([TopicPartition("ends", 0, 0)])
    producing = threading.Thread(target=_produce_steadily, args=(broker.port, count))
    producing.start()
    took_ms = []
    while len(took_ms) < count:
        message = consumer.poll(30)
        if message is None or message.error():
            raise RuntimeError(f"end to end: {len(took_ms)} of {count} messages came: {message and message.error()}")
        took_ms.append((time.perf_counter() - struct.unpack(">d", message.value()[:8])[0]) * 1000)
    producing.join()
    consumer.close()
    cuts = statistics.quantiles(took_ms[warm:], n=100)
    yield Figure(f"end to end at {END_TO_END_PER_S:,} msg/s p50", cuts[49], "ms")
    yield Figure(f"end to end at {END_TO_END_PER_S:,} msg/s p99", cuts[98], "ms")


def _produce_steadily(port: int, count: int) -> None:
    producer = Producer(_config(port, {"linger.ms": 0}))
    producer.list_topics("ends")
    due_s = time.perf_counter()
    for _ in range(count):
        due_s += 1 / END_TO_END_PER_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        producer.produce("ends", struct.pack(">d", time.perf_counter()).ljust(100), partition=0)
        producer.poll(0)
    producer.flush()


def _produce(producer: Any, topic: str, messages: list[dict[str, bytes]], chunks: int, partitions: int) -> None:
    for number in range(chunks):
        if producer.produce_batch(topic, messages, number % partitions) < CHUNK:
            raise RuntimeError(f"librdkafka refused messages to {topic}: its queue holds {len(producer)}")
        while len(producer) > 5 * CHUNK:
            producer.poll(0.001)
    producer.flush()


def _consume(consumer: Any, topic: str, count: int, partitions: int) -> None:
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while count > 0:
        messages = consumer.consume(min(CHUNK, count), 30)
        if not messages or messages[-1].error():
            raise RuntimeError(f"{topic}: {count} more messages were expected: {messages and messages[-1].error()}")
        count -= len(messages)


def _consumer(port: int, queues: Mapping[str, int]) -> Any:
    consumer = Consumer(_config(port, {"group.id": "bench", "enable.auto.commit": False, **queues}))
    consumer.list_topics()
    return consumer


def _config(port: int, more: Mapping[str, object]) -> dict[str, object]:
    return {"bootstrap.servers": f"127.0.0.1:{port}", **more}
