"""Changed fields in Avro: the reference library reads the result, and finds only the named fields different."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import fastavro.validation
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.values.avro import AvroReader
from diamant.cleaner.values.avro_edit import edit_avro
from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, TEXT, NewValue, Unchangeable, spliced, texts_in
from diamant.cleaner.values.nodes import Undecodable
from tests.cleaner.values.changed_fields import TOKEN, changed, is_for_items, paths, without
from tests.cleaner.values.test_avro import NULLS, encoded, schemas_and_values
from tests.effort import examples

PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "nick", "type": "string", "default": "nobody"},
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["BASIC", "GOLD"]}, "default": "BASIC"},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "mails", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}, "default": {}},
        {"name": "friend", "type": ["null", "Person"], "default": None},
        {"name": "data", "type": "bytes", "default": "\u00ff"},
        {"name": "ratio", "type": ["double", "null"], "default": 0.5},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}, "default": ""},
    ],
}
ADA: dict[str, Any] = {
    "id": 1,
    "name": "Ada",
    "nick": "countess",
    "level": "GOLD",
    "born": 7,
    "seen": 1_000,
    "paid": 12,
    "mails": ["a@example.com", "b@example.com"],
    "tags": {"city": "Bern", "mail": None},
    "friend": None,
    "data": b"\1\2",
    "ratio": 1.5,
    "token": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
}


def edited(schema: Any, data: bytes, path: str | list[str], new: NewValue) -> bytes:
    steps = path.split(".") if isinstance(path, str) else path
    kind = AvroReader(json.dumps(schema)).type
    found = edit_avro(kind, data, steps, new)
    after = spliced(data, found)
    again = edit_avro(kind, after, steps, new)
    assert spliced(after, again) == after
    assert [one.old for one in again if one.old is not None] == []
    return after


def read(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema))


def written(value: Any) -> bytes:
    """Return a person in Avro, without logical types: numbers are as they are stored."""
    plain = json.loads(json.dumps(PERSON).replace("logicalType", "was"))
    return encoded(plain, {**value, "paid": b"\x0c"})


def person(path: str, new: NewValue, value: Any = ADA) -> Any:
    return read(json.loads(json.dumps(PERSON).replace("logicalType", "was")), edited(PERSON, written(value), path, new))


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), schemas_and_values(), st.sampled_from([NULL, EMPTY, TEXT]))
def test_random_values_differ_in_the_named_fields_alone(data: st.DataObject, one: tuple[Any, Any], kind: str) -> None:
    """If the reference library holds the new value for valid it is there; if not, the field cannot change."""
    check_random_value(data, one, kind)


def check_random_value(data: st.DataObject, one: tuple[Any, Any], kind: str) -> None:
    schema, value = one
    payload, parsed = encoded(schema, value), fastavro.parse_schema(schema)
    before = read(schema, payload)
    path = data.draw(paths(before))
    new = NewValue(kind, TOKEN if kind == TEXT else "")
    try:
        after = read(schema, edited(schema, payload, path, new)) if path else before
    except Unchangeable:
        after = None
    if not path:
        return
    if kind == EMPTY:
        assert after is None or without(after, path) == without(before, path)
        return
    wanted = [None] if kind == NULL else [TOKEN, TOKEN.encode()]
    expected = [changed(before, path, lambda _old, put=put: put, in_lists=is_for_items(new)) for put in wanted]
    valid = [found for found in expected if fastavro.validation.validate(found, parsed, raise_errors=False)]
    assert after in valid if valid else after is None


@pytest.mark.parametrize(
    ("path", "new", "field", "expected"),
    [
        ("name", NewValue(NULL), "name", None),
        ("nick", NewValue(DEFAULT), "nick", "nobody"),
        ("level", NewValue(DEFAULT), "level", "BASIC"),
        ("data", NewValue(DEFAULT), "data", b"\xff"),
        ("ratio", NewValue(DEFAULT), "ratio", 0.5),
        ("tags.city", NewValue(NULL), "tags", {"city": None, "mail": None}),
        ("tags.city", NewValue(EMPTY), "tags", {"city": "", "mail": None}),
        ("tags.mail", NewValue(EMPTY), "tags", {"city": "Bern", "mail": None}),
        ("tags.mail", NewValue(TEXT, "x"), "tags", {"city": "Bern", "mail": "x"}),
        ("tags", NewValue(DEFAULT), "tags", {}),
        ("mails", NewValue(TEXT, "x"), "mails", ["x", "x"]),
        ("mails", NewValue(EMPTY), "mails", []),
        ("mails", NewValue(GIVEN, '["c"]'), "mails", ["c"]),
        ("born", NewValue(GIVEN, '"1970-01-09"'), "born", 8),
        ("born", NewValue(GIVEN, "9"), "born", 9),
        ("born", NewValue(EMPTY), "born", 0),
        ("seen", NewValue(GIVEN, '"1970-01-01T00:00:02.5Z"'), "seen", 2_500),
        ("seen", NewValue(GIVEN, '"1970-01-01T01:00:00+01:00"'), "seen", 0),
        ("paid", NewValue(GIVEN, "-1.5"), "paid", b"\xff\x6a"),
        ("paid", NewValue(GIVEN, '"2.56"'), "paid", b"\1\0"),
        ("data", NewValue(GIVEN, '"\u00fc"'), "data", "\u00fc".encode()),
        ("ratio", NewValue(GIVEN, "2"), "ratio", 2.0),
        ("paid", NewValue(EMPTY), "paid", b"\0"),
        ("token", NewValue(EMPTY), "token", "00000000-0000-0000-0000-000000000000"),
        ("token", NewValue(TEXT, ADA["token"]), "token", ADA["token"]),
        ("level", NewValue(TEXT, "BASIC"), "level", "BASIC"),
        ("friend.name", NewValue(NULL), "friend", None),
        ("nothing", NewValue(NULL), "id", 1),
    ],
)
def test_a_field_becomes_what_is_asked_for(path: str, new: NewValue, field: str, expected: Any) -> None:
    """Null, a default of the schema, empty, a text, or a value given as JSON, of logical types too; all else stays."""
    found = person(path, new)
    assert found[field] == expected
    assert {**found, field: 0} == {**ADA, "paid": b"\x0c", field: 0}


def test_a_record_of_the_same_type_may_be_in_the_field() -> None:
    """A path leads through recursive types; a record may be given whole, and defaults fill what is not given."""
    value = {**ADA, "friend": {**ADA, "paid": b"\1", "friend": None}}
    assert person("friend.nick", NewValue(EMPTY), value)["friend"]["nick"] == ""
    given = NewValue(GIVEN, '{"id": 2, "born": 1, "paid": 0}')
    found = person("friend", given)["friend"]
    assert (found["id"], found["nick"], found["level"], found["data"]) == (2, "nobody", "BASIC", b"\xff")


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("id", NewValue(NULL)),
        ("id", NewValue(DEFAULT)),
        ("id", NewValue(TEXT, "x")),
        ("token", NewValue(TEXT, "x")),
        ("level", NewValue(EMPTY)),
        ("level", NewValue(TEXT, "x")),
        ("id", NewValue(GIVEN, "1.5")),
        ("id", NewValue(GIVEN, str(1 << 63))),
        ("id", NewValue(GIVEN, "true")),
        ("born", NewValue(GIVEN, '"yesterday"')),
        ("paid", NewValue(GIVEN, "1.234")),
        ("ratio", NewValue(GIVEN, "1e999")),
        ("tags.city", NewValue(DEFAULT)),
        ("mails", NewValue(NULL)),
        ("friend", NewValue(GIVEN, '{"id": 2}')),
        ("friend", NewValue(GIVEN, '{"id": 2, "born": 1, "paid": 0, "more": 1}')),
    ],
)
def test_what_the_schema_does_not_have_cannot_be(path: str, new: NewValue) -> None:
    """A required field has no null, an enum nothing empty; a given value has to fit."""
    with pytest.raises(Unchangeable):
        person(path, new)


def test_blocks_with_sizes_get_new_sizes() -> None:
    """Items of arrays and maps may stand in blocks that say their bytes. All other bytes stay as their writer encoded them."""
    schema = {"type": "array", "items": {"type": "map", "values": "string"}}
    entry = b"\x02a\x06Ada"
    # One item in a block of a size, one in a block without; a count of one in two bytes.
    block = b"\1" + bytes([2 * len(entry)]) + entry + b"\0"
    data = b"\1" + bytes([2 * len(block)]) + block + b"\x82\0" + b"\2" + entry + b"\0" + b"\0"
    after = edited(schema, data, "a", NewValue(TEXT, "Countess"))
    assert read(schema, after) == [{"a": "Countess"}] * 2
    entry = b"\x02a\x10Countess"
    block = b"\1" + bytes([2 * len(entry)]) + entry + b"\0"
    assert after == b"\1" + bytes([2 * len(block)]) + block + b"\x82\0" + b"\2" + entry + b"\0" + b"\0"


def test_the_texts_that_are_lost_are_known() -> None:
    """Of all levels, to be searched for everywhere."""
    found = edit_avro(AvroReader(json.dumps(PERSON)).type, written(ADA), ["mails"], NewValue(EMPTY))
    assert sorted(texts_in(found[0].old)) == [b"a@example.com", b"b@example.com"]


def test_hostile_schemas_cost_neither_memory_nor_time() -> None:
    """A default of records that double with each level is refused after some parts."""
    kind: Any = "int"
    for level in range(30):
        fields = [{"name": "a", "type": kind, "default": {}}, {"name": "b", "type": f"R{level - 1}", "default": {}}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields if level else []}
    schema = {"type": "record", "name": "T", "fields": [{"name": "u", "type": ["int", kind], "default": {}}]}
    with pytest.raises(Unchangeable):
        edit_avro(AvroReader(json.dumps(schema)).type, b"\0\0", ["u"], NewValue(DEFAULT))
    with pytest.raises(Undecodable, match="parts"):
        edit_avro(AvroReader(json.dumps(NULLS)).type, b"\xa0\x1f\0", ["f1"], NewValue(NULL))
