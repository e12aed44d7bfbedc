"""Real clients and their committed offsets: consumers resume at their position, administrators read and change offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.wire import WireClient

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


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_after_a_restart(tmp_path: Path, protocol: str) -> None:
    """With the next broker on the directory, without a new FindCoordinator."""
    config = BrokerConfig("127.0.0.1:0", tmp_path, offsets_topic_num_partitions=3, num_partitions=1)
    with Broker(config) as broker:
        produce(broker, "t", 6)
        assert read_confluent(broker, "g", "t", 3, protocol) == [0, 1, 2]
    with Broker(config) as broker:
        assert asyncio.run(committed(broker)) == 3
        assert read_confluent(broker, "g", "t", 3, protocol) == [3, 4, 5]


async def committed(broker: BlockingBroker) -> int:
    """The committed offset of group "g" for t-0, as soon as it is loaded."""
    request = {"groups": [{"group_id": "g", "topics": None}], "require_stable": False}
    async with WireClient(broker.bootstrap_servers) as client, asyncio.timeout(TIMEOUT_S):
        while (answer := (await client.call(9, 8, request)).groups[0]).error_code != 0:
            await asyncio.sleep(0)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_administration_with_confluent_kafka(diamant_broker: BlockingBroker, diamant_topic: str, protocol: str) -> None:
    """Groups are listed and described; offsets are listed, altered and deleted; finally the group is deleted."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    group_id = f"administrated-{protocol}"
    produce(diamant_broker, diamant_topic, 2)
    read_confluent(diamant_broker, group_id, diamant_topic, 2, protocol)
    admin = AdminClient({"bootstrap.servers": diamant_broker.bootstrap_servers})
    listed = {group.group_id: group.state.name for group in admin.list_consumer_groups().result(TIMEOUT_S).valid}
    assert listed[group_id] == "EMPTY"
    described = admin.describe_consumer_groups([group_id])[group_id].result(TIMEOUT_S)
    assert (described.state.name, described.members) == ("EMPTY", [])

    def offsets() -> list[int]:
        request = [ConsumerGroupTopicPartitions(group_id)]
        found = admin.list_consumer_group_offsets(request)[group_id].result(TIMEOUT_S)
        return [partition.offset for partition in found.topic_partitions]

    assert offsets() == [2]
    change = ConsumerGroupTopicPartitions(group_id, [TopicPartition(diamant_topic, 0, 1)])
    admin.alter_consumer_group_offsets([change])[group_id].result(TIMEOUT_S)
    assert offsets() == [1]
    admin.delete_consumer_groups([group_id])[group_id].result(TIMEOUT_S)
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group_id])[group_id].result(TIMEOUT_S)


@pytest.mark.slow
def test_offsets_of_a_transaction(diamant_broker: BlockingBroker, diamant_topic: str) -> None:
    """They take effect when the transaction commits, and are dropped when it aborts."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    produce(diamant_broker, diamant_topic, 5)
    servers = {"bootstrap.servers": diamant_broker.bootstrap_servers}
    consumer = Consumer({**servers, "group.id": "transactional", **GROUP_CONFIG})
    consumer.subscribe([diamant_topic])
    assert len(consumer.consume(5, TIMEOUT_S)) == 5
    producer = Producer({**servers, "transactional.id": "offsets"})
    producer.init_transactions(TIMEOUT_S)
    for offset, is_commit, expected in ((3, True, 3), (5, False, 3), (4, True, 4)):
        producer.begin_transaction()
        offsets = [TopicPartition(diamant_topic, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
        assert consumer.committed([TopicPartition(diamant_topic, 0)], TIMEOUT_S)[0].offset == expected
    consumer.close()
