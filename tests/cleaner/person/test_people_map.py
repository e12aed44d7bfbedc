"""The map of people: its forms, its errors, datasets of Fides."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from diamant.cleaner.person.fides import dataset_of
from diamant.cleaner.person.map_check import check_map
from diamant.cleaner.person.map_file import parse_map_file
from diamant.cleaner.person.people_map import BLANK, ERASE_KEY, KEEP, MapError, PeopleMap, parse_people_map
from diamant.cleaner.person.places import WHOLE_KEY, FieldPath
from diamant.cleaner.person.sampling import TopicSample
from diamant.duration import parse_time_ms, time_text
from diamant.storage.segments.log_config import LogConfig
from release.reference.people_map_schema import people_map_schema

SHOP = """\
version: 1
topics:
  customers:
    identity: {customer_id: key}
    learns: {email: value.email, device: [value.device_id, header.device]}
    fields: {value.name: user.name}
    do: erase-key
    readers: [billing, no]
  /orders-.*/:
    identity: {customer_id: value.customer}
    do: {blank: [value.name, "value[\\"e mail\\"]"], with: null}
    keep: {until: P10Y, because: "§ 147 AO"}
  transfers:
    - identity: {customer_id: value.from.id}
    - identity: {customer_id: value.to.id}
      do: {blank: value.to.name, with: "text:***"}
"""


def shop() -> PeopleMap:
    return parse_map_file(SHOP.encode(), "people.yaml")


def test_a_map_says_where_people_are_and_what_to_do() -> None:
    """All its parts are values; a map that is written and read again is the same, as YAML and as JSON."""
    people = shop()
    customers, orders, *transfers = people.rules
    assert customers.identity == {"customer_id": (WHOLE_KEY,)}
    assert customers.learns["device"] == (FieldPath("value", ("device_id",)), FieldPath("header", ("device",)))
    assert (customers.action.kind, customers.readers, customers.keyed_by) == (
        ERASE_KEY,
        ("billing", "no"),
        "customer_id",
    )
    assert (orders.action.kind, orders.action.replacement) == (BLANK, "null")
    assert orders.action.blank[1] == FieldPath("value", ("e mail",))
    assert orders.keep is not None
    assert orders.keep.because == "§ 147 AO"
    assert [rule.action.kind for rule in transfers] == [KEEP, BLANK]
    assert people.identifiers == {"customer_id", "email", "device"}
    assert parse_map_file(yaml.safe_dump(people.to_fields(), sort_keys=False).encode(), "again.yaml") == people
    assert parse_people_map(json.loads(json.dumps(people.to_fields()))) == people


def test_names_count_before_regular_expressions() -> None:
    """Internal topics match none; a topic that two expressions match is an error; entries without a topic are named."""
    people = shop()
    found = people.of_topics(["customers", "orders-eu", "other", "__consumer_offsets"])
    assert {topic: rules[0].topic for topic, rules in found.items()} == {
        "customers": "customers",
        "orders-eu": "/orders-.*/",
    }
    assert people.without_topic(["customers"]) == ["/orders-.*/", "transfers"]
    both = parse_map_file(SHOP.replace("  transfers:", "  /.*-eu/:").encode(), "people.yaml")
    with pytest.raises(MapError, match="both match orders-eu"):
        both.of_topics(["orders-eu"])


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("P10Y", "2034-02-28T12"),
        ("P1Y6M", "2025-08-29T12"),
        ("P2W1D", "2024-03-15T12"),
        ("2030-01-31", "2030-01-31T00"),
    ],
)
def test_records_stay_for_a_period_of_the_calendar(until: str, expected: str) -> None:
    """Years and months are those of the calendar, from a record's timestamp on; a date is a date."""
    from diamant.cleaner.person.keeping import parse_keep

    start = parse_time_ms("2024-02-29T12:00:00Z")
    assert time_text(parse_keep(until, "tax").until_ms(start)).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "version: expected 1, found '2'"),
        ("    do: erase-key\n", "    does: erase-key\n", "topics.customers: 'does' is unknown; expected identity, learns"),
        ("do: erase-key", "do: shred", "topics.customers.do: expected erase-key, .*found 'shred'"),
        ("customer_id: key", "customer_id: value", "topics.customers.identity.customer_id: expected a path into the value"),
        ("customer_id: key", "customer_id: \"value[0]\"", "identity.customer_id: expected key, key.NAME, value.NAME"),
        ("customer_id: key", "customer_id: value.a exists or key", "identity.customer_id: expected key, key.NAME"),
        ("identity: {customer_id: key}", "identity: {}", "topics.customers.identity: expected at least one"),
        ("email: value.email", "customer_id: value.email", "learns.customer_id: it is already in identity"),
        ("identity: {customer_id: key}", "identity: {customer_id: value.id}", "erase-key needs an identifier at key"),
        ("value.to.name", "key.name", r"transfers\[1\].do.blank: .* keys cannot be blanked"),
        ('"text:***"', "stars", "with: expected null, default, empty or text:"),
        ("P10Y", "10 years", "orders-.*keep.until: expected a period such as P10Y"),
        ('"§ 147 AO"', '""', "keep.because: expected the ground"),
        ("/orders-.*/", "/orders-(/", "this is not a regular expression"),
        ("  customers:", "  a b:", "topics.a b: expected the name of a topic"),
        ("  customers:", "  transfers:", "line 13: transfers is given twice"),
        ("readers: [billing, no]", "readers: {billing: 1}", "readers: expected a list of strings, found an object"),
        ("identity: {customer_id: key}", "identity: &a {customer_id: *a}", "aliases"),
        ("topics:", "topics: [", "neither YAML nor JSON"),
        ("version: 1", "[" * 3000, "people.yaml: "),
    ],
)  # fmt: skip
def test_errors_name_the_place_and_the_expectation(old: str, new: str, message: str) -> None:
    """Each begins with the name of the file, without its folders."""
    assert old in SHOP
    with pytest.raises(MapError, match=f"people.yaml: .*{message}" if not message.startswith("people") else message):
        parse_map_file(SHOP.replace(old, new).encode(), "/tmp/people.yaml")


