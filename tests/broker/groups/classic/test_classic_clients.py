"""Real consumers in classic groups share partitions, take over from leaving members, rejoin, and rebalance cooperatively."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from diamant.broker.broker import Broker
from diamant.broker.groups.classic.group import ClassicGroup, GroupState
from diamant.protocol.internal_topics.consumer_protocol import Subscription, encode_subscription
from tests.broker.groups.classic.classic_broker import group_broker
from tests.broker.request_fields import join_group
from tests.broker.wire import WireClient
from tests.waiting import wait_until

__all__ = ["group_broker"]

JOIN_GROUP = 11
PARTITIONS = 4
TIMEOUT_S = 60
ALL = set(range(PARTITIONS))


async def create_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create(topic, partitions)


async def produce(broker: Broker, topic: str, text: str) -> None:
    """Write one record to each partition."""
    async with WireClient(broker.bootstrap_servers) as wire:
        for partition in range(PARTITIONS):
            result = await wire.produce(topic, [f"{text} {partition}".encode()], partition=partition)
            assert int(result.error_code) == 0


def classic_group(broker: Broker, group_id: str) -> ClassicGroup | None:
    """The broker's view, read from another thread: only for simple fields."""
    group = broker.services.groups().group(group_id)
    return None if group is None else group.classic


def state_of(broker: Broker, group_id: str) -> tuple[GroupState, int, int] | None:
    """State, generation and number of members."""
    group = classic_group(broker, group_id)
    return None if group is None else (group.state, group.generation_id, len(group.members))


def member_count(broker: Broker, group_id: str) -> int:
    state = state_of(broker, group_id)
    return 0 if state is None else state[2]


# ---- aiokafka --------------------------------------------------------------------------------------------------------


def aiokafka_consumer(broker: Broker, topic: str, group_id: str, **more: Any) -> Any:
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        max_poll_interval_ms=10_000,
        metadata_max_age_ms=1000,
        **more,
    )


def partitions_of(consumer: Any) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


async def wait_for_texts(consumer: Any, count: int) -> list[str]:
    texts = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(texts) < count:
            message = await consumer.getone()
            texts.append(message.value.decode())
    return sorted(texts)


@pytest.mark.slow
async def test_aiokafka_shares_and_takes_over(diamant_broker: Broker, diamant_topic: str) -> None:
    """Two consumers share the partitions; after one leaves, the other continues from the committed offsets."""
    await create_topic(diamant_broker, diamant_topic)
    await produce(diamant_broker, diamant_topic, "first")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(aiokafka_consumer(diamant_broker, diamant_topic, diamant_topic))
        await wait_until(lambda: partitions_of(one) == ALL)
        assert await wait_for_texts(one, PARTITIONS) == [f"first {partition}" for partition in range(PARTITIONS)]
        await one.commit()
        two = aiokafka_consumer(diamant_broker, diamant_topic, diamant_topic)
        await two.start()
        try:
            await wait_until(lambda: len(partitions_of(one)) == 2 and partitions_of(one) | partitions_of(two) == ALL)
            await produce(diamant_broker, diamant_topic, "second")
            texts = await wait_for_texts(one, 2) + await wait_for_texts(two, 2)
            assert sorted(texts) == [f"second {partition}" for partition in range(PARTITIONS)]
            await one.commit()
            await two.commit()
        finally:
            await two.stop()
        await wait_until(lambda: partitions_of(one) == ALL)
        await produce(diamant_broker, diamant_topic, "third")
        assert await wait_for_texts(one, PARTITIONS) == [f"third {partition}" for partition in range(PARTITIONS)]
    check_empty(diamant_broker, diamant_topic)


