"""kafka-python, 2.0.2 and 3.x, against a broker: `python kafka_python_client.py HOST:PORT [STEP ...]`; see steps.py."""

from __future__ import annotations

import sys
import threading
from typing import Any

import kafka
import steps
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

MAJOR = int(kafka.__version__.split(".")[0])
# Long enough for a rebalance: kafka-python 3.0 may stay in one for good if its poll runs out of time at the wrong moment.
POLL_MS = 1000
LOOK_S = 0.02
LIBRARY: Any = sys.modules[__name__]


def at(bootstrap: str) -> dict[str, Any]:
    """How a client comes to the broker."""
    tls = {"security_protocol": "SSL", "ssl_cafile": steps.CA} if steps.CA else {}
    return {"bootstrap_servers": bootstrap, **tls}


def new_topic(bootstrap: str, name: str) -> str:
    """Return a topic with four partitions."""
    topic = steps.unique(name)
    client = KafkaAdminClient(**at(bootstrap))
    client.create_topics([NewTopic(topic, steps.PARTITIONS, 1)])
    client.close()
    return topic


def send(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]], **config: Any) -> list[tuple[int, int]]:
    """Send to a topic and return where the records are: partition and offset."""
    producer = KafkaProducer(**at(bootstrap), **config)
    sent = [producer.send(topic, value, key, headers=[("header", key)]) for key, value in records]
    producer.flush()
    places = [future.get(steps.TIMEOUT_S) for future in sent]
    producer.close()
    return [(place.partition, place.offset) for place in places]


