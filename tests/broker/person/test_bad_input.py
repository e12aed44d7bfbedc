"""Odd records and odd moments of a request to forget a person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.erasure.records import Producer
from tests.broker.person.shop import ADA, MAP, fill, order
from tests.cleaner.values.framed import avro, confluent, registered
from tests.waiting import wait_until

WHY = {"reason": "GDPR Art. 17"}
OWN = {"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}
OTHER = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "amount", "type": "long"}, {"name": "text", "type": "string"}],
}


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        yield running


def blanked(text: str) -> dict[str, Any]:
    """Return the map, with notes of orders that become a text."""
    orders = {"identity": {"customer_id": "value.customer"}, "do": {"blank": ["value.note"], "with": f"text:{text}"}}
    return {"version": 1, "topics": {**MAP["topics"], "orders": orders}}


def bytes_of(broker: Broker, topic: str) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(data_of(broker).glob(f"{topic}-0/*.log")))


async def test_a_value_may_be_larger_once_it_is_blanked(shop: Broker) -> None:
    """The fixed text is longer than what was there; the records stay at their offsets."""
    longer = "*" * 500
    done = await shop.person.forget({"customer_id": ADA}, blanked(longer), **WHY, now=True)
    assert done.state == "forgotten"
    assert bytes_of(shop, "orders").count(longer.encode()) == 3
    assert f"for {ADA} only".encode() not in bytes_of(shop, "orders")


async def test_a_batch_that_would_no_longer_fit_holds_its_topic_alone(shop: Broker) -> None:
    """The paper names the topic, the batch and the limit; nothing is changed there, and the other topics are done."""
    await shop.create_topic("notes", max_message_bytes="300")
    await shop.produce("notes", order(ADA, 9))
    people = blanked("*" * 400)
    people["topics"]["notes"] = people["topics"]["orders"]
    before = bytes_of(shop, "notes")
    done = await shop.person.forget({"customer_id": ADA}, people, **WHY, now=True)
    assert done.state == "not-certified"
    problems = {row["topic"]: row["problem"] for row in done.certificate["topics"]}
    assert "max.message.bytes is 300: raise it" in problems.pop("notes")
    assert {*problems.values()} == {""}
    assert bytes_of(shop, "notes") == before
    assert {part["state"] for part in done.certificate["parts"]} == {"key-gone", "fields-blanked"}


async def test_what_the_person_writes_after_the_search_goes_too(shop: Broker) -> None:
    """Records that come between the search and the jobs were in none of its hits, and are located all the same."""
    planning = shop.services.people()._planning
    plan = planning.plans

    async def planned(*given: Any, **more: Any) -> Any:
        found = await plan(*given, **more)
        await shop.produce("orders", order(ADA, 10), key="10")
        await shop.produce("carts", f"another cart of {ADA}", key=ADA)
        return found

    planning.plans = planned  # type: ignore[method-assign]
    done = await shop.person.forget({"customer_id": ADA}, MAP, **WHY, now=True)
    assert done.state == "forgotten"
    assert ADA.encode() not in bytes_of(shop, "orders") + bytes_of(shop, "carts") + bytes_of(shop, "customers")
    removed = {part["request"]["topics"][0]: part["found"] for part in done.certificate["parts"]}
    assert sum(one["records"] for one in removed["orders"]) == 4


async def test_of_two_requests_at_once_one_is_carried_out(shop: Broker) -> None:
    """The other is refused and names it, whichever came first."""
    both = [shop.person.forget({"customer_id": ADA}, MAP, **WHY, now=True) for _ in range(2)]
    found: list[Any] = await asyncio.gather(*both, return_exceptions=True)
    [done] = [one for one in found if not isinstance(one, BaseException)]
    [refused] = [one for one in found if isinstance(one, BaseException)]
    assert done.state == "forgotten"
    assert isinstance(refused, NotPossible)
    assert f"request {done.id} of the same person is in progress" in str(refused)
    assert len((await shop.person.requests())["requests"]) == 1


async def test_records_that_cannot_be_decoded_hold_their_topic_alone(shop: Broker) -> None:
    """Cut off JSON with the person's number, a frame whose schema is missing; null bytes and keyless ones hold nothing."""
    for value in (order(ADA, 11)[:-5], b"\0\0\0\0\x07\x16" + ADA.encode()):
        await shop.produce("orders", value)
    done = await shop.person.forget({"customer_id": ADA}, MAP, **WHY, now=True)
    problems = {row["topic"]: row["problem"] for row in done.certificate["topics"]}
    assert "2 obstacles: it cannot be decided whether this record matches" in problems["orders"]
    assert (problems["carts"], problems["customers"]) == ("", "")
    await shop.create_topic("events")
    for value in (b"\0" * 40, json.dumps([ADA]).encode(), None):
        await shop.produce("events", value, key="k")
    await shop.produce("events", order(ADA, 12))
    people = {"version": 1, "topics": {"events": MAP["topics"]["orders"]}}
    done = await shop.person.forget({"customer_id": ADA}, people, **WHY)
    assert done.state == "forgotten"
    assert done.certificate["topics"][0]["records"] == 1


