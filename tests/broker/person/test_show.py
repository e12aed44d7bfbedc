"""All records of a person, over all topics: found, explained, with other people's data marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from diamant import Admin, AdminError
from diamant.broker.broker import BlockingBroker
from diamant.cleaner.person.copy_page import copy_page
from tests.broker.person.conftest import PEOPLE
from tests.broker.person.large_shop import SHOP_MAP, TOPICS, Customer, decoded, texts_in
from tests.broker.stored import batches_of

CLEO = Customer(2)


def shown(
    broker: BlockingBroker, shop_map: Mapping[str, Any] = SHOP_MAP, **identifiers: Any
) -> list[Mapping[str, Any]]:
    """Return the lines that show a person."""
    admin = Admin(broker.bootstrap_servers)
    return list(admin.person.show(identifiers, shop_map))


def of_kind(lines: list[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [one for one in lines if one["kind"] == kind]


def holding(broker: BlockingBroker, person: Customer) -> set[tuple[str, int, int]]:
    """Return the places of all records that name a person, decoded by the reference libraries."""
    sought = {*person.identifiers, *(person.order_id(count) for count in range(2))}
    found = set()
    for topic in TOPICS:
        for partition, log in broker.awaited.node.topics.by_name[topic].logs.items():
            for header, records in batches_of(log):
                for record in [] if header.is_control else records:
                    headers = [(one.value or b"").decode() for one in record.headers]
                    texts = {(record.key or b"").decode(), *headers, *texts_in(decoded(record.value or b""))}
                    if sought & texts:
                        found.add((topic, partition, record.offset))
    return found


def test_every_record_of_a_person_is_shown(shop: BlockingBroker) -> None:
    """An independent decoder finds them in the same places, live and superseded, in 12 topics and four encodings."""
    lines = shown(shop, customer_id=CLEO.customer_id)
    records = of_kind(lines, "record")
    places = [(one["topic"], one["partition"], one["offset"]) for one in records]
    assert len(places) == len(set(places))
    assert set(places) == holding(shop, CLEO)
    assert {one["topic"] for one in records} == set(TOPICS)
    assert lines[-1] == {
        "kind": "end",
        "records": len(places),
        "identifiers": 6,
        "without_topic": [],
        "not_searched": [],
        "is_complete": True,
    }
    customers = [one for one in records if one["topic"] == "customers"]
    assert [one["status"] for one in customers] == ["superseded", "live"]
    assert customers[0]["superseded_by"] == customers[1]["offset"]
    assert customers[1]["value_json"]["email"] == CLEO.email
    assert customers[1]["why"][0]["kind"] == "live-value"
    assert customers[1]["fields"]["value.name"] == "user.name"
    [order, _] = [one for one in records if one["topic"] == "orders"]
    assert order["keep"][0]["because"] == "tax law"
    assert order["until_ms"] is not None


def test_each_identifier_says_what_led_to_it(shop: BlockingBroker) -> None:
    """The given one, those of the customer's record, and the orders that lead to shipments."""
    steps = of_kind(shown(shop, customer_id=int(CLEO.customer_id)), "identifier")
    found = {(one["name"], one["value"]): (one["topic"], one["by"]) for one in steps}
    assert found == {
        ("customer_id", CLEO.customer_id): (None, None),
        ("email", CLEO.email): ("customers", "customer_id"),
        ("phone", CLEO.phone): ("customers", "customer_id"),
        ("device", CLEO.device): ("customers", "customer_id"),
        ("order_id", CLEO.order_id(0)): ("orders", "customer_id"),
        ("order_id", CLEO.order_id(1)): ("orders", "customer_id"),
    }


def test_data_of_others_in_the_same_record_is_marked(shop: BlockingBroker) -> None:
    """A transfer has a sender and a receiver: the one who is not asked for is marked, in each role."""
    records = of_kind(shown(shop, customer_id=CLEO.customer_id), "record")
    others = {tuple(one["others"]) for one in records if one["topic"] == "transfers"}
    assert others == {
        ("value.receiver.customer_id", "value.receiver.name"),
        ("value.sender.customer_id", "value.sender.name"),
    }
    assert not any(one["others"] for one in records if one["topic"] != "transfers")


def test_the_search_stops_where_identifiers_may_be_shared(shop: BlockingBroker) -> None:
    """A device that all clicks have, a record that leads to another customer, too many values: the caller has to confirm."""
    status = {"version": 1, "topics": {"orders": {"identity": {"status": "value.status"}}}}
    with pytest.raises(AdminError, match=rf"select {PEOPLE}|records of orders \(status\)") as error:
        shown(shop, status, status="new")
    assert error.value.code == "unconfirmed"
    circle = {"version": 1, "topics": {"transfers": SHOP_MAP["topics"]["transfers"][0] | {"learns": {}}}}
    circle["topics"]["transfers"] = {
        "identity": {"customer_id": "value.sender.customer_id", "friend": "value.receiver.customer_id"}
    }
    circle["topics"]["logins"] = {"identity": {"friend": "header.user"}, "learns": {"customer_id": "header.user"}}
    with pytest.raises(AdminError, match="has another customer_id than the given one") as error:
        shown(shop, circle, customer_id=CLEO.customer_id)
    assert error.value.code == "unconfirmed"
    admin = Admin(shop.bootstrap_servers)
    confirmed = list(admin.person.show({"customer_id": CLEO.customer_id}, circle, confirm=True))
    # The friends of friends are a circle through all customers.
    assert confirmed[-1]["identifiers"] == 2 * PEOPLE


def test_what_cannot_be_looked_into_is_reported(shop: BlockingBroker) -> None:
    """An unknown identifier, an invalid map and entries without a topic are reported."""
    with pytest.raises(
        AdminError, match=r"the map has no identifier 'iban'; expected one of customer_id, device"
    ) as error:
        shown(shop, iban="1")
    assert error.value.code == "bad-argument"
    with pytest.raises(AdminError, match=r"map: topics.a.identity: expected at least one"):
        shown(shop, {"version": 1, "topics": {"a": {}}}, customer_id="1")
    more = {**SHOP_MAP, "topics": {**SHOP_MAP["topics"], "/none-.*/": {"identity": {"customer_id": "key"}}}}
    lines = shown(shop, more, customer_id="nobody")
    assert lines[-1]["without_topic"] == ["/none-.*/"]
    assert {"topic": "shipments", "identifiers": ["order_id"]} in lines[-1]["not_searched"]
    assert lines[-1]["is_complete"] is False
    assert "shipments was not searched" in "".join(copy_page(lambda: lines, 0, "here"))
    assert lines[-1]["records"] == 0


def test_many_people_looked_for_together_have_the_plans_of_each_alone(shop: BlockingBroker) -> None:
    """Keys, headers, and paths into JSON, Avro and Protobuf, as texts and as numbers; also of one without records."""
    people = [{"customer_id": Customer(number).customer_id} for number in range(0, 24, 3)] + [{"customer_id": "7"}]
    together = [plan.to_fields() for plan in shop.person.preview_each(people, SHOP_MAP).people]
    assert [plan["records"] > 0 for plan in together] == [True] * 8 + [False]
    for number in (0, 3, 8):
        assert together[number] == shop.person.preview(people[number], SHOP_MAP).to_fields()
