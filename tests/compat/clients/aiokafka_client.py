"""aiokafka against a broker: `python aiokafka_client.py HOST:PORT [STEP ...]`; see steps.py."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import aiokafka
import steps
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaError, ProducerFenced

POLL_MS = 50
Result = TypeVar("Result")
LIBRARY: Any = sys.modules[__name__]


LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def call(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the loop of the members."""
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result(steps.TIMEOUT_S)


def at(bootstrap: str) -> dict[str, Any]:
    """How a client comes to the broker; by TLS with the checks of Python 3.13 whatever version this is."""
    if steps.CA is None:
        return {"bootstrap_servers": bootstrap}
    context = ssl.create_default_context(cafile=steps.CA)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}


async def make_topic(bootstrap: str, name: str) -> str:
    """Return a topic with four partitions."""
    topic = steps.unique(name)
    client = AIOKafkaAdminClient(**at(bootstrap))
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, steps.PARTITIONS, 1)])
    finally:
        await client.close()
    return topic


def new_topic(bootstrap: str, name: str) -> str:
    return call(make_topic(bootstrap, name))


async def write(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]], **config: Any) -> list[tuple[int, int]]:
    """Send to a topic and return where the records are: partition and offset."""
    async with AIOKafkaProducer(**at(bootstrap), **config) as producer:
        sent = [await producer.send(topic, value, key, headers=[("header", key)]) for key, value in records]
        return [(place.partition, place.offset) for place in await asyncio.gather(*sent)]


def send(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]]) -> object:
    return call(write(bootstrap, topic, records))


