"""aiokafka against a broker: `python aiokafka_client.py HOST:PORT [STEP ...]`; see steps.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import aiokafka
import steps
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaError, ProducerFenced

POLL_MS = 50


async def new_topic(bootstrap: str, name: str) -> str:
    """A topic with four partitions."""
    topic = steps.unique(name)
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, steps.PARTITIONS, 1)])
    finally:
        await client.close()
    return topic


async def send(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]], **config: Any) -> list[tuple[int, int]]:
    """Send to a topic and return where the records are: partition and offset."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
        sent = [await producer.send(topic, value, key, headers=[("header", key)]) for key, value in records]
        return [(place.partition, place.offset) for place in await asyncio.gather(*sent)]


class Partitions(ConsumerRebalanceListener):
    """What a member was given and what was taken from it."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.taken += [partition.partition for partition in revoked]

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        pass


class Member:
    """A consumer of a group that remembers what it read."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.read: list[tuple[bytes, bytes]] = []
        self._positions: dict[TopicPartition, int] = {}
        self.listener = Partitions()
        self.topic = topic
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=steps.SESSION_TIMEOUT_MS,
            **config,
        )

    async def start(self) -> Member:
        await self.consumer.start()
        self.consumer.subscribe([self.topic], listener=self.listener)
        return self

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    @property
    def progress(self) -> int:
        """How many records lie before its positions; none if it has other partitions now than when it was polled."""
        return sum(self._positions.values()) if self._positions.keys() == self.consumer.assignment() else 0

    async def poll(self) -> None:
        for messages in (await self.consumer.getmany(timeout_ms=POLL_MS)).values():
            self.read += [(message.key, message.value) for message in messages]
        try:
            self._positions = {
                partition: await self.consumer.position(partition) for partition in self.consumer.assignment()
            }
        except IllegalStateError:
            self._positions = {}  # A rebalance came while it waited for the position in what it had.


async def wait_until(is_reached: Callable[[], bool], members: list[Member], what: str) -> None:
    """Poll with the members until the condition holds."""
    async with asyncio.timeout(steps.TIMEOUT_S):
        while not is_reached():
            await asyncio.gather(*(member.poll() for member in members))
    assert is_reached(), what


async def wait_for_a_split(first: Member, second: Member) -> None:
    everything = set(range(steps.PARTITIONS))
    await wait_until(
        lambda: first.partitions | second.partitions == everything and len(first.partitions) == len(second.partitions),
        [first, second],
        "two members share four partitions",
    )


async def produce(bootstrap: str) -> None:
    topic = await new_topic(bootstrap, "produce")
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        places = await send(bootstrap, topic, steps.payloads(), compression_type=codec, enable_idempotence=True)
        assert len(set(places)) == steps.RECORDS
    await send(bootstrap, topic, steps.payloads(), acks=1)


async def consume(bootstrap: str) -> None:
    topic = await new_topic(bootstrap, "consume")
    await send(bootstrap, topic, steps.payloads(), compression_type="zstd")
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(steps.PARTITIONS)])
        await consumer.seek_to_beginning()
        read: list[tuple[bytes, bytes]] = []
        while len(read) < steps.RECORDS:
            async with asyncio.timeout(steps.TIMEOUT_S):
                message = await consumer.getone()
            assert message.headers == (("header", message.key),)
            read.append((message.key, message.value))
    assert sorted(read) == sorted(steps.payloads())


async def classic(bootstrap: str) -> None:
    topic, group = await new_topic(bootstrap, "group"), steps.unique("group")
    await send(bootstrap, topic, steps.payloads())
    strategy = {"partition_assignment_strategy": [RangePartitionAssignor]}
    first = await Member(bootstrap, topic, group, **strategy).start()
    await wait_until(lambda: len(first.partitions) == steps.PARTITIONS, [first], "one member has all partitions")
    second = await Member(bootstrap, topic, group, **strategy).start()
    await wait_for_a_split(first, second)
    # What the first member had read before the second came is read again: it had not committed.
    await wait_until(
        lambda: first.progress + second.progress == steps.RECORDS, [first, second], "both have read everything"
    )
    assert {*first.read, *second.read} == {*steps.payloads()}
    await first.consumer.commit()
    await second.consumer.commit()
    committed = [await first.consumer.committed(TopicPartition(topic, number)) for number in range(steps.PARTITIONS)]
    assert sum(offset or 0 for offset in committed) == steps.RECORDS
    await first.consumer.stop()
    await second.consumer.stop()
    await send(bootstrap, topic, [(b"late", b"late")])
    third = await Member(bootstrap, topic, group, **strategy).start()
    await wait_until(lambda: bool(third.read), [third], "a third member reads what came later")
    assert third.read == [(b"late", b"late")]
    await third.consumer.stop()


async def cooperative(bootstrap: str) -> None:
    raise steps.Unsupported("aiokafka speaks the eager protocol only")


async def static(bootstrap: str) -> None:
    topic, group = await new_topic(bootstrap, "static"), steps.unique("static")
    other = await Member(bootstrap, topic, group, group_instance_id="other").start()
    gone = await Member(bootstrap, topic, group, group_instance_id="back").start()
    await wait_for_a_split(other, gone)
    before, revocations = gone.partitions, len(other.listener.taken)
    # A static member does not leave its group when it is closed.
    await gone.consumer.stop()
    back = await Member(bootstrap, topic, group, group_instance_id="back").start()
    await wait_until(lambda: bool(back.partitions), [back, other], "the static member is back")
    assert back.partitions == before
    assert len(other.listener.taken) == revocations, "the other member sees no rebalance"
    await back.consumer.stop()
    await other.consumer.stop()


async def consumer_protocol(bootstrap: str) -> None:
    raise steps.Unsupported("aiokafka has no KIP-848")


async def transactions(bootstrap: str) -> None:
    topic, group, transactional_id = await new_topic(bootstrap, "txn"), steps.unique("txn"), steps.unique("txn")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
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
            bootstrap_servers=bootstrap, group_id=group, isolation_level=isolation_level, enable_auto_commit=False
        ) as reader:
            reader.assign([TopicPartition(topic, 0)])
            await reader.seek_to_beginning()
            read: list[bytes] = []
            while len(read) < len(expected):
                async with asyncio.timeout(steps.TIMEOUT_S):
                    read.append((await reader.getone()).value)
            assert read == expected
            assert await reader.committed(TopicPartition(topic, 1)) == 12
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as newer:
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
    """The configs of a topic."""
    (described,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for entry in described.resources[0][4]}


async def admin(bootstrap: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    topic = await new_topic(bootstrap, "admin")
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
    await send(bootstrap, topic, steps.payloads())
    # aiokafka has no look-up of offsets in its admin client.
    low = await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(1)})
    assert list(low.values()) == [1]

    group = steps.unique("admin")
    member = await Member(bootstrap, topic, group).start()
    await wait_until(lambda: bool(member.read), [member], "a member reads")
    await member.consumer.commit()
    (of_group,) = await client.describe_consumer_groups([group])
    assert of_group.groups[0][2] == "Stable"
    assert group in [one[0] for one in await client.list_consumer_groups()]
    offsets = await client.list_consumer_group_offsets(group)
    assert sum(offset.offset for offset in offsets.values()) > 0
    await member.consumer.stop()
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
