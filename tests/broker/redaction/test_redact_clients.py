"""Real clients and a redacted topic: consumers read across the gaps to the end, producers continue at their position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.real_clients import CLIENTS, Client, ConfluentKafka, Read
from tests.ports import ReservedPort

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
COUNT = 300
TOPIC = "orders"
WHERE = 'value.email == "ada@example.com"'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker in its own thread, with small segments."""
    with Broker(config(tmp_path)) as running:
        yield running


def config(tmp_path: Path, listen: str = "127.0.0.1:0") -> BrokerConfig:
    properties = {"diamant.certificate.key.file": str(tmp_path / "certificate.key")}
    return BrokerConfig(listen=listen, data_dir=tmp_path / "data", properties=properties)


def is_adas(number: int) -> bool:
    """Whether a record is Ada's: the first, the last, a run of whole batches, and every seventh."""
    return number < 25 or COUNT - 25 <= number < COUNT or 100 <= number < 180 or number % 7 == 0


def value(number: int) -> bytes:
    email = "ada" if is_adas(number) else "bob"
    return b'{"number": %d, "email": "%s@example.com", "pad": "%s"}' % (number, email.encode(), b"x" * 40)


def produce(producer: Any, first: int, last: int, flush_every: int = 10) -> None:
    errors: list[Any] = []
    for number in range(first, last):
        producer.produce(TOPIC, value(number), b"%d" % number, on_delivery=lambda error, _: errors.append(error))
        if number % flush_every == 0:
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0
    assert set(errors) == {None}


def filled(broker: BlockingBroker, **settings: Any) -> Any:
    """Return a topic with all values, and the idempotent producer that wrote them."""
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, 1, internal_segment_bytes=4000)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **settings})
    produce(producer, 0, COUNT)
    return producer


def redact(broker: BlockingBroker, where: str = WHERE, **options: Any) -> Any:
    redaction = broker.call(broker.redact(TOPIC, where=where, reason="asked for", **options))
    assert redaction.state == "records-gone"
    return redaction


EXPECTED = [number for number in range(COUNT) if not is_adas(number)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reads_to_the_end(broker: BlockingBroker, client: Client, codec: str) -> None:
    """The client gets the remaining records with their offsets, across emptied batches, in small fetches, and reaches the end."""
    filled(broker, **{"compression.type": codec})
    assert redact(broker).removed == COUNT - len(EXPECTED)
    found = client.consume(broker.bootstrap_servers, TOPIC, fetch_bytes=1000)
    assert [(one.offset, one.value) for one in found] == [(number, value(number)) for number in EXPECTED]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reads_blanked_records(broker: BlockingBroker, client: Client) -> None:
    """It gets every record at its offset, in small fetches of compressed batches; and the producer continues."""
    producer = filled(broker, **{"compression.type": "lz4"})
    asked = {"where": WHERE, "reason": "asked for", "blank": "value.email", "blank_with": "text:***"}
    assert broker.call(broker.redact(TOPIC, **asked)).state == "fields-blanked"
    produce(producer, COUNT, COUNT + 1)
    found = client.consume(broker.bootstrap_servers, TOPIC, fetch_bytes=1000)
    blanked = [value(one).replace(b"ada@example.com", b"***") for one in range(COUNT)]
    assert [(one.offset, one.value) for one in found] == [*enumerate(blanked), (COUNT, value(COUNT))]


def read(broker: BlockingBroker, isolation: str = "read_committed") -> list[Read]:
    """Read everything up to the end of the partition."""
    return ConfluentKafka().consume(broker.bootstrap_servers, TOPIC, isolation=isolation)


def test_idempotent_and_transactional_producers_continue(tmp_path: Path) -> None:
    """After all their records were removed, and after a restart of the broker, nothing is lost or written twice."""
    with ReservedPort() as port:
        go_on(tmp_path, port.address)


def go_on(tmp_path: Path, address: str) -> None:
    """Continue the test above: both brokers have the address known to the producers."""
    from confluent_kafka import Producer

    with Broker(config(tmp_path, address)) as broker:
        producer = filled(broker)
        redact(broker, "value exists", yes_all=True)
        produce(producer, COUNT, COUNT + 30)
        assert [one.offset for one in read(broker)] == list(range(COUNT, COUNT + 30))
        transactional = Producer({"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0})
        transactional.init_transactions(TIMEOUT_S)
        for is_commit in (True, False, True):
            transactional.begin_transaction()
            produce(transactional, 0, 5)
            (transactional.commit_transaction if is_commit else transactional.abort_transaction)(TIMEOUT_S)
        redact(broker)
        end = [one.offset for one in read(broker)]
        transactional.begin_transaction()
        produce(transactional, 35, 37)
        transactional.commit_transaction(TIMEOUT_S)
        redact(broker, "value.number exists", yes_all=True)
        assert end == [offset for offset in range(COUNT, COUNT + 30) if not is_adas(offset)]
        assert read(broker, "read_uncommitted") == []
    with Broker(config(tmp_path, address)) as broker:
        produce(producer, 26, 27)
        transactional.begin_transaction()
        produce(transactional, 29, 30)
        transactional.commit_transaction(TIMEOUT_S)
        assert [one.value for one in read(broker)] == [value(26), value(29)]
