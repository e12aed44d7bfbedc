"""Identifiers that lead to several people: they are named, and the search asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import Unconfirmed
from tests.broker.erasure.brokers import broker_at

MAIL, OWN, DAN = "home@example.com", "cleo@example.com", "dan@example.com"
LEARNED: dict[str, Any] = {
    "customers": {
        "identity": {"customer_id": "key"},
        "learns": {"email": "value.email", "order_id": "value.orders"},
        "do": "erase-key",
    },
    "newsletter": {"identity": {"email": "key"}, "do": "erase-key"},
    "parcels": {"identity": {"order_id": "value.order"}, "do": "remove-record"},
}
RECOGNISED: dict[str, Any] = {
    "customers": {"identity": {"customer_id": "key", "email": "value.email"}, "do": "erase-key"},
    "newsletter": {"identity": {"email": "key"}, "do": "erase-key"},
}


def the_map(**topics: Any) -> dict[str, Any]:
    return {"version": 1, "topics": topics}


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """Ada and Bob have one e-mail address, Cleo two of her own and two orders."""
    async with broker_at(tmp_path) as running:
        for topic in ("customers", "newsletter"):
            await running.create_topic(topic, cleanup_policy="compact")
        await running.create_topic("parcels")
        for number, email, orders in (
            (1, MAIL, ["A1"]),
            (2, MAIL, ["B1"]),
            (3, "old@example.com", ["C1"]),
            (3, OWN, ["C2"]),
            (4, DAN, ["D1"]),
        ):
            await running.produce("customers", json.dumps({"email": email, "orders": orders}), key=str(number))
            await running.produce("newsletter", "{}", key=email)
            await running.produce("parcels", json.dumps({"order": orders[0]}))
        yield running


async def test_an_identifier_that_is_learned_and_shared_asks(shop: Broker) -> None:
    """The text names the identifier, the number of people and the topic, and nobody's value; nothing is forgotten."""
    with pytest.raises(Unconfirmed, match="email is an identifier of 2 different people in customers") as error:
        await shop.person.preview({"customer_id": "1"}, the_map(**LEARNED))
    assert MAIL not in str(error.value)
    with pytest.raises(Unconfirmed):
        await shop.person.forget({"customer_id": "1"}, the_map(**LEARNED), reason="GDPR Art. 17")
    assert (await shop.person.requests())["requests"] == []


async def test_a_confirmed_search_still_names_it(shop: Broker) -> None:
    """The preview has it in words, beside what would happen."""
    plan = await shop.person.preview({"customer_id": "1"}, the_map(**LEARNED), confirm=True)
    assert [one.records for one in plan.topics] == [1, 2, 1]
    assert plan.doubts == (
        "email is an identifier of 2 different people in customers, so what it leads to may be others'",
    )


async def test_several_identifiers_of_one_person_do_not_ask(shop: Broker) -> None:
    """Two addresses and two orders of one customer, and an order that a parcel has, too."""
    plan = await shop.person.preview({"customer_id": "3"}, the_map(**LEARNED))
    assert [(one.topic, one.records) for one in plan.topics] == [("customers", 2), ("newsletter", 2), ("parcels", 2)]
    assert plan.doubts == ()


@pytest.mark.parametrize("topics", [LEARNED, RECOGNISED])
async def test_an_identifier_that_is_given_and_shared_asks(shop: Broker, topics: dict[str, Any]) -> None:
    """Whether it only leads on from the customers, or recognises them."""
    with pytest.raises(Unconfirmed, match=r"several people|2 different people"):
        await shop.person.preview({"email": MAIL}, the_map(**topics))
    plan = await shop.person.preview({"email": DAN}, the_map(**topics))
    assert plan.doubts == ()


async def test_a_shared_identifier_asks_although_the_records_are_superseded(shop: Broker) -> None:
    """What is still on the disk counts: it would be shown, and forgotten."""
    await shop.produce("customers", json.dumps({"email": "bob@example.com", "orders": []}), key="2")
    with pytest.raises(Unconfirmed, match="email is an identifier of 2 different people"):
        await shop.person.preview({"customer_id": "1"}, the_map(**LEARNED))


async def test_several_keys_found_by_another_identifier_ask(shop: Broker) -> None:
    """Found by the address, the records of the customers have two customer numbers."""
    with pytest.raises(Unconfirmed, match="has another customer_id than the records before: email may be shared"):
        await shop.person.preview({"email": MAIL}, the_map(**RECOGNISED))
    with pytest.raises(Unconfirmed, match="has another customer_id than the given one"):
        await shop.person.preview({"customer_id": "1"}, the_map(**RECOGNISED))
