"""Identifiers that lead from topic to topic: the order of reading, the conditions, and doubts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.cleaner.person.identifiers import (
    MAX_VALUES,
    Doubtful,
    Identifier,
    KnownIdentifiers,
    Lesson,
    TooManyIdentifiers,
    TopicSearch,
    lessons,
    next_topic,
)
from diamant.cleaner.person.people_map import parse_people_map
from diamant.cleaner.person.places import Parts, parse_place
from diamant.cleaner.redaction.json_path import YES
from diamant.cleaner.redaction.where import parse_where
from diamant.cleaner.values.schemas import Values
from diamant.protocol.batches.header import Header, Record


def next_search(one: KnownIdentifiers) -> TopicSearch | None:
    """Return the search of the topic that is read next."""
    topic = next_topic([one])
    return None if topic is None else one.search(topic)


def known(topics: dict[str, Any], *, is_confirmed: bool = False, **given: str) -> KnownIdentifiers:
    """Return the identifiers in a map of these topics, of which later ones are smaller."""
    rules = parse_people_map({"version": 1, "topics": topics}).of_topics(topics)
    sizes = {topic: -number for number, topic in enumerate(topics)}
    return KnownIdentifiers(rules, sizes, {name: [value] for name, value in given.items()}, is_confirmed=is_confirmed)


def record(value: Any, key: str | None = None, **headers: str) -> Record:
    found = tuple(Header(name, text.encode()) for name, text in headers.items())
    return Record(0, 0, None if key is None else key.encode(), json.dumps(value).encode(), found)


CHAIN = {
    "shipments": {"identity": {"order": "key"}},
    "orders": {"identity": {"customer": "value.customer"}, "learns": {"order": "key"}},
    "visits": {"identity": {"email": "value.email", "customer": "value.customer"}},
    "customers": {"identity": {"customer": "key"}, "learns": {"email": "value.email"}},
}


def test_topics_are_read_after_those_that_teach_their_identifiers() -> None:
    """So each is read once, whatever their sizes; one without a known identifier is not read."""
    one = known(CHAIN, customer="42")
    read = []
    while (search := next_search(one)) is not None:
        read.append((search.topic, search.names))
        if search.topic == "customers":
            one.learn("customers", 0, 5, [Lesson(Identifier("email", "a@b.c"), "customer")])
    assert read == [("customers", ("customer",)), ("visits", ("email", "customer")), ("orders", ("customer",))]
    assert [step.identifier.value for step in one.steps] == ["42", "a@b.c"]
    assert (one.steps[1].topic, one.steps[1].offset, one.steps[1].by) == ("customers", 5, "customer")
    assert one.parts("shipments") == ()
    [part] = one.parts("orders")
    assert part.where == ('value.customer == "42" or value.customer == 42',)
    [part] = one.parts("customers")
    assert part.keys == (b"42",)


def test_a_circle_is_read_again_for_new_values_only() -> None:
    """Topics in a circle are read again for new values only, until none is found."""
    one = known(
        {
            "a": {"identity": {"x": "key"}, "learns": {"y": "value.y"}},
            "b": {"identity": {"y": "key"}, "learns": {"x": "value.x"}},
        },
        is_confirmed=True,
        x="x0",
    )
    read = []
    while (search := next_search(one)) is not None:
        read.append((search.topic, [where.text for where in search.wheres]))
        if len(read) < 4:
            name = "y" if search.topic == "a" else "x"
            one.learn(search.topic, 0, 0, [Lesson(Identifier(name, f"{name}{len(read)}"), "x")])
    assert read == [("a", ['key == "x0"']), ("b", ['key == "y1"']), ("a", ['key == "x2"']), ("b", ['key == "y3"'])]


def test_a_second_value_of_a_given_identifier_is_doubtful() -> None:
    """The text names the identifier and the record, and no value."""
    topics = {"b": {"identity": {"y": "key"}, "learns": {"x": "value.x"}}}
    one = known(topics, x="1", y="secret")
    with pytest.raises(Doubtful, match=r"found by y in b \(partition 2, offset 7\) has another x") as error:
        one.learn("b", 2, 7, [Lesson(Identifier("x", "2"), "y")])
    assert "secret" not in str(error.value)
    one.learn("b", 2, 7, [Lesson(Identifier("x", "1"), "y")])


def test_identifiers_that_select_much_are_doubtful() -> None:
    """Short identifiers are doubtful sooner; never in a handful of records; never once they are confirmed."""
    for value, matched, is_doubtful in (("4711", 250, False), ("4711", 251, True), ("42", 51, True), ("42", 50, False)):
        one = known(CHAIN, customer=value)
        search = next_search(one)
        assert search is not None
        if is_doubtful:
            with pytest.raises(Doubtful, match=f"{matched} of 1,000 records of customers"):
                one.check_share(search, matched, 1_000)
        else:
            one.check_share(search, matched, 1_000)
        one.check_share(search, 19, 19)


def test_many_identifiers_make_several_conditions_up_to_a_bound() -> None:
    """Each of them fits the language of conditions; together they find every value."""
    one = known(CHAIN, customer="42")
    lessons_of = [Lesson(Identifier("order", f"o{number}"), "customer") for number in range(MAX_VALUES)]
    with pytest.raises(TooManyIdentifiers):
        one.learn("orders", 0, 0, lessons_of)
    [part] = one.parts("shipments")
    assert len(part.keys) == MAX_VALUES - 1
    assert len(part.where) == 10
    wheres = [parse_where(text) for text in part.where]
    assert all(any(where.judge(record({}, f"o{number}")) == YES for where in wheres) for number in (0, 500, 998))


def test_a_record_teaches_what_it_has_beside_the_identifier_that_found_it() -> None:
    """A second place of the same identifier is not learned: it may be another person's. Lists and numbers are."""
    topics = {
        "t": {
            "identity": {"id": ["value.from", "value.to"], "mail": "value.mail"},
            "learns": {"phone": "value.phones.number", "user": 'header["user id"]'},
        }
    }
    one = known(topics, id="1")
    value = {"from": 1, "to": "2", "mail": "", "phones": [{"number": 30.0}, {"number": "31"}, {"number": True}, {}]}
    parts = Parts(record(value, **{"user id": "ada"}), Values())
    rules = parse_people_map({"version": 1, "topics": topics}).rules
    assert [lesson.identifier for lesson in lessons(rules, parts, one)] == [
        ("phone", "30"),
        ("phone", "31"),
        ("user", "ada"),
    ]
    assert lessons(rules, Parts(record({**value, "from": 3}), Values()), one) == []


@pytest.mark.parametrize("value", ['a"b', "ü", "-7", "007", "1e5", "42", "x" * 1024, "a\\b", "a\nb"])
def test_a_value_is_found_as_it_is_written(value: str) -> None:
    """A value is found as text at every place, with quotes and escapes, and a whole number also as a number."""
    place = parse_place("value.id")
    where = parse_where(" or ".join(place.comparisons(value)))
    assert where.judge(record({"id": value})) == YES
    if value in ("-7", "42"):
        assert where.judge(record({"id": int(value)})) == YES
    for text, other in (("key", record({}, value)), ("header.id", record({}, id=value))):
        assert parse_where(" or ".join(parse_place(text).comparisons(value))).judge(other) == YES