class Member(ConsumerRebalanceListener):
    """A consumer of a group that remembers what it read, on the loop of the members."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.read: list[tuple[bytes, bytes]] = []
        self.taken: list[int] = []
        self._positions: dict[TopicPartition, int] = {}
        call(self._start(bootstrap, topic, group, config))

    async def _start(self, bootstrap: str, topic: str, group: str, config: dict[str, Any]) -> None:
        self.consumer = AIOKafkaConsumer(
            **at(bootstrap),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=steps.SESSION_TIMEOUT_MS,
            **config,
        )
        await self.consumer.start()
        self.consumer.subscribe([topic], listener=self)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.taken += [partition.partition for partition in revoked]

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        pass

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    @property
    def progress(self) -> int:
        return sum(self._positions.values()) if self._positions.keys() == self.consumer.assignment() else 0

    def poll(self) -> None:
        call(self._poll())

    async def _poll(self) -> None:
        for messages in (await self.consumer.getmany(timeout_ms=POLL_MS)).values():
            self.read += [(message.key, message.value) for message in messages]
        try:
            self._positions = {
                partition: await self.consumer.position(partition) for partition in self.consumer.assignment()
            }
        except IllegalStateError:
            self._positions = {}  # A rebalance came while it waited for the position in what it had.

    def commit(self) -> None:
        call(self.consumer.commit())

    def close(self) -> None:
        call(self.consumer.stop())


async def produce(bootstrap: str) -> None:
    topic = await make_topic(bootstrap, "produce")
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        places = await write(bootstrap, topic, steps.payloads(), compression_type=codec, enable_idempotence=True)
        assert len(set(places)) == steps.RECORDS
    await write(bootstrap, topic, steps.payloads(), acks=1)


async def consume(bootstrap: str) -> None:
    topic = await make_topic(bootstrap, "consume")
    await write(bootstrap, topic, steps.payloads(), compression_type="zstd")
    async with AIOKafkaConsumer(**at(bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(steps.PARTITIONS)])
        await consumer.seek_to_beginning()
        read: list[tuple[bytes, bytes]] = []
        while len(read) < steps.RECORDS:
            async with asyncio.timeout(steps.TIMEOUT_S):
                message = await consumer.getone()
            assert message.headers == (("header", message.key),)
            read.append((message.key, message.value))
    assert sorted(read) == sorted(steps.payloads())


def classic(bootstrap: str) -> None:
    steps.share_and_go_on(LIBRARY, bootstrap, partition_assignment_strategy=[RangePartitionAssignor])


def cooperative(bootstrap: str) -> None:
    raise steps.Unsupported("aiokafka speaks the eager protocol only")


def static(bootstrap: str) -> None:
    back, other, _ = steps.come_back(LIBRARY, bootstrap, "group_instance_id")
    back.close()
    other.close()


def consumer_protocol(bootstrap: str) -> None:
    raise steps.Unsupported("aiokafka has no KIP-848")


async def transactions(bootstrap: str) -> None:
    topic, group, transactional_id = await make_topic(bootstrap, "txn"), steps.unique("txn"), steps.unique("txn")
    producer = AIOKafkaProducer(**at(bootstrap), transactional_id=transactional_id)
    await producer.start()
    for number, is_commit in enumerate((True, False, True)):
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"%d" % number, partition=0)
        if is_commit:
            await producer.send_offsets_to_transaction({TopicPartition(topic, 1): number + 10}, group)
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
    for isolation_level, expected in (("read_committed", [b"0", b"2"]), ("read_uncommitted", [b"0", b"1", b"2"])):
        async with AIOKafkaConsumer(
            **at(bootstrap), group_id=group, isolation_level=isolation_level, enable_auto_commit=False
        ) as reader:
            reader.assign([TopicPartition(topic, 0)])
            await reader.seek_to_beginning()
            read: list[bytes] = []
            while len(read) < len(expected):
                async with asyncio.timeout(steps.TIMEOUT_S):
                    read.append((await reader.getone()).value)
            assert read == expected
            assert await reader.committed(TopicPartition(topic, 1)) == 12
    async with AIOKafkaProducer(**at(bootstrap), transactional_id=transactional_id) as newer:
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"of a fenced producer", partition=0)
        except ProducerFenced:
            pass
        else:
            raise AssertionError("the older producer was not fenced")
        async with newer.transaction():
            await newer.send_and_wait(topic, b"of the newer", partition=0)
    with contextlib.suppress(KafkaError):  # It is fenced.
        await producer.stop()


async def topic_config(client: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    """Return the configs of a topic."""
    (described,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for entry in described.resources[0][4]}


async def admin(bootstrap: str) -> None:
    client = AIOKafkaAdminClient(**at(bootstrap))
    await client.start()
    topic = await make_topic(bootstrap, "admin")
    await client.create_partitions({topic: NewPartitions(6)})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.bytes": "1048576"})
    await client.alter_configs([resource])
    # Kafka answers when the controller has the change; its brokers see it a moment later.
    async with asyncio.timeout(steps.TIMEOUT_S):
        while (await topic_config(client, topic))["segment.bytes"] != "1048576":
            await asyncio.sleep(0)
        while len((await client.describe_topics([topic]))[0]["partitions"]) != 6:
            await asyncio.sleep(0)
    cluster = await client.describe_cluster()
    assert len(cluster["brokers"]) == 1
    await write(bootstrap, topic, steps.payloads())
    # aiokafka has no look-up of offsets in its admin client.
    low = await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(1)})
    assert list(low.values()) == [1]

    group = steps.unique("admin")
    member = await asyncio.to_thread(Member, bootstrap, topic, group)
    await asyncio.to_thread(steps.wait_until, lambda: bool(member.read), member.poll, "a member reads")
    await asyncio.to_thread(member.commit)
    (of_group,) = await client.describe_consumer_groups([group])
    assert of_group.groups[0][2] == "Stable"
    assert group in [one[0] for one in await client.list_consumer_groups()]
    offsets = await client.list_consumer_group_offsets(group)
    assert sum(offset.offset for offset in offsets.values()) > 0
    await asyncio.to_thread(member.close)
    # aiokafka cannot delete groups.
    await client.delete_topics([topic])
    async with asyncio.timeout(steps.TIMEOUT_S):
        while topic in await client.list_topics():
            await asyncio.sleep(0)
    await client.close()


if __name__ == "__main__":
    steps.run(
        globals(),
        aiokafka.__version__,
    )
