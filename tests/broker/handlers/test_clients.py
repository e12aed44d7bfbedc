"""Real clients with a running broker: every codec, idempotent or not, headers, nulls, large messages, administration."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from diamant.broker.broker import Broker
from tests.broker.real_clients import CLIENTS, TIMEOUT_S, Client, ConfluentKafka, Message
from tests.waiting import wait_until

MESSAGES = [
    Message(b"key", b"value"),
    Message(None, b"no key"),
    Message(b"tombstone", None),
    Message(b"", b""),
    Message(b"headers", b"v", [("a", b"1"), ("a", b"2"), ("empty", b""), ("", b"no name"), ("\u00e9", b"\xff")]),
    Message(b"large", bytes(range(256)) * 3000),
    *(Message(str(number).encode(), b"x" * number) for number in range(200)),
]
# kafka-python refuses to send the first, both Python clients the others.
WITHOUT_VALUES = [
    Message(b"null header", b"v", [("null", None), ("one", b"1")]),
    Message(None, None),
    Message(None, None, [("header alone", b"1")]),
]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_back_what_it_sent(
    diamant_broker: Broker, diamant_topic: str, client: Client, codec: str, idempotent: bool
) -> None:
    """In order, and the batches are stored in the requested codec."""
    sent = MESSAGES + (WITHOUT_VALUES if isinstance(client, ConfluentKafka) else [])
    servers = diamant_broker.bootstrap_servers
    offsets = client.produce(servers, diamant_topic, sent, codec=codec, idempotent=idempotent)
    assert offsets == list(range(len(sent)))
    received = client.consume(servers, diamant_topic)
    assert [(one.key, one.value, one.headers) for one in received] == [(*one[:2], list(one.headers)) for one in sent]
    assert diamant_broker.node.topics.log(diamant_topic, 0).log_end_offset == len(sent)
    assert CODECS.index(codec) in stored_codecs(diamant_broker, diamant_topic)


def stored_codecs(broker: Broker, topic: str) -> set[int]:
    """Return the codecs of the batches on disk."""
    from diamant.protocol.batches.batch import iter_headers

    log = broker.node.topics.log(topic, 0)
    with open(log.active.file.path, "rb") as file:
        return {header.codec for _, header in iter_headers(file.read())}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(diamant_broker: Broker, diamant_topic: str, acks: str) -> None:
    """Records arrive with every level of acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers, "acks": acks})
    for number in range(100):
        producer.produce(diamant_topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    asyncio.run(wait_until(lambda: diamant_broker.node.topics.log(diamant_topic, 0).log_end_offset == 100))


def test_a_megabyte_that_does_not_compress(diamant_broker: Broker, diamant_topic: str) -> None:
    """A message near max.message.bytes passes unchanged; a larger one gets the right error."""
    from confluent_kafka import KafkaError, Producer

    producer = Producer(
        {"bootstrap.servers": diamant_broker.bootstrap_servers, "message.max.bytes": 10_000_000, "linger.ms": 0}
    )
    errors: list[Any] = []
    for size in (1_000_000, 3_000_000):
        producer.produce(diamant_topic, os.urandom(size), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
    assert errors[0] is None
    assert errors[1].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_confluent_admin(diamant_broker: Broker, diamant_topic: str) -> None:
    """Librdkafka's admin client creates, grows, configures, describes, trims and deletes a topic."""
    from confluent_kafka import TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )

    admin = AdminClient({"bootstrap.servers": diamant_broker.bootstrap_servers})

    def done(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    done(admin.create_topics([NewTopic(diamant_topic, 2, 1, config={"retention.ms": "5000"})]))
    done(admin.create_partitions([NewPartitions(diamant_topic, 4)]))
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[diamant_topic].partitions) == 4
    described = done(admin.describe_topics(TopicCollection([diamant_topic])))
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    entry = ConfigEntry("retention.ms", "6000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, diamant_topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    configs = done(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, diamant_topic)]))
    assert configs["retention.ms"].value == "6000"
    partition = TopicPartition(diamant_topic, 0)
    assert done(admin.list_offsets({partition: OffsetSpec.latest()})).offset == 0
    assert done(admin.delete_records([TopicPartition(diamant_topic, 0, 0)])).low_watermark == 0
    assert admin.describe_cluster().result(TIMEOUT_S).controller.id == 1
    done(admin.delete_topics([diamant_topic]))
    assert diamant_topic not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own making
def test_kafka_python_admin(diamant_broker: Broker, diamant_topic: str) -> None:
    """kafka-python's admin client creates, describes and deletes a topic."""
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=diamant_broker.bootstrap_servers)
    admin.create_topics([NewTopic(diamant_topic, 3, 1)])
    assert diamant_topic in admin.list_topics()
    (described,) = admin.describe_topics([diamant_topic])
    assert len(described["partitions"]) == 3
    admin.delete_topics([diamant_topic])
    assert diamant_topic not in admin.list_topics()
    admin.close()
