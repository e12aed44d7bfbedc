"""Real clients on three brokers: leaders move and brokers come and go while records are produced and read by groups.

The brokers have a process of their own: librdkafka holds Python's lock while it closes, and then waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from diamant import Admin
from tests.broker.broker_process import BrokerProcess
from tests.broker.brokers.several import create
from tests.broker.wire import WireClient
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
PARTITIONS = 6
COUNT = 300
"""The records of each phase."""
RETRY = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}


class ConfluentKafka:
    """librdkafka: an idempotent producer, and a member of a group."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.acknowledged: list[int] = []

    def produce(self, numbers: range) -> None:
        """Send the numbers, and wait until all are acknowledged."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 0, **RETRY})
        for number in numbers:
            producer.produce("t", str(number).encode(), partition=number % PARTITIONS, on_delivery=self._delivered)
        assert producer.flush(60) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None
        self.acknowledged.append(int(message.value()))

    def read(self, found: list[int], is_over: Callable[[], bool]) -> None:
        """Read as a member of a group until it is over."""
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "group.id": "confluent", **RETRY}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500})
        consumer.subscribe(["t"])
        while not is_over():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
        consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, servers: str) -> None:
        self.servers = servers.split(",")
        self.acknowledged: list[int] = []

    def produce(self, numbers: range) -> None:
        """As `ConfluentKafka`."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.servers, enable_idempotence=True, retry_backoff_ms=20, reconnect_backoff_ms=20
        )
        futures = [producer.send("t", str(number).encode(), partition=number % PARTITIONS) for number in numbers]
        for number, future in zip(numbers, futures, strict=True):
            future.get(60)
            self.acknowledged.append(number)
        producer.close()

    def read(self, found: list[int], is_over: Callable[[], bool]) -> None:
        """As `ConfluentKafka`."""
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            "t", bootstrap_servers=self.servers, group_id="kafka-python", auto_offset_reset="earliest",
            retry_backoff_ms=20, reconnect_backoff_ms=20, metadata_max_age_ms=500,
        )  # fmt: skip
        while not is_over():
            for records in consumer.poll(timeout_ms=50).values():
                found += [int(record.value) for record in records]
        consumer.close()


class Aiokafka:
    """aiokafka, on loops of its own. It commits nothing: its `stop` never ends if the last commit finds the coordinator gone."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.acknowledged: list[int] = []

    def produce(self, numbers: range) -> None:
        """As `ConfluentKafka`."""
        asyncio.run(self._produce(numbers))

    async def _produce(self, numbers: range) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.servers, enable_idempotence=True, retry_backoff_ms=20)
        async with producer:
            sent = [await producer.send("t", str(number).encode(), partition=number % PARTITIONS) for number in numbers]
            await asyncio.gather(*sent)
            self.acknowledged += numbers

    def read(self, found: list[int], is_over: Callable[[], bool]) -> None:
        """As `ConfluentKafka`."""
        asyncio.run(self._read(found, is_over))

    async def _read(self, found: list[int], is_over: Callable[[], bool]) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import KafkaError

        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=self.servers, group_id="aiokafka", auto_offset_reset="earliest",
            retry_backoff_ms=20, metadata_max_age_ms=500, enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        while not is_over():
            for records in (await consumer.getmany(timeout_ms=50)).values():
                found += [int(record.value) for record in records]
        # It raises what its last requests to a broker that is down have met.
        with contextlib.suppress(KafkaError, asyncio.CancelledError):
            await consumer.stop()


Client: TypeAlias = ConfluentKafka | KafkaPython | Aiokafka


async def produce_during(step: Callable[[], object], client: Client, numbers: range, found: list[int]) -> None:
    """Produce the numbers; take the step when the first of them are read."""
    producing = asyncio.create_task(asyncio.to_thread(client.produce, numbers))
    await wait_until(lambda: len(found) > numbers.start or producing.done())
    await asyncio.to_thread(step)
    await producing


@pytest.mark.parametrize(
    "library",
    [ConfluentKafka, pytest.param(KafkaPython, marks=pytest.mark.long), pytest.param(Aiokafka, marks=pytest.mark.long)],
)
async def test_nothing_is_lost_and_nothing_comes_twice(library: type[Client], tmp_path: Path) -> None:
    """All leaders move, the one broker that the group was told of goes down and comes back, then another one."""
    settings = ("diamant.brokers=3", "offsets.topic.num.partitions=3", "diamant.http.listen=127.0.0.1:0")
    process = BrokerProcess(tmp_path / "data", tmp_path / "log", settings=settings)
    try:
        servers = await asyncio.to_thread(process.wait_for_address)
        async with WireClient(servers.split(",")[0]) as wire:
            await create(wire, partitions=PARTITIONS, factor=3, min_insync_replicas="2")
        brokers = (await asyncio.to_thread(Admin, servers)).brokers
        steps: list[Callable[[], object]] = [
            lambda: brokers.shuffle("t"),
            lambda: brokers.down(1),
            lambda: brokers.up(1),
            lambda: brokers.down(2),
        ]
        await read_during(library(servers), library(servers.split(",")[0]), steps)
    finally:
        process.kill()


async def read_during(client: Client, reader: Client, steps: Sequence[Callable[[], object]]) -> None:
    """Take the steps, each while records are produced; assert that a group reads each of them once."""
    found: list[int] = []
    over = threading.Event()
    reading = asyncio.create_task(asyncio.to_thread(reader.read, found, over.is_set))
    count = COUNT * len(steps)
    try:
        for number, step in enumerate(steps):
            await produce_during(step, client, range(COUNT * number, COUNT * (number + 1)), found)
        await wait_until(lambda: len(found) >= count)
    finally:
        over.set()
        await reading
    assert sorted(client.acknowledged) == list(range(count))
    assert sorted(found) == list(range(count))