@pytest.mark.slow
async def test_aiokafka_members_vanish(group_broker: Broker, diamant_topic: str) -> None:
    """A member that disconnects while its join is parked is removed after its session, and the other gets all partitions."""
    broker = group_broker
    await create_topic(broker, diamant_topic)
    async with aiokafka_consumer(broker, diamant_topic, diamant_topic) as one:
        await wait_until(lambda: partitions_of(one) == ALL)
        async with WireClient(broker.bootstrap_servers) as wire:
            # Long enough for the other member to bring the rebalance to its end, on a slow machine, too.
            times = {"session_timeout_ms": 3000, "rebalance_timeout_ms": 1000}
            protocol = {"name": "roundrobin", "metadata": encode_subscription(Subscription((diamant_topic,)))}
            wire.send(JOIN_GROUP, 3, join_group(diamant_topic, protocols=[protocol], **times))
            await wait_until(lambda: member_count(broker, diamant_topic) == 2)
        await wait_until(lambda: len(partitions_of(one)) == PARTITIONS // 2)
        await wait_until(lambda: member_count(broker, diamant_topic) == 1 and partitions_of(one) == ALL)


# ---- confluent-kafka and kafka-python ---------------------------------------------------------------------------------


class Librdkafka:
    """A consumer of confluent-kafka; `assigned` as of now."""

    def __init__(self, broker: Broker, topic: str, group_id: str, **config: Any) -> None:
        from confluent_kafka import Consumer

        self.assigned: set[int] = set()
        self.texts: list[str] = []
        self.revoked: list[set[int]] = []
        self.is_cooperative = config.get("partition.assignment.strategy") == "cooperative-sticky"
        own = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group_id, "auto.offset.reset": "earliest"}
        times = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}
        more = {"enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 1000, **config}
        self._consumer = Consumer({**own, **times, **more})
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self.close = self._consumer.close

    def turn(self) -> None:
        """Read and commit one record, if there is one."""
        message = self._consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.texts.append(message.value().decode())
            self._consumer.commit(message, asynchronous=False)

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        new = {partition.partition for partition in partitions}
        self.assigned = self.assigned | new if self.is_cooperative else new

    def _on_revoke(self, consumer: Any, partitions: Any) -> None:
        gone = {partition.partition for partition in partitions}
        self.revoked.append(gone)
        self.assigned = self.assigned - gone


class KafkaPython:
    """A consumer of kafka-python; `assigned` as of now."""

    def __init__(self, broker: Broker, topic: str, group_id: str) -> None:
        from kafka import KafkaConsumer

        self.assigned: set[int] = set()
        self.texts: list[str] = []
        self._consumer = KafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, group_id=group_id, auto_offset_reset="earliest",
            enable_auto_commit=False, session_timeout_ms=30_000, heartbeat_interval_ms=100, fetch_max_wait_ms=50,
            metadata_max_age_ms=1000,  # or it may miss its topic for five minutes
        )  # fmt: skip
        self.close = self._consumer.close

    def turn(self) -> None:
        """Read and commit the available records."""
        # Version 3.0.12 loses a join that ends between two polls, with Apache Kafka as well: so they are long.
        for messages in self._consumer.poll(timeout_ms=1000).values():
            self.texts += [message.value.decode() for message in messages]
            self._consumer.commit()
        self.assigned = {partition.partition for partition in self._consumer.assignment()}


AnyConsumer = TypeVar("AnyConsumer", Librdkafka, KafkaPython)


@contextmanager
def alive(consumer: AnyConsumer) -> Iterator[AnyConsumer]:
    """Keep a consumer running in its own thread; at the end it leaves its group."""
    is_leaving = False

    def run() -> None:
        while not is_leaving:
            consumer.turn()
        consumer.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield consumer
    finally:
        is_leaving = True
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def librdkafka(broker: Broker, topic: str, **config: Any) -> AbstractContextManager[Librdkafka]:
    return alive(Librdkafka(broker, topic, topic, **config))


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(wait_until(condition, TIMEOUT_S))


