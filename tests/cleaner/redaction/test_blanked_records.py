"""Fields of single records, without a broker: what changes, what is lost, and what cannot change."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from diamant.cleaner.redaction.blanking import parse_blanking
from diamant.cleaner.redaction.json_path import UNDECIDED, YES
from diamant.cleaner.redaction.where import DONE, HOLD, REMOVE, Where, parse_where
from diamant.cleaner.values.framing import SchemaName
from diamant.cleaner.values.schemas import AVRO, PROTOBUF, Schemas, SchemaText, Values
from diamant.protocol.batches.header import Header, Record
from tests.cleaner.values.framed import CUSTOMER, confluent, customer

PROTO = 'syntax = "proto3"; message Other { int64 id = 1; } message Person { string email = 1; Other other = 2; }'
PERSON = b"\2\2\x0a\x0fada@example.com"


class Source:
    """Three schemas."""

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        del topic, field
        known = {7: SchemaText(AVRO, json.dumps(CUSTOMER)), 9: SchemaText(PROTOBUF, PROTO), 5: SchemaText("JSON", "{}")}
        return known.get(name[1]) if not isinstance(name[1], UUID) else None


def asking(*blank: str, blank_with: str = "null", given: tuple[str, ...] = (), undecided: str = "hold") -> Where:
    values = Values(Schemas([Source()]), "customers")
    return parse_where('key == "ada"', undecided, values, parse_blanking(blank, blank_with, given))


def record(value: bytes | None, *headers: Header) -> Record:
    return Record(4, 1_000, b"ada", value, headers)


ADA = confluent(7, customer(1, "ada@example.com", note="a text of Ada's"))


@pytest.mark.parametrize(
    "value",
    [
        ADA[:-3],
        ADA + b"\0",
        confluent(8, ADA[5:]),
        confluent(9, ADA[5:]),
        confluent(7, PERSON),
        confluent(9, b"\2\4" + PERSON[2:]),
        confluent(9, PERSON[:-1]),
        confluent(5, b'{"email": '),
        bytes(64),
        b"",
        b"\xff\xfe",
        b'{"email": "ada@example.com"',
        b'{"email": 1} {"email": 2}',
        '{"email": "ada@example.com"}'.encode("utf-16"),
        b'{"email": "\xff"}',
        b'{"email": ' + b"[" * 100_000,
    ],
    ids=[
        "cut off", "with more bytes", "of a missing schema", "of the schema of another topic", "of another format",
        "of an index that is not there", "Protobuf, cut off", "JSON in a frame, cut off", "null bytes", "nothing",
        "no text", "JSON, cut off", "two documents", "UTF-16", "no UTF-8", "deep",
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_is_undecided(value: bytes) -> None:
    """It stays as it is, with the reason; it does not go even if undecided records are to be removed."""
    for undecided in (HOLD, REMOVE):
        verdict, changed = asking("value.email", undecided=undecided).examine(record(value))
        assert (verdict, changed is not None and bool(changed.problem)) == (UNDECIDED, True)


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        (asking("value.email"), ADA, confluent(7, customer(1, None, note="a text of Ada's"))),
        (asking("value.tags.note", blank_with="text:x"), ADA, confluent(7, customer(1, "ada@example.com", note="x"))),
        (asking(given=("value.id=2",)), ADA, confluent(7, customer(2, "ada@example.com", note="a text of Ada's"))),
        (asking("value.email"), confluent(9, PERSON), confluent(9, b"\2\2")),
        (asking(given=('value.email="a@b"',)), confluent(9, PERSON), confluent(9, b"\2\2\x0a\3a@b")),
        (asking("value.email"), confluent(5, b'{ "email":7 }'), confluent(5, b'{ "email":null }')),
        (asking("value.a.email"), b'[{"a": {"email": 1}}]', b'[{"a": {"email": null}}]'),
    ],
)
def test_a_field_changes_and_nothing_else(where: Where, value: bytes, expected: bytes) -> None:
    """Asked again, there is nothing left to do."""
    verdict, changed = where.examine(record(value))
    assert (verdict, changed is not None) == (YES, True)
    assert changed is not None
    assert changed.record == record(expected)
    assert where.examine(changed.record)[0] == DONE


def test_a_record_without_the_fields_needs_no_change() -> None:
    """A tombstone, a record of another JSON, and one with other headers need no change; no field is seen."""
    for one in (record(None), record(b"{}"), record(b"7", Header("kind", b"x"))):
        verdict, changed = asking("value.email", "header.user").examine(one)
        assert (verdict, changed is not None and (changed.record, [*changed.seen])) == (DONE, (one, []))


def test_what_is_lost_is_known_of_all_fields() -> None:
    """Texts of values and headers that are no longer there."""
    one = record(ADA, Header("user", b"Ada"), Header("user", None), Header("kind", b"x"))
    _, changed = asking("value.email", "value.tags.note", "header.user", blank_with="empty").examine(one)
    assert changed is not None
    assert changed.record.headers == (Header("user", b""), Header("user", None), Header("kind", b"x"))
    assert sorted(changed.lost) == [b"Ada", b"a text of Ada's", b"ada@example.com"]
    assert [*changed.seen] == ["value.email", "value.tags.note", "header.user"]


def test_paths_lead_into_headers() -> None:
    """Conditions and changes look into JSON and into values with a schema there, too."""
    one = record(None, Header("user", ADA), Header("user", b'{"email": "ada@example.com"}'), Header("other", ADA))
    values = Values(Schemas([Source()]), "customers")
    blanking = parse_blanking(("header.user.email",), "null", ())
    where = parse_where(
        'header.user.email == "ada@example.com" and header.user.id == 1', values=values, blanking=blanking
    )
    verdict, changed = where.examine(one)
    assert verdict == YES
    assert changed is not None
    blank = confluent(7, customer(1, None, note="a text of Ada's"))
    assert changed.record.headers == (Header("user", blank), Header("user", b'{"email": null}'), Header("other", ADA))
    assert [*changed.seen] == ["header.user.email"]
    assert {*changed.lost} == {b"ada@example.com"}
    assert where.may_be_in(b"user " + ADA)
    assert not where.may_be_in(ADA)
    assert (
        where.judge(one._replace(headers=(Header("user", b"ada@example.com email id"), Header("user", None))))
        == UNDECIDED
    )


def test_a_certificate_has_given_values_as_digests() -> None:
    """So the same value has the same digest, whatever the field; all other changes are readable."""
    where = asking("value.a", 'value["e mail"]', blank_with="text:x", given=('value.b = "Ada"', "value.c=null"))
    assert where.blanking is not None
    rows: list[Any] = where.blanking.to_fields(b"secret")
    assert rows[:2] == [{"field": "value.a", "becomes": "text:x"}, {"field": 'value["e mail"]', "becomes": "text:x"}]
    assert (rows[2]["becomes"], len(rows[2]["hmac"]), rows[3]["becomes"]) == ("a given value", 64, "null")
    assert where.said[-1] == b"Ada"
