"""Real clients with a running broker: every codec, idempotent or not, headers, nulls, large messages, administration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.real_clients import CLIENTS, TIMEOUT_S, AioKafka, Client, ConfluentKafka, Message
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
    """The client gets its records in order, and the batches are stored in the requested codec."""
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
def test_records_arrive_with_every_level_of_acks(diamant_broker: Broker, diamant_topic: str, acks: str) -> None:
    """Records arrive with every level of acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers, "acks": acks})
    for number in range(100):
        producer.produce(diamant_topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    asyncio.run(wait_until(lambda: diamant_broker.node.topics.log(diamant_topic, 0).log_end_offset == 100))


def test_clients_of_one_group_continue_where_the_others_were(diamant_broker: Broker, diamant_topic: str) -> None:
    """Librdkafka by both protocols, and aiokafka after each: no record is read twice or lost."""
    servers, sent = diamant_broker.bootstrap_servers, [b"%d" % number for number in range(8)]
    ConfluentKafka().produce(servers, diamant_topic, [Message(None, value) for value in sent])
    read = []
    for protocol in ("classic", "consumer"):
        read += ConfluentKafka().consume(servers, diamant_topic, group=diamant_topic, count=2, protocol=protocol)
        read += AioKafka().consume(servers, diamant_topic, group=diamant_topic, count=2)
    assert [one.value for one in read] == sent


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_after_a_restart(tmp_path: Path, protocol: str) -> None:
    """The next broker on the directory has the offsets that a member committed as it left."""
    read = []
    for count in (2, 3):
        with Broker(data_dir=tmp_path, num_partitions=1) as broker:
            if not read:
                messages = [Message(None, b"%d" % number) for number in range(5)]
                ConfluentKafka().produce(broker.bootstrap_servers, "t", messages)
            read += ConfluentKafka().consume(broker.bootstrap_servers, "t", group="g", count=count, protocol=protocol)
    assert [one.offset for one in read] == list(range(5))