def check_empty(broker: Broker, group_id: str) -> None:
    """Check that the group exists and is empty."""
    state = state_of(broker, group_id)
    assert state is not None
    assert state[0] is GroupState.EMPTY


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_confluent_kafka_shares_and_takes_over(diamant_broker: Broker, diamant_topic: str, strategy: str) -> None:
    """Two consumers share the partitions; after one leaves, the other continues from the committed offsets. With
    cooperative-sticky, no member revokes partitions that it keeps.
    """
    broker = diamant_broker
    asyncio.run(create_topic(broker, diamant_topic))
    asyncio.run(produce(broker, diamant_topic, "first"))
    config = {"partition.assignment.strategy": strategy}
    with librdkafka(broker, diamant_topic, **config) as one:
        wait_for(lambda: one.assigned == ALL and len(one.texts) == PARTITIONS)
        with librdkafka(broker, diamant_topic, **config) as two:
            wait_for(lambda: len(one.assigned) == len(two.assigned) == 2 and one.assigned | two.assigned == ALL)
            asyncio.run(produce(broker, diamant_topic, "second"))
            wait_for(lambda: len(one.texts) + len(two.texts) == 2 * PARTITIONS)
            if strategy == "cooperative-sticky":
                assert [gone for gone in one.revoked if gone] == [ALL - one.assigned]
        wait_for(lambda: one.assigned == ALL)
        asyncio.run(produce(broker, diamant_topic, "third"))
        wait_for(lambda: len(one.texts) + len(two.texts) == 3 * PARTITIONS)
        texts = one.texts + two.texts
    expected = [f"{word} {partition}" for word in ("first", "second", "third") for partition in range(PARTITIONS)]
    assert sorted(texts) == sorted(expected)
    check_empty(broker, diamant_topic)


@pytest.mark.slow
def test_confluent_kafka_static_members_restart(diamant_broker: Broker, diamant_topic: str) -> None:
    """Static members that restart within their session keep their partitions, without a rebalance."""
    broker = diamant_broker
    asyncio.run(create_topic(broker, diamant_topic))
    with ExitStack() as stack:
        one = stack.enter_context(librdkafka(broker, diamant_topic, **{"group.instance.id": "one"}))
        wait_for(lambda: one.assigned == ALL)
        with librdkafka(broker, diamant_topic, **{"group.instance.id": "two"}) as two:
            wait_for(lambda: len(one.assigned) == 2 and len(two.assigned) == 2)
            before, had = state_of(broker, diamant_topic), set(two.assigned)
        assert before is not None
        for _ in range(2):
            with librdkafka(broker, diamant_topic, **{"group.instance.id": "two"}) as two:
                wait_for(lambda two=two: two.assigned == had)  # type: ignore[misc]
        assert state_of(broker, diamant_topic) == before
        assert one.assigned == ALL - had
        asyncio.run(produce(broker, diamant_topic, "on"))
        wait_for(lambda: len(one.texts) == 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
@pytest.mark.slow
def test_kafka_python_shares_and_takes_over(diamant_broker: Broker, diamant_topic: str) -> None:
    """Two consumers share the partitions; after one leaves, the other continues from the committed offsets."""
    broker = diamant_broker
    asyncio.run(create_topic(broker, diamant_topic))
    asyncio.run(produce(broker, diamant_topic, "first"))
    with alive(KafkaPython(broker, diamant_topic, diamant_topic)) as one:
        wait_for(lambda: one.assigned == ALL and len(one.texts) == PARTITIONS)
        with alive(KafkaPython(broker, diamant_topic, diamant_topic)) as two:
            wait_for(lambda: len(one.assigned) == len(two.assigned) == 2 and one.assigned | two.assigned == ALL)
        wait_for(lambda: one.assigned == ALL)
        asyncio.run(produce(broker, diamant_topic, "second"))
        wait_for(lambda: len(one.texts) + len(two.texts) == 2 * PARTITIONS)
    check_empty(broker, diamant_topic)
