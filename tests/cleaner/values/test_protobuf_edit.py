"""Changed fields in Protobuf: the reference library reads the result, and finds only the named fields different."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, TEXT, NewValue, Unchangeable, spliced, texts_in
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.protobuf import ProtobufReader
from diamant.cleaner.values.protobuf_edit import edit_protobuf
from tests.cleaner.values.changed_fields import GONE, TOKEN, changed, is_for_items, paths, without
from tests.cleaner.values.test_protobuf import CUSTOMER, READER, by_the_library, messages, native, sized
from tests.effort import examples


def edited(message: bytes, path: list[str], new: NewValue, reader: ProtobufReader = READER) -> bytes:
    found = edit_protobuf(reader, message, path, new)
    after = spliced(message, found)
    assert spliced(after, edit_protobuf(reader, after, path, new)) == after
    return after


@settings(max_examples=examples(120), deadline=None)
@given(st.data(), messages(), st.sampled_from([NULL, EMPTY, TEXT]))
def test_random_messages_differ_in_the_named_fields_alone(data: st.DataObject, one: tuple[str, Any], kind: str) -> None:
    """Null and empty are the default that readers see; a text takes the place of texts and bytes, and of nothing else."""
    check_random_message(data, one, kind)


def check_random_message(data: st.DataObject, one: tuple[str, Any], kind: str) -> None:
    text, message = one
    before = by_the_library(message)
    path = data.draw(paths(before))
    if not path:
        return
    new = NewValue(kind, TOKEN if kind == TEXT else "")
    field = message.DESCRIPTOR.fields_by_name[path[-1]]
    is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
    payload = b"\0" + message.SerializeToString()
    reader = ProtobufReader(text)
    if kind == TEXT and not is_text:
        assert found_nothing(reader, payload, path, new)
        return
    after = by_the_library(type(message).FromString(edited(payload, path, new, reader)[1:]))
    assert without(after, path) == without(before, path)
    token = TOKEN if field.type == field.TYPE_STRING else TOKEN.encode()

    def wanted(old: Any) -> Any:
        if kind == TEXT:
            # What is left out has its default already.
            return token if old or field.is_repeated else old
        if field.is_repeated:
            return []
        if field.message_type is not None:
            return GONE if kind == NULL else by_the_library(type(message)())
        return type(old)()

    assert after == changed(before, path, wanted, in_lists=is_for_items(new))


def found_nothing(reader: ProtobufReader, payload: bytes, path: list[str], new: NewValue) -> bool:
    """Whether the field cannot change, or is left out, so that there is nothing to change."""
    try:
        return spliced(payload, edit_protobuf(reader, payload, path, new)) == payload
    except Unchangeable:
        return True


ADA = b"".join(
    (
        b"\x08\x2a",
        sized(2, b"ada@example.com"),
        b"\x18\1",
        sized(4, sized(1, b"Bern") + b"\x10\5"),
        sized(5, sized(1, b"EUR") + sized(2, b"\x08\3\x13" + sized(3, b"note") + b"\x14")),
        sized(8, b"079"),
        sized(10, b"\1\2"),
        sized(11, sized(2, sized(1, b"Ada")) + sized(1, b"t.org/shop.v1.Other")),
        sized(12, b"\x08\1" + sized(2, b"bob@example.com")),
        sized(12, sized(2, b"eve@example.com")),
        sized(13, b"\x08\1" + sized(2, b"\xff")),
    )
)


def customer(path: str, new: NewValue) -> Any:
    return native(READER.read(edited(CUSTOMER + ADA, path.split("."), new)))


@pytest.mark.parametrize(
    ("path", "new", "field", "expected"),
    [
        ("email", NewValue(EMPTY), "email", ""),
        ("email", NewValue(GIVEN, '"\u00fc"'), "email", "\u00fc"),
        ("id", NewValue(NULL), "id", 0),
        ("id", NewValue(GIVEN, "-1"), "id", -1),
        ("level", NewValue(GIVEN, '"BASIC"'), "level", "BASIC"),
        ("level", NewValue(EMPTY), "level", "BASIC"),
        ("addresses.city", NewValue(TEXT, "x"), "addresses", [{"city": "x", "kind": "WORK"}]),
        ("addresses", NewValue(NULL), "addresses", []),
        ("addresses", NewValue(GIVEN, '[{"city": "B", "kind": "WORK"}, {}]'), "addresses",
         [{"city": "B", "kind": "WORK"}, {"city": "", "kind": "HOME"}]),
        ("amounts.EUR.units", NewValue(GIVEN, "300"), "amounts", {"EUR": {"units": 300, "note": {"text": "note"}}}),
        ("amounts.EUR.note.text", NewValue(NULL), "amounts", {"EUR": {"units": -2, "note": {}}}),
        ("amounts.EUR.note", NewValue(NULL), "amounts", {"EUR": {"units": -2}}),
        ("amounts.USD", NewValue(NULL), "id", 42),
        ("amounts", NewValue(GIVEN, '{"USD": {"units": 1}}'), "amounts", {"USD": {"units": 1}}),
        ("phone", NewValue(TEXT, "***"), "phone", "***"),
        ("other.name", NewValue(TEXT, "***"), "id", 42),
        ("numbers", NewValue(EMPTY), "numbers", []),
        ("numbers", NewValue(GIVEN, "[7, -1]"), "numbers", [7, -1]),
        ("extra.name", NewValue(TEXT, "Countess"), "extra", {"@type": "t.org/shop.v1.Other", "name": "Countess"}),
        ("friend.email", NewValue(TEXT, "x"), "friend",
         {"id": 1, "email": "x", "level": "BASIC", "addresses": [], "amounts": {}, "numbers": [], "flags": {}}),
        ("friend.level", NewValue(GIVEN, '"GOLD"'), "friend",
         {"id": 1, "email": "eve@example.com", "level": "GOLD", "addresses": [], "amounts": {}, "numbers": [], "flags": {}}),
        ("friend", NewValue(EMPTY), "friend",
         {"id": 0, "level": "BASIC", "addresses": [], "amounts": {}, "numbers": [], "flags": {}}),
        ("flags.true", NewValue(NULL), "flags", {"true": b""}),
    ],
)  # fmt: skip
def test_a_field_becomes_what_is_asked_for(path: str, new: NewValue, field: str, expected: Any) -> None:
    """A field is changed in nested messages, maps, groups, `oneof`, `Any`, and in the parts of a joined message; all else
    stays.
    """
    found, before = customer(path, new), native(READER.read(CUSTOMER + ADA))
    assert found[field] == expected
    assert {**found, field: 0} == {**before, field: 0}


@pytest.mark.parametrize("path", ["email", "phone", "friend", "extra.name"])
def test_null_is_a_field_that_is_left_out(path: str) -> None:
    """Readers then see the default, or none."""
    found = customer(path, NewValue(NULL))
    assert path not in found
    assert path != "extra.name" or found["extra"]["name"] == ""


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("amounts.EUR.units", NewValue(NULL)),
        ("amounts.EUR.note", NewValue(EMPTY)),
        ("id", NewValue(TEXT, "x")),
        ("numbers", NewValue(TEXT, "x")),
        ("level", NewValue(TEXT, "x")),
        ("email", NewValue(GIVEN, "7")),
        ("email", NewValue(GIVEN, '"\\ud800"')),
        ("id", NewValue(GIVEN, "1e999999999")),
        ("id", NewValue(GIVEN, "1.5")),
        ("addresses", NewValue(GIVEN, '[{"street": "x"}]')),
        ("addresses", NewValue(GIVEN, "{}")),
        ("amounts", NewValue(GIVEN, '{"USD": {}}')),
        ("amounts", NewValue(TEXT, "x")),
    ],
)
def test_what_the_schema_does_not_have_cannot_be(path: str, new: NewValue) -> None:
    """proto2 may require a field; a given value has to fit, and a group can only be left out."""
    with pytest.raises(Unchangeable):
        customer(path, new)


def test_a_field_that_has_its_default_can_be_given_another() -> None:
    """proto3 leaves such a field out, so it is added; one that is absent, not at its default, stays away."""
    assert edited(CUSTOMER, ["id"], NewValue(GIVEN, "7")) == CUSTOMER + b"\x08\7"
    assert edited(CUSTOMER, ["id"], NewValue(GIVEN, "0")) == CUSTOMER
    assert edited(CUSTOMER, ["numbers"], NewValue(GIVEN, "[1]")) == CUSTOMER + b"\x50\1"
    assert edited(CUSTOMER, ["email"], NewValue(GIVEN, '"a"')) == CUSTOMER
    inner = CUSTOMER + sized(12, b"")
    assert edited(inner, ["friend", "level"], NewValue(GIVEN, '"GOLD"')) == CUSTOMER + sized(12, b"\x18\1")


def test_other_bytes_stay_as_they_were_written() -> None:
    """Long numbers and unknown fields stay as they are; but if these are in a message without the named field, it may be among
    them.
    """
    odd = b"\x88\0\xaa\0" + sized(15, b"unknown")
    assert edited(CUSTOMER + odd + sized(2, b"a@b"), ["email"], NewValue(NULL)) == CUSTOMER + odd
    with pytest.raises(Unchangeable, match="does not explain"):
        edited(CUSTOMER + odd, ["mail"], NewValue(NULL))
    assert edited(CUSTOMER + b"\x08\1", ["mail"], NewValue(NULL)) == CUSTOMER + b"\x08\1"
    unknown = CUSTOMER + sized(11, sized(1, b"t.org/unknown") + sized(2, b"x"))
    with pytest.raises(Unchangeable, match="lacks the type"):
        edited(unknown, ["extra", "name"], NewValue(NULL))


def test_a_message_of_another_type_is_undecodable() -> None:
    """By its indexes, or as it is cut off."""
    for data in (b"\2\4", CUSTOMER + b"\x12\5abc", CUSTOMER + sized(12, b"\x12\5a")):
        with pytest.raises(Undecodable):
            edited(data, ["friend", "email"], NewValue(DEFAULT))


def test_the_texts_that_are_lost_are_known() -> None:
    """Of all levels, to be searched for everywhere."""
    found = edit_protobuf(READER, CUSTOMER + ADA, ["friend"], NewValue(NULL))
    assert [*texts_in([one.old for one in found])] == [b"BASIC", b"eve@example.com", b"BASIC", b"bob@example.com"]
