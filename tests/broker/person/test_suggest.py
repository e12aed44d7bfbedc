"""A draft of a map from samples of the topics, and the checks of a map."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from diamant import Admin, AdminError
from diamant.broker.broker import BlockingBroker
from tests.broker.person.large_shop import PLANTED, SHOP_MAP, Customer
from tests.broker.person.test_show import holding


def test_the_draft_has_the_places_of_identifiers_and_shows_a_person(shop: BlockingBroker) -> None:
    """The draft has at least 30 of 32 planted places, and at most 4 others; with this draft every record of a person is found."""
    admin = Admin(shop.bootstrap_servers)
    found = admin.person.suggest()
    planted = {(topic, place) for topic, places in PLANTED.items() for place in places}
    places = {(one["topic"], one["place"]): one for one in found["places"]}
    assert len(planted) == 32
    assert len(planted & places.keys()) >= 30
    assert len(places.keys() - planted) <= 4
    email = places["customers", "value.email"]
    assert email["reasons"][:3] == [
        "60 of 60 values look like email",
        "its schema has the tags PII, EMAIL",
        "its name is email",
    ]
    assert (email["records"], email["distinct"]) == (60, 30)
    assert places["payments", "value.customer"]["identifier"] == "customer_id"
    assert places["tickets", "value.from"]["identifier"] == "email"
    person = Customer(5)
    records = [
        one for one in admin.person.show({"customer_id": person.customer_id}, found["map"]) if one["kind"] == "record"
    ]
    assert {(one["topic"], one["partition"], one["offset"]) for one in records} == holding(shop, person)


def test_the_draft_passes_its_own_check(shop: BlockingBroker) -> None:
    """It mentions all topics with identifiers, and each of its places has a value in some record."""
    with_admin = Admin(shop.bootstrap_servers)
    assert with_admin.person.check(with_admin.person.suggest()["map"])["problems"] == []


def test_topics_can_be_chosen(shop: BlockingBroker) -> None:
    """Others are not read; one that does not exist is refused."""
    suggestion = shop.person.suggest(["customers", "tickets"], records=10)
    assert suggestion.sampled == {"customers": 10, "tickets": 10}
    with pytest.raises(AdminError, match="no topic") as error:
        Admin(shop.bootstrap_servers).person.suggest(["none"])
    assert error.value.code == "not-found"


def changed(**topics: Any) -> Mapping[str, Any]:
    """Return the map of the shop with other entries of topics; None removes one."""
    found = deepcopy(SHOP_MAP)
    for topic, entry in topics.items():
        if entry is None:
            del found["topics"][topic]
        else:
            found["topics"][topic] = entry
    return found


@pytest.mark.parametrize(
    ("people", "expected"),
    [
        (changed(), ("ends-before-keep", "orders", "", "until P10Y .* and the topic removes them after 7d")),
        (
            changed(ratings={"identity": {"customer_id": "key"}, "do": "erase-key"}),
            ("not-compacted", "ratings", "", "erase-key removes nothing here, as cleanup.policy has no compact"),
        ),
        (changed(tickets=None), ("not-mentioned", "tickets", "", "value.callback looks like phone")),
        (changed(invoices={"identity": {"customer_id": "key"}}), ("no-topic", "invoices", "", "no topic has this name")),
        (changed(clicks={"identity": {"device": "value.gadget"}}), ("no-record", "clicks", "value.gadget", "none of 60 records")),
        (changed(clicks={"identity": {"agent": "value.device"}}), ("unresolved", "clicks", "", "nothing leads from customer_id")),
        (
            changed(transfers={"identity": {"customer_id": ["value.sender.customer_id", "value.receiver.customer_id"]}}),
            ("several-people", "transfers", "value.sender.customer_id", "make an entry for each role"),
        ),
        (
            changed(ratings={"identity": {"customer_id": "value.sku"}, "fields": {"value.text": "user"}}),
            None,  # three numbers of products are too few to tell
        ),
        (
            changed(tickets={"identity": {"customer_id": "value.callback"}}),
            ("different-claims", "tickets", "value.callback", "customer_id has no value in common with"),
        ),
        (
            changed(newsletter={"identity": {"email": "key"}, "learns": {"customer_id": "value.email"}}),
            ("circle", "", "", "customer_id, email lead in a circle"),
        ),
        (
            changed(customers={"identity": {"customer_id": "key"}, "keep": {"until": "P1Y", "because": "x"}}),
            ("outlives-keep", "customers", "", "and the topic forever: cleanup.policy=compact"),
        ),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)  # fmt: skip
def test_a_check_names_what_is_wrong_with_a_map(
    shop: BlockingBroker, people: Mapping[str, Any], expected: tuple[str, str, str, str] | None
) -> None:
    """Each problem has its kind, the topic, the place, and a sentence."""
    problems = {one[:3]: one.text for one in shop.person.check(people).problems}
    if expected is None:
        assert not [one for one in problems if one[1] == "ratings"]
        return
    assert re.search(expected[3], problems[expected[:3]])
