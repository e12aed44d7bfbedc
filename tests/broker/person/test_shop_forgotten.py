"""Customers of the whole shop are forgotten; a reader that shares no code with the broker looks for what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka import Consumer, TopicPartition

from diamant import Admin
from diamant.broker.broker import Broker
from tests.broker.person.large_shop import SHOP_MAP, TOPICS, Customer, create_shop, decoded, texts_in, write_shop

Place: TypeAlias = tuple[str, int, int]
Stored: TypeAlias = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]

KEPT_IN = {"orders", "payments", "transfers"}
"""Topics whose records stay, without the blanked fields; they still have the customer's number."""


def read_all(bootstrap_servers: str) -> dict[Place, Stored]:
    """Return all records of the shop, as librdkafka returns them."""
    found: dict[Place, Stored] = {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "all",
            "enable.partition.eof": True,
            "enable.auto.commit": False,  # a group that is behind would keep the tombstones
        }
    )
    places = [TopicPartition(topic, partition, 0) for topic in TOPICS for partition in range(2)]
    consumer.assign(places)
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(places):
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended.add((message.topic(), message.partition()))
            continue
        headers = tuple(message.headers() or ())
        stored = message.key(), message.value(), headers, message.timestamp()[1]
        found[message.topic(), message.partition(), message.offset()] = stored
    consumer.close()
    return found


def said_in(stored: Stored) -> set[str]:
    """Return all texts and numbers of a record, decoded by the reference libraries."""
    key, value, headers, _ = stored
    found = {(one or b"").decode() for one in (key, *(value for _, value in headers))}
    return found | ({*texts_in(decoded(value))} if value else set())


def is_confirmed_by_identifiers(admin: Admin, paper: Mapping[str, Any], person: Customer) -> bool:
    """Verify a paper over JSON, Avro and Protobuf: with all identifiers each part holds, without one those about it are open."""
    signer = paper["signature"]["public_key"]
    known = {
        "customer_id": person.customer_id,
        "email": person.email,
        "phone": person.phone,
        "device": person.device,
        "order_id": [person.order_id(0), person.order_id(1)],
    }
    whole = admin.verify(paper, public_key=signer, identifiers=known)
    assert {part["outcome"] for part in whole["parts"]} == {"valid"}, whole["notes"]
    less = admin.verify(paper, public_key=signer, identifiers={**known, "order_id": person.order_id(0)})
    left = {topic for part in less["parts"] if part["outcome"] != "valid" for topic in part["topics"]}
    assert (less["outcome"], left) == ("not-confirmed", {"shipments"})
    assert any("shipments): identifiers of the person are missing: 1 of order_id" in note for note in less["notes"])
    return bool(whole["outcome"] == "valid")


def assert_only_theirs_is_gone(
    before: Mapping[Place, Stored], after: Mapping[Place, Stored], people: Sequence[Customer]
) -> None:
    """Compare a shop before and after customers were forgotten."""
    hidden = {text for one in people for text in (one.email, one.phone, one.device)}
    numbers = {one.customer_id for one in people}
    assert not [place for place, stored in after.items() if said_in(stored) & hidden]
    assert {place[0] for place, stored in after.items() if said_in(stored) & numbers} <= KEPT_IN
    of_others = {place: stored for place, stored in before.items() if not said_in(stored) & (hidden | numbers)}
    compacted = {topic for topic, configs in TOPICS.items() if configs["cleanup_policy"] == "compact"}
    assert len(of_others) > len(before) // 2
    assert not [
        place for place, stored in of_others.items() if place[0] not in compacted and after.get(place) != stored
    ]
    latest = {(place[0], stored[0]): stored for place, stored in sorted(before.items())}
    now = {(place[0], stored[0]): stored for place, stored in sorted(after.items())}
    kept = {(place[0], stored[0]) for place, stored in of_others.items() if place[0] in compacted}
    assert not [key for key in kept if now[key] != latest[key]]


def forgotten_in_a_shop(tmp_path: Path, customers: int, people: Sequence[Customer], *, verifies: bool) -> None:
    """Forget the first person alone in a shop, the others together, and compare what all of its readers see."""
    properties = {"diamant.certificate.key.file": str(tmp_path / "keys" / "key")}
    with Broker(
        data_dir=tmp_path / "data", listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0", properties=properties
    ) as broker:
        asyncio.run_coroutine_threadsafe(create_shop(broker.awaited), broker.loop).result(60)
        write_shop(broker.bootstrap_servers, customers)
        before = read_all(broker.bootstrap_servers)
        admin = Admin(broker.bootstrap_servers, timeout=600)
        began_s, worked_s = time.monotonic(), time.process_time()
        alone, *together = [{"customer_id": one.customer_id} for one in people]
        first = admin.person.forget(alone, SHOP_MAP, reason="GDPR Art. 17", now=True)
        others = admin.person.forget_each(together, SHOP_MAP, reason="GDPR Art. 17", now=True)["people"]
        for found in (first, *({**one, "certificate": admin.certificate(one["id"])} for one in others)):
            assert found["state"] == "forgotten-but-kept", [row["problem"] for row in found["certificate"]["topics"]]
            states = {part["state"] for part in found["certificate"]["parts"]}
            assert states == {"key-gone", "records-gone", "fields-blanked"}
        took_s, worked_s = time.monotonic() - began_s, time.process_time() - worked_s
        print(f"{len(people)} people of {customers:,}: {took_s:.1f} s, {worked_s:.1f} s of processor time")
        assert not verifies or is_confirmed_by_identifiers(admin, found["certificate"], people[-1])
        after = read_all(broker.bootstrap_servers)
    assert_only_theirs_is_gone(before, after, people)


@pytest.mark.slow
def test_nothing_of_the_forgotten_is_left_and_all_of_the_others(tmp_path: Path) -> None:
    """Their e-mail, telephone and device are nowhere, their number only where records are kept; others are as they were, at
    their offsets where the topic is not compacted, else as the latest of their keys. The paper is verified as a whole.
    """
    forgotten_in_a_shop(tmp_path, 30, [Customer(3), Customer(17), Customer(22)], verifies=True)


@pytest.mark.long
def test_fifty_people_of_a_large_shop_are_forgotten(tmp_path: Path) -> None:
    """Fifty people are forgotten in a shop of 10,000 customers."""
    forgotten_in_a_shop(tmp_path, 10_000, [Customer(number * 197 + 3) for number in range(50)], verifies=False)
