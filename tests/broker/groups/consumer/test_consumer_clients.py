"""Real consumers with the consumer protocol (KIP-848): librdkafka shares partitions, hands over, and converts from classic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig

TIMEOUT_S = 60
PARTITIONS = 4
ALL = set(range(PARTITIONS))
PROPERTIES = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "2",
}


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with short intervals, so that its consumer groups converge quickly."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("groups"), properties=PROPERTIES)
    with Broker(config) as broker:
        yield broker


@pytest.fixture
def topic(group_broker: BlockingBroker, request: pytest.FixtureRequest) -> str:
    """A topic for one test, with one record in each partition."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    name = str(request.node.name).replace("[", "-").replace("]", "")
    address = {"bootstrap.servers": group_broker.bootstrap_servers}
    admin = AdminClient(address)
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(TIMEOUT_S)
    producer = Producer(address)
    for partition in range(PARTITIONS):
        producer.produce(name, str(partition).encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return name


def new_consumer(broker: BlockingBroker, group: str, protocol: str = "consumer", **config: Any) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **({"heartbeat.interval.ms": 100} if protocol == "classic" else {}),
            **config,
        }
    )


def partitions(consumer: Any) -> set[int]:
    return {place.partition for place in consumer.assignment()}


def wait_until(condition: Callable[[], bool], *consumers: Any) -> None:
    """Poll the consumers until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, [partitions(consumer) for consumer in consumers]
        for consumer in consumers:
            message = consumer.poll(0.02)
            assert message is None or message.error() is None


def share(*consumers: Any) -> bool:
    """Whether each of them has an equal share, and together they have all."""
    parts = [partitions(consumer) for consumer in consumers]
    size = PARTITIONS // len(parts)
    return all(len(part) == size for part in parts) and set().union(*parts) == ALL


def test_admin_sees_the_group(group_broker: BlockingBroker, topic: str) -> None:
    """The admin client lists and describes it as a consumer group, with its members and their partitions."""
    from confluent_kafka import ConsumerGroupState, ConsumerGroupType
    from confluent_kafka.admin import AdminClient

    consumer = new_consumer(group_broker, topic, **{"client.id": "the client"})
    consumer.subscribe([topic])
    wait_until(lambda: partitions(consumer) == ALL, consumer)
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap_servers})
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(TIMEOUT_S).valid}
    assert listed[topic].type == ConsumerGroupType.CONSUMER
    described = admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    (member,) = described.members
    assert member.client_id == "the client"
    assert {place.partition for place in member.assignment.topic_partitions} == ALL
    consumer.close()


def test_regular_expressions(group_broker: BlockingBroker, topic: str) -> None:
    """The broker gets the pattern and finds the topic."""
    consumer = new_consumer(group_broker, topic)
    consumer.subscribe([f"^{topic[:-1]}.$"])
    wait_until(lambda: partitions(consumer) == ALL, consumer)
    consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_static_member_comes_back_and_takes_over(group_broker: BlockingBroker, topic: str, assignor: str) -> None:
    """Restarted, it keeps its partitions, and the other sees no change; it gets all when the other has left."""
    config = {"group.remote.assignor": assignor}
    static, other = (new_consumer(group_broker, topic, **config, **more) for more in ({"group.instance.id": "s"}, {}))
    changes: list[str] = []
    static.subscribe([topic])
    other.subscribe(
        [topic], on_assign=lambda *_: changes.append("assigned"), on_revoke=lambda *_: changes.append("revoked")
    )
    wait_until(lambda: share(static, other), static, other)
    before = partitions(static), partitions(other)
    static.close()
    changes.clear()
    static = new_consumer(group_broker, topic, **config, **{"group.instance.id": "s"})
    static.subscribe([topic])
    wait_until(lambda: partitions(static) == before[0], static, other)
    assert (partitions(other), changes) == (before[1], [])
    other.close()
    wait_until(lambda: partitions(static) == ALL, static)
    static.close()


@pytest.mark.slow
def test_from_classic_to_consumer_and_back(group_broker: BlockingBroker, topic: str) -> None:
    """A group of classic members admits one with the consumer protocol, and becomes classic again without it."""
    strategy = {"partition.assignment.strategy": "range"}
    classic = new_consumer(group_broker, topic, "classic", **strategy)
    classic.subscribe([topic])
    wait_until(lambda: partitions(classic) == ALL, classic)
    modern = new_consumer(group_broker, topic)
    modern.subscribe([topic])
    wait_until(lambda: share(classic, modern), classic, modern)
    group = group_broker.services.groups().group(topic)
    assert group is not None
    assert group.consumer is not None
    modern.close()
    wait_until(lambda: partitions(classic) == ALL, classic)
    assert group.classic is not None
    classic.close()
