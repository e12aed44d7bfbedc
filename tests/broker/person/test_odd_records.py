"""Showing a person among records that are unusual, damaged, or cannot be decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from diamant import Admin
from diamant.broker.broker import BlockingBroker, Broker
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from tests.cleaner.values.framed import CUSTOMER, confluent, customer, registered

EMAIL = "ada@example.com"
VALUE = json.dumps({"email": EMAIL}).encode()
MAP = {"version": 1, "topics": {"events": {"identity": {"email": "value.email"}}}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker with the topic `events` of one partition."""
    with Broker(data_dir=tmp_path, listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0") as running:
        running.create_topic("events", 1, cleanup_policy="compact")
        yield running


def shown(broker: BlockingBroker, people: Mapping[str, Any] = MAP, **identifiers: str) -> list[Mapping[str, Any]]:
    given = identifiers or {"email": EMAIL}
    return list(Admin(broker.bootstrap_servers).person.show(given, people))


def records(lines: list[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {one["offset"]: one for one in lines if one["kind"] == "record"}


def test_records_of_transactions_are_shown_with_their_state(broker: BlockingBroker) -> None:
    """Committed, aborted, and part of a transaction in progress: all are on the disk."""
    for number, end in enumerate(("commit", "abort", None)):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("events", VALUE, f"k{number}")
        producer.flush()
        if end == "commit":
            producer.commit_transaction()
        elif end == "abort":
            producer.abort_transaction()
        else:
            lines = shown(broker)
            producer.abort_transaction()
    assert [one["status"] for one in records(lines).values()] == ["live", "aborted", "undecided"]


def test_a_record_is_superseded_by_one_that_does_not_match(broker: BlockingBroker) -> None:
    """After a value under the same key without the person, or a tombstone, the person's record is no longer the current one."""
    for key, later in (("k1", b'{"email": "bob@example.com"}'), ("k2", None), ("k3", VALUE)):
        broker.produce("events", VALUE, key=key)
        broker.produce("events", later, key=key)
    found = records(shown(broker))
    states = {offset: (one["status"], one["superseded_by"]) for offset, one in found.items()}
    assert states == {0: ("superseded", 1), 2: ("superseded", 3), 4: ("superseded", 5), 5: ("live", None)}


def test_values_that_cannot_be_decoded_are_counted(broker: BlockingBroker) -> None:
    """A schema that is missing, and bytes that do not fit it; null bytes and other texts are nobody's."""
    broker.create_topic(SCHEMAS_TOPIC, 1, cleanup_policy="compact")
    key, value = registered(7, CUSTOMER)
    broker.produce(SCHEMAS_TOPIC, value, key=key)
    whole = customer(1, EMAIL)
    for number, data in enumerate(
        [
            confluent(7, whole),
            confluent(8, whole),
            confluent(7, whole[:-1]),
            b"\0" * 40,
            b"",
            b"\xff\xfe",
            b"[" * 100_000,
        ]
    ):
        broker.produce("events", data, key=f"k{number}")
    lines = shown(broker)
    assert [*records(lines)] == [0]
    [topic] = [one for one in lines if one["kind"] == "topic"]
    assert topic["of"] == 7
    assert topic["problems"][0].startswith("2 undecided records")
    assert lines[-1]["is_complete"] is False


def test_a_large_value_is_shown_whole(broker: BlockingBroker) -> None:
    """A compressed value of 10 MB is shown whole, next to small ones."""
    broker.create_topic("large", 1, max_message_bytes=12_000_000)
    text = "a" * 10_000_000
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd", "message.max.bytes": 12_000_000}
    )
    producer.produce("large", json.dumps({"email": EMAIL, "text": text}).encode())
    producer.produce("large", VALUE)
    producer.flush()
    found = records(shown(broker, {"version": 1, "topics": {"large": {"identity": {"email": "value.email"}}}}))
    assert [len(one["value"]["text"]) > 10_000_000 for one in found.values()] == [True, False]


def test_damage_is_reported(broker: BlockingBroker) -> None:
    """What can be read is shown."""
    for number in range(3):
        broker.produce("events", VALUE, key=f"k{number}")
    segment = Path(broker.awaited.node.topics.by_name["events"].logs[0].segments[0].path)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    lines = shown(broker)
    assert [*records(lines)] == [0, 1]
    assert lines[-1]["is_complete"] is False


def test_a_short_identifier_that_matches_much_asks(broker: BlockingBroker) -> None:
    """Two characters that match half a topic; two that match one record of it do not."""
    broker.create_topic("places", 1)
    people = {"version": 1, "topics": {"places": {"identity": {"country": "value.country", "customer_id": "value.id"}}}}
    for number in range(60):
        broker.produce("places", json.dumps({"country": "DE" if number % 2 else "CH", "id": number}))
    lines = shown(broker, people | {"topics": {"places": {"identity": {"customer_id": "value.id"}}}}, customer_id="42")
    assert lines[-1]["records"] == 1
    with pytest.raises(Exception, match="short identifiers select 30 of 60 records of places"):
        shown(broker, people, country="DE")