def test_a_dataset_of_fides_is_a_map() -> None:
    """Collections are topics; fields that refer to one another are one identifier. A map can be exported and read again."""
    text = """\
dataset:
  - fides_key: shop
    collections:
      - name: customers
        fields:
          - {name: key, fides_meta: {identity: customer_id, primary_key: true}}
          - {name: email, data_categories: [user.contact.email], fides_meta: {identity: email}}
          - name: address
            fields: [{name: street, data_categories: [user.contact.address.street]}]
      - name: orders
        fields:
          - name: customer
            fides_meta: {references: [{dataset: shop, field: customers.key, direction: from}]}
"""
    people = parse_map_file(text.encode(), "fides.yml")
    customers, orders = people.rules
    assert (customers.identity, orders.identity) == (
        {"customer_id": (WHOLE_KEY,)},
        {"customer_id": (FieldPath("value", ("customer",)),)},
    )
    assert [*customers.learns] == ["email"]
    assert customers.fields[FieldPath("value", ("address", "street"))] == "user.contact.address.street"
    again = parse_map_file(json.dumps(dataset_of(people, "shop")).encode(), "fides.json")
    assert again == people


@pytest.mark.parametrize(
    ("days", "expected"), [(3653, []), (3640, ["ends-before-keep"]), (4000, ["outlives-keep"])], ids=str
)
def test_ten_years_may_have_more_or_fewer_leap_days(days: int, expected: list[str]) -> None:
    """A topic that keeps records for ten years and a leap day more does not outlive a `keep` of ten years."""
    entry = {"identity": {"customer_id": "key"}, "keep": {"until": "P10Y", "because": "tax"}}
    people = parse_people_map({"version": 1, "topics": {"orders": entry}})
    configs = {"orders": LogConfig(retention_ms=days * 86_400_000)}
    now_ms = parse_time_ms("2026-01-01T00:00:00Z")
    found = check_map(people, [TopicSample("orders")], configs, now_ms)
    assert [one.kind for one in found if one.kind.endswith("-keep")] == expected


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"fides_key": []}, "fides_key: expected a string"),
        ({"collections": {}}, "dataset shop: collections: expected a list of objects"),
        ({"collections": [{"name": {"a": "b"}, "fields": []}]}, "dataset shop: the name of a collection: expected a string"),
        ({"collections": [{"name": "a", "fields": [{"name": ["b"]}]}]}, "collection a: the name of a field: expected a string"),
        ({"collections": [{"name": "a", "fields": [{"name": "b", "fides_meta": {"identity": {"c": "d"}}}]}]},
         "collection a, field b: identity: expected a string"),
    ],
)  # fmt: skip
def test_a_damaged_dataset_is_refused(dataset: dict[str, object], message: str) -> None:
    """The error says where something else than expected is."""
    content = json.dumps({"dataset": [{"fides_key": "shop", "collections": [], **dataset}]})
    with pytest.raises(MapError, match=message):
        parse_map_file(content.encode(), "fides.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 20_000, "line 1: more than 50 levels"),
        ("- " * 20_000, "line 1: more than 50 levels"),
        ("version: 1\ntopics: {? " + "a" * 20_000 + " : {}}", "expected the name of a topic"),
    ],
    ids=["lists", "items", "name"],
)
def test_hostile_files_are_refused_in_short(content: str, message: str) -> None:
    """Lists in lists are refused before they cost seconds, and no error has all of a long name."""
    with pytest.raises(MapError, match=message) as caught:
        parse_map_file(content.encode(), "people.yaml")
    assert len(str(caught.value)) < 300


def test_the_published_schema_accepts_maps_and_refuses_unknown_names() -> None:
    """Editors show most mistakes while they are typed."""
    schema = people_map_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = json.loads(json.dumps(shop().to_fields()))
    jsonschema.validate(fields, schema)
    for wrong in ({"identity": {}}, {"identity": {"id": "key"}, "does": "keep"}, {"identity": {"id": "value"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"version": 1, "topics": {"customers": wrong}}, schema)
