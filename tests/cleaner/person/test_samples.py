"""Samples of topics: checks of a map that need no broker, and drafts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.cleaner.person.map_check import MapProblem, check_map
from diamant.cleaner.person.people_map import parse_people_map
from diamant.cleaner.person.sampling import TopicSample, tags_of
from diamant.cleaner.person.suggestion import suggest
from diamant.cleaner.values.schemas import AVRO, PROTOBUF, SchemaText, Values
from diamant.protocol.batches.header import Record
from diamant.storage.segments.log_config import LogConfig

NOW_MS = 1_700_000_000_000


def sample(topic: str, *records: tuple[str | None, Any], is_compacted: bool = False) -> TopicSample:
    """Return a topic with these keys and values."""
    found = TopicSample(topic, is_compacted)
    for key, value in records:
        data = None if value is None else json.dumps(value).encode()
        found.add(Record(0, NOW_MS, None if key is None else key.encode(), data), Values())
    return found


def problems(one: TopicSample, entry: Any) -> list[MapProblem]:
    people = parse_people_map({"version": 1, "topics": {one.topic: entry}})
    return check_map(people, [one], {one.topic: LogConfig()}, NOW_MS)


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ({"identity": {"user": "key"}}, 1),
        ({"identity": {"user": "value.user"}}, 2),
        ({"identity": {"user": ["key", "value.user"]}}, 0),
        ([{"identity": {"user": "value.user"}}, {"identity": {"agent": "value.agent"}}], 1),
    ],
)
def test_records_without_an_identity_are_counted(entry: Any, count: int) -> None:
    """Keyless records, and those without the path, are counted; a tombstone has no data. Where no record has it, that is the
    finding.
    """
    one = sample(
        "events",
        ("u1", {"user": "u1"}),
        (None, {"user": "u2"}),
        ("u3", {"agent": "a1"}),
        ("u4", {"else": 1}),
        ("u5", None),
    )
    found = [problem for problem in problems(one, entry) if problem.kind == "without-identity"]
    assert len(found) == bool(count)
    assert not found or found[0].text.startswith(f"{count} record")
    assert [one.kind for one in problems(one, {"identity": {"user": "value.none"}})] == ["no-record"]


def test_a_key_that_equals_the_identity_is_preferred() -> None:
    """Also if the values are too short to tell; then a tombstone of the key removes the records."""
    rows = [(str(number), {"customer_id": number, "email": f"p{number}@example.com"}) for number in range(1, 41)]
    [entry] = suggest([sample("people", *rows, is_compacted=True)]).topics.values()
    assert isinstance(entry, dict)
    assert (entry["identity"], entry["do"]) == ({"customer_id": "key"}, "erase-key")
    others = [(key if key != "7" else "70", value) for key, value in rows]
    [entry] = suggest([sample("people", *others, is_compacted=True)]).topics.values()
    assert isinstance(entry, dict)
    assert entry["do"] == "remove-record"


TAGGED = """syntax = "proto3"; message Customer { int64 id = 1;
  string email = 2 [(confluent.field_meta).tags = "PII", (confluent.field_meta).tags = "EMAIL"];
  map<string, string>phones = 3 [ (confluent.field_meta) = { tags: ["PII"] } ]; bool old = 4 [deprecated = true]; }"""


def test_tags_of_schemas_are_found_by_the_names_of_fields() -> None:
    """In the options of Protobuf's fields, and beside Avro's and JSON schema's."""
    assert tags_of(SchemaText(PROTOBUF, TAGGED)) == {"email": ("PII", "EMAIL"), "phones": ("PII",)}
    avro = {"fields": [{"name": "email", "confluent:tags": ["PII"]}]}
    properties = {"properties": {"phone": {"confluent:tags": ["PHONE"]}}}
    references = {"other": json.dumps(properties)}
    assert tags_of(SchemaText(AVRO, json.dumps(avro), references)) == {"email": ("PII",), "phone": ("PHONE",)}


@pytest.mark.parametrize("text", ["a" * 100_000, "a=" + "1" * 100_000, "a=1[field_meta" * 10_000, "[" * 100_000])
def test_hostile_schemas_have_no_tags(text: str) -> None:
    """Long words and open brackets take no longer than others."""
    assert set(tags_of(SchemaText(PROTOBUF, text))) <= {"a", "field_meta"}