async def test_an_open_transaction_holds_its_topic_until_it_ends(shop: Broker) -> None:
    """The last paper follows by itself; the rest is done at once, and the scans of later attempts are for that topic alone."""
    producer = Producer(shop, "orders", 0, 5)
    producer.write((b"20", order(ADA, 20)))
    done = await shop.person.forget({"customer_id": ADA}, MAP, **WHY, now=True)
    assert done.state == "not-certified"
    assert {part["state"] for part in done.certificate["parts"]} == {"key-gone", "not-certified"}
    assert bytes_of(shop, "orders").count(ADA.encode()) == 2
    producer.end(is_commit=True)
    assert done.next_due_ms is not None
    move_to(shop, done.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten.json")] != [])
    await wait_until(lambda: not [*data_of(shop).glob("*.intent")])
    assert ADA.encode() not in bytes_of(shop, "orders")


async def test_a_regular_expression_that_no_topic_matches_is_refused(shop: Broker) -> None:
    """The entry is named, and nothing is begun: what it should have matched would stay."""
    people = {"version": 1, "topics": {**MAP["topics"], "/invoices-.*/": MAP["topics"]["orders"]}}
    with pytest.raises(BadArgument, match="there is no topic for /invoices-"):
        await shop.person.forget({"customer_id": ADA}, people, **WHY)
    assert (await shop.person.requests())["requests"] == []
    problems = {(one.kind, one.topic) for one in (await shop.person.check(people)).problems}
    assert ("no-topic", "/invoices-.*/") in problems


@pytest.mark.parametrize(
    ("frame", "is_theirs"),
    [
        (confluent(1, avro(OWN, {"customer": ADA})), True),
        (confluent(2, avro(OWN, {"customer": ADA})), None),  # the schema of another topic, which these bytes do not fit
        (confluent(2, avro(OTHER, {"amount": 7, "text": ADA})), False),
        (confluent(3, b"\0" + b"\x0a" + bytes([len(ADA)]) + ADA.encode()), True),
        (
            confluent(3, b"\x04\x02\x04" + b"\x0a" + bytes([len(ADA)]) + ADA.encode()),
            None,
        ),  # no such message in the schema
    ],
)
async def test_values_are_judged_by_the_schema_that_their_frame_names(
    shop: Broker, frame: bytes, is_theirs: bool | None
) -> None:
    """One of another topic decides, too; bytes that do not fit it, and a wrong message index, hold the topic."""
    await shop.create_topic(SCHEMAS_TOPIC, 1, cleanup_policy="compact")
    proto = 'syntax = "proto3"; message Order { string customer = 1; }'
    for key, value in (
        registered(1, OWN, "events-value"),
        registered(2, OTHER, "payments-value"),
        registered(3, proto, "more-value", schemaType="PROTOBUF"),
    ):
        await shop.produce(SCHEMAS_TOPIC, value, key=key)
    await shop.create_topic("events")
    await shop.produce("events", frame)
    people = {"version": 1, "topics": {"events": MAP["topics"]["orders"]}}
    done = await shop.person.forget({"customer_id": ADA}, people, **WHY, now=True)
    expected = {True: "forgotten", False: "nothing-matched", None: "not-certified"}[is_theirs]
    assert done.state == expected
    assert (ADA.encode() in bytes_of(shop, "events")) == (is_theirs is not True)