class Member(ConsumerRebalanceListener):
    """A consumer of a group, polled by a thread of its own: joining a group blocks until the others have joined too."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.read: list[tuple[bytes, bytes]] = []
        self.taken: list[int] = []
        self.partitions: set[int] = set()
        self.progress = 0
        self.error: Exception | None = None
        self._is_ending = threading.Event()
        self._is_to_commit = threading.Event()
        self.has_committed = False
        self._consumer = KafkaConsumer(
            **at(bootstrap),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=steps.SESSION_TIMEOUT_MS,
            metadata_max_age_ms=1000,  # or 3.0 may miss its topic for five minutes
            **config,
        )
        self._consumer.subscribe([topic], listener=self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.taken += [partition.partition for partition in revoked]

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        pass

    def _run(self) -> None:
        try:
            while not self._is_ending.is_set():
                for messages in self._consumer.poll(POLL_MS).values():
                    self.read += [(message.key, message.value) for message in messages]
                assignment = self._consumer.assignment()
                self.progress = sum(self._consumer.position(partition) or 0 for partition in assignment)
                self.partitions = {partition.partition for partition in assignment}
                if self._is_to_commit.is_set() and not self.has_committed:
                    self._consumer.commit()
                    self.has_committed = True
        except Exception as error:
            self.error = error
        finally:
            self._consumer.close()

    def poll(self) -> None:
        """Give the threads time; raises what a thread met."""
        self._thread.join(LOOK_S)
        if self.error:
            raise self.error

    def commit(self) -> None:
        """Have its thread commit."""
        self._is_to_commit.set()
        steps.wait_until(lambda: self.has_committed, self.poll, "a commit")

    def close(self) -> None:
        """Leave the group and close."""
        self._is_ending.set()
        self._thread.join(steps.TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error


def produce(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "produce")
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        config = {"enable_idempotence": True} if MAJOR > 2 else {}
        places = send(bootstrap, topic, steps.payloads(), compression_type=codec, **config)
        assert len(set(places)) == steps.RECORDS


def consume(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "consume")
    send(bootstrap, topic, steps.payloads(), compression_type="zstd")
    consumer = KafkaConsumer(**at(bootstrap), consumer_timeout_ms=steps.TIMEOUT_S * 1000)
    consumer.assign([TopicPartition(topic, number) for number in range(steps.PARTITIONS)])
    consumer.seek_to_beginning()
    read = []
    while len(read) < steps.RECORDS:
        message = next(consumer)
        assert [*map(tuple, message.headers)] == [("header", message.key)]
        read.append((message.key, message.value))
    consumer.close()
    assert sorted(read) == sorted(steps.payloads())


def classic(bootstrap: str) -> None:
    steps.share_and_go_on(LIBRARY, bootstrap, partition_assignment_strategy=[RangePartitionAssignor])


def cooperative(bootstrap: str) -> None:
    try:
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    except ImportError as error:
        raise steps.Unsupported("this version speaks the eager protocol only") from error
    steps.take_over(LIBRARY, bootstrap, partition_assignment_strategy=[CooperativeStickyAssignor])


def static(bootstrap: str) -> None:
    if "group_instance_id" not in KafkaConsumer.DEFAULT_CONFIG:
        raise steps.Unsupported("this version has no static members")
    back, other, _ = steps.come_back(LIBRARY, bootstrap, "group_instance_id")
    back.close()
    other.close()


def consumer_protocol(bootstrap: str) -> None:
    raise steps.Unsupported("kafka-python has no KIP-848")


def transactions(bootstrap: str) -> None:
    if MAJOR == 2:
        raise steps.Unsupported("this version has no transactions")
    from kafka.errors import KafkaError
    from kafka.structs import ConsumerGroupMetadata

    topic, group, transactional_id = new_topic(bootstrap, "txn"), steps.unique("txn"), steps.unique("txn")
    config = {**at(bootstrap), "transactional_id": transactional_id}
    producer = KafkaProducer(**config)
    producer.init_transactions()
    for number, is_commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number, partition=0).get(steps.TIMEOUT_S)
        if is_commit:
            offsets = {TopicPartition(topic, 1): OffsetAndMetadata(number + 10, "", -1)}
            producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group, -1, "", None))
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    for isolation_level, expected in (("read_committed", [b"0", b"2"]), ("read_uncommitted", [b"0", b"1", b"2"])):
        reader = KafkaConsumer(
            **at(bootstrap),
            group_id=group,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            consumer_timeout_ms=steps.TIMEOUT_S * 1000,
        )
        reader.assign([TopicPartition(topic, 0)])
        reader.seek_to_beginning()
        assert [next(reader).value for _ in expected] == expected
        assert reader.committed(TopicPartition(topic, 1)) == 12
        reader.close()
    newer = KafkaProducer(**config)
    newer.init_transactions()
    try:
        producer.begin_transaction()
        producer.send(topic, b"of a fenced producer", partition=0)
        producer.commit_transaction()
    except KafkaError:
        pass
    else:
        raise AssertionError("the older producer was not fenced")
    newer.begin_transaction()
    newer.send(topic, b"of the newer", partition=0)
    newer.commit_transaction()
    newer.close()
    producer.close(0)


def topic_config(client: KafkaAdminClient, topic: str) -> dict[str, str]:
    """Return the configs of a topic."""
    described = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    if MAJOR > 2:
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}
    (entries,) = [resource[4] for response in described for resource in response.resources]
    return {entry[0]: entry[1] for entry in entries}


def admin(bootstrap: str) -> None:
    client = KafkaAdminClient(**at(bootstrap))
    topic = new_topic(bootstrap, "admin")
    # Kafka answers when the controller has a change; its brokers see it a moment later.
    steps.wait_until(lambda: topic in client.list_topics(), lambda: None, "the topic is there")
    client.create_partitions({topic: NewPartitions(6)})
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.bytes": "1048576"})])
    steps.wait_until(
        lambda: topic_config(client, topic).get("segment.bytes") == "1048576", lambda: None, "a new config"
    )
    steps.wait_until(
        lambda: len(client.describe_topics([topic])[0]["partitions"]) == 6, lambda: None, "two more partitions"
    )
    assert len(client.describe_cluster()["brokers"]) == 1
    send(bootstrap, topic, steps.payloads())
    if MAJOR > 2:
        client.delete_records({TopicPartition(topic, 0): 1})
        lookup = client.list_partition_offsets({TopicPartition(topic, number): -1 for number in range(6)})
        assert sum(place.offset for place in lookup.values()) == steps.RECORDS

    group = steps.unique("admin")
    member = Member(bootstrap, topic, group)
    steps.wait_until(lambda: bool(member.read), member.poll, "a member reads")
    if MAJOR == 2:
        (of_group,) = client.describe_consumer_groups([group])
        assert of_group.state == "Stable"
        assert group in [name for name, _ in client.list_consumer_groups()]
        member.commit()
        member.close()
        offsets = client.list_consumer_group_offsets(group)
        client.delete_consumer_groups([group])
    else:
        assert client.describe_groups([group])[group]["group_state"] == "Stable"
        assert group in [one["group_id"] for one in client.list_groups()]
        member.commit()
        member.close()
        client.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
        offsets = client.list_group_offsets({group: None})[group]
        assert offsets[TopicPartition(topic, 0)].offset == 1
        client.delete_groups([group])
    assert sum(offset.offset for offset in offsets.values()) > 0
    client.delete_topics([topic])
    steps.wait_until(lambda: topic not in client.list_topics(), lambda: None, "the topic is gone")
    client.close()


if __name__ == "__main__":
    steps.run(
        globals(),
        kafka.__version__,
    )
