"""confluent-kafka (librdkafka) against a broker: `python confluent_client.py HOST:PORT [STEP ...]`; see steps.py."""

from __future__ import annotations

import sys
from typing import Any

import steps
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    libversion,
    version,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

POLL_S = 0.05
LIBRARY: Any = sys.modules[__name__]


def at(bootstrap: str) -> dict[str, Any]:
    """How a client comes to the broker."""
    tls = {"security.protocol": "SSL", "ssl.ca.location": steps.CA} if steps.CA else {}
    return {"bootstrap.servers": bootstrap, **tls}


def admin_client(bootstrap: str) -> AdminClient:
    return AdminClient(at(bootstrap))


def results(futures: dict[Any, Any]) -> list[Any]:
    """What an admin call came to; raises KafkaException where it failed."""
    return [future.result(steps.TIMEOUT_S) for future in futures.values()]


def new_topic(bootstrap: str, name: str, **config: str) -> str:
    """Return a topic with four partitions."""
    topic = steps.unique(name)
    # The client must outlive its futures.
    client = admin_client(bootstrap)
    results(client.create_topics([NewTopic(topic, steps.PARTITIONS, 1, config=config)]))
    return topic


def send(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]], **config: Any) -> list[tuple[int, int]]:
    """Send to a topic and return where the records are: partition and offset."""
    places: list[tuple[int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        places.append((message.partition(), message.offset()))

    producer = Producer({**at(bootstrap), "linger.ms": 5, **config})
    for key, value in records:
        producer.produce(topic, value, key, headers=[("header", key)], on_delivery=delivered)
    assert producer.flush(steps.TIMEOUT_S) == 0
    return places


class Member:
    """A consumer of a group that remembers what it was given and what it read."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.given: list[int] = []
        self.taken: list[int] = []
        self.read: list[tuple[bytes, bytes]] = []
        self.errors: list[KafkaError] = []
        self.is_cooperative = config.get("partition.assignment.strategy") == "cooperative-sticky"
        defaults = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": steps.SESSION_TIMEOUT_MS,
        }
        if config.get("group.protocol") == "consumer":
            del defaults["session.timeout.ms"]
        else:
            defaults["heartbeat.interval.ms"] = 200
        settings = {**at(bootstrap), "group.id": group, **defaults, **config}
        self.consumer = Consumer(settings, error_cb=self.errors.append)
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.given += [partition.partition for partition in partitions]

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken += [partition.partition for partition in partitions]

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    @property
    def progress(self) -> int:
        """How many records lie before its positions."""
        return sum(max(0, place.offset) for place in self.consumer.position(self.consumer.assignment()))

    def poll(self) -> None:
        message = self.consumer.poll(POLL_S)
        if message is None:
            return
        if message.error():
            self.errors.append(message.error())
        else:
            self.read.append((message.key(), message.value()))

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


def produce(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "produce")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        send(bootstrap, topic, steps.payloads(), **{"compression.type": codec, "enable.idempotence": True})
    places = send(bootstrap, topic, steps.payloads(), acks=1)
    assert len(set(places)) == steps.RECORDS


def consume(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "consume")
    send(bootstrap, topic, steps.payloads(), **{"compression.type": "zstd"})
    consumer = Consumer({**at(bootstrap), "group.id": steps.unique("none"), "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(steps.PARTITIONS)])
    read: list[tuple[bytes, bytes]] = []
    while len(read) < steps.RECORDS:
        message = consumer.poll(steps.TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        assert message.headers() == [("header", message.key())]
        read.append((message.key(), message.value()))
    consumer.close()
    assert sorted(read) == sorted(steps.payloads())


def classic(bootstrap: str) -> None:
    steps.share_and_go_on(LIBRARY, bootstrap, **{"partition.assignment.strategy": "range"})


def cooperative(bootstrap: str) -> None:
    steps.take_over(LIBRARY, bootstrap, **{"partition.assignment.strategy": "cooperative-sticky"})


def static(bootstrap: str) -> None:
    back, other, member = steps.come_back(LIBRARY, bootstrap, "group.instance.id")
    usurper = member("back")
    fenced = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}
    steps.wait_until(
        lambda: bool(fenced & {error.code() for error in back.errors}),
        lambda: (back.poll(), usurper.poll(), other.poll()),
        "the first member of an instance id is fenced",
    )
    for one in (back, usurper, other):
        one.close()


def consumer_protocol(bootstrap: str) -> None:
    try:
        steps.share_and_go_on(LIBRARY, bootstrap, **{"group.protocol": "consumer"})
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:
            raise steps.Unsupported(error.args[0].str()) from error
        raise


def transactions(bootstrap: str) -> None:
    topic, group, transactional_id = new_topic(bootstrap, "txn"), steps.unique("txn"), steps.unique("txn")
    config = {**at(bootstrap), "transactional.id": transactional_id}
    producer = Producer(config)
    producer.init_transactions(steps.TIMEOUT_S)
    for number, is_commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        if is_commit:
            reader = Consumer({**at(bootstrap), "group.id": group})
            metadata = reader.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition(topic, 1, number + 10)], metadata, steps.TIMEOUT_S)
            reader.close()
            producer.commit_transaction(steps.TIMEOUT_S)
        else:
            producer.flush(steps.TIMEOUT_S)
            producer.abort_transaction(steps.TIMEOUT_S)
    for isolation_level, expected in (
        ("read_committed", [b"0", b"2"]),
        ("read_uncommitted", [b"0", b"1", b"2"]),
    ):
        reader = Consumer({**at(bootstrap), "group.id": group, "isolation.level": isolation_level})
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        read: list[bytes] = []
        while len(read) < len(expected):
            message = reader.poll(steps.TIMEOUT_S)
            assert message is not None
            read.append(message.value())
        assert read == expected
        (committed,) = reader.committed([TopicPartition(topic, 1)], steps.TIMEOUT_S)
        assert committed.offset == 12
        reader.close()
    newer = Producer(config)
    newer.init_transactions(steps.TIMEOUT_S)
    fault = None
    try:
        producer.begin_transaction()
        producer.produce(topic, b"of a fenced producer", partition=0)
        producer.commit_transaction(steps.TIMEOUT_S)
    except KafkaException as error:
        fault = error.args[0].code()
    assert fault in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError._STATE), "the older producer is fenced"
    newer.begin_transaction()
    newer.produce(topic, b"of the newer", partition=0)
    newer.commit_transaction(steps.TIMEOUT_S)


def topic_config(client: AdminClient, topic: str) -> dict[str, str]:
    """Return the configs of a topic."""
    (described,) = results(client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return {name: entry.value for name, entry in described.items()}


def admin(bootstrap: str) -> None:
    client = admin_client(bootstrap)
    topic = new_topic(bootstrap, "admin", **{"retention.ms": "123456789"})
    results(client.create_partitions([NewPartitions(topic, 6)]))
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    )
    results(client.incremental_alter_configs([resource]))
    # Kafka answers when the controller has the change; its brokers see it a moment later.
    expected = {"segment.bytes": "1048576", "retention.ms": "123456789"}
    steps.wait_until(
        lambda: expected.items() <= topic_config(client, topic).items(), lambda: None, "the configs of the topic"
    )
    steps.wait_until(
        lambda: len(client.list_topics(topic, steps.TIMEOUT_S).topics[topic].partitions) == 6,
        lambda: None,
        "two more partitions",
    )
    broker_id = next(iter(client.list_topics(timeout=steps.TIMEOUT_S).brokers))
    (of_broker,) = results(client.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))]))
    assert "log.retention.ms" in of_broker
    cluster = client.describe_cluster(request_timeout=steps.TIMEOUT_S).result(steps.TIMEOUT_S)
    assert [node.id for node in cluster.nodes] == [broker_id]

    send(bootstrap, topic, steps.payloads())
    latest = results(client.list_offsets({TopicPartition(topic, number): OffsetSpec.latest() for number in range(6)}))
    assert sum(place.offset for place in latest) == steps.RECORDS
    results(client.delete_records([TopicPartition(topic, 0, 1)]))
    (earliest,) = results(
        client.list_offsets(
            {TopicPartition(topic, 0): OffsetSpec.earliest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
    )
    assert earliest.offset == 1

    group = steps.unique("admin")
    member = Member(bootstrap, topic, group)
    steps.wait_until(lambda: bool(member.read), member.poll, "a member reads")
    member.commit()
    (of_group,) = results(client.describe_consumer_groups([group], request_timeout=steps.TIMEOUT_S))
    assert of_group.state == ConsumerGroupState.STABLE
    assert [len(one.assignment.topic_partitions) for one in of_group.members] == [6]
    listed = client.list_consumer_groups(request_timeout=steps.TIMEOUT_S).result(steps.TIMEOUT_S)
    assert group in [one.group_id for one in listed.valid]
    member.close()
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    results(client.alter_consumer_group_offsets([moved]))
    (offsets,) = results(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert [one.offset for one in offsets.topic_partitions if one.partition == 0] == [1]
    results(client.delete_consumer_groups([group]))
    results(client.delete_topics([topic]))
    steps.wait_until(
        lambda: topic not in client.list_topics(timeout=steps.TIMEOUT_S).topics, lambda: None, "the topic is gone"
    )


if __name__ == "__main__":
    steps.run(
        globals(),
        f"{version() if isinstance(version(), str) else version()[0]} (librdkafka {libversion()[0]})",
    )
