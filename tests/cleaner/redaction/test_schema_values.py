"""Conditions on values with a schema: they match by field, and without their schema they are undecided, never unmatched."""

from __future__ import annotations

import json
import zlib
from typing import Any
from uuid import UUID

import pytest

from diamant.cleaner.redaction.json_path import NO, UNDECIDED, YES
from diamant.cleaner.redaction.where import parse_where
from diamant.cleaner.values.framing import GLUE, GUID, ID, SchemaName
from diamant.cleaner.values.schemas import AVRO, PROTOBUF, Schemas, SchemaText, Values
from diamant.protocol.batches.batch_records import build_batch, records_payload
from diamant.protocol.batches.header import Header, Record, parse_header
from tests.cleaner.values.framed import CUSTOMER, confluent, customer

EMAIL = "ada@example.com"
ADA = customer(42, EMAIL, "GOLD", city="Bern")
BOB = customer(43, None)
KNOWN_GUID = UUID(int=5)


class Source:
    """Knows one schema of Avro by three names, and one of Protobuf."""

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        if name == (ID, 9):
            return SchemaText(PROTOBUF, 'syntax = "proto3"; message C { int64 id = 1; string email = 2; }')
        is_known = topic == "customers" and name in ((ID, 7), (GUID, KNOWN_GUID), (GLUE, KNOWN_GUID))
        return SchemaText(AVRO, json.dumps(CUSTOMER)) if is_known else None


VALUES = Values(Schemas([Source()]), "customers")


def judge(where: str, value: bytes | None, *, values: Values = VALUES, **more: Any) -> int:
    """Return the verdict. A batch with a record that may match is never skipped."""
    condition = parse_where(where, values=values)
    record = Record(0, 0, more.get("key"), value, more.get("headers", ()))
    verdict = condition.judge(record)
    batch = build_batch([record])
    if verdict != NO:
        assert condition.may_be_in(records_payload(batch, 0, parse_header(batch, 0)))
    return verdict


@pytest.mark.parametrize(
    ("where", "ada", "bob"),
    [
        (f'value.email == "{EMAIL}"', YES, NO),
        ("value.email == null", NO, YES),
        ("value.email exists", YES, YES),
        ("value.id == 42", YES, NO),
        ("value.id == 42.0", YES, NO),
        ('value.id == "42"', NO, NO),
        ('value.level == "GOLD"', YES, NO),
        ('value.tags.city == "Bern"', YES, NO),
        ("value.tags.city exists", YES, NO),
        ("value.phone exists", NO, NO),
        (f'value.email == "{EMAIL}" and value.id == 43', NO, NO),
        (f'value.email == "{EMAIL}" or value.id == 43', YES, YES),
    ],
)
def test_a_path_leads_through_an_avro_value(where: str, ada: int, bob: int) -> None:
    """A path leads through records, unions, enums and maps, in keys as in values; a text that is in the schema alone is found,
    too.
    """
    assert judge(where, confluent(7, ADA)) == ada
    assert judge(where, confluent(7, BOB)) == bob
    assert judge(where.replace("value.", "key."), None, key=confluent(7, ADA)) == ada


FRAMED = {
    "Confluent": (confluent(7, ADA), ()),
    "Apicurio": (bytes(8) + b"\7" + ADA, ()),
    "an id in a header": (ADA, (Header("__value_schema_id", b"\0\0\0\0\7"),)),
    "Apicurio's global id in a header": (ADA, (Header("apicurio.value.globalId", bytes(7) + b"\7"),)),
    "Apicurio's content id in a header": (ADA, (Header("apicurio.value.contentId", bytes(7) + b"\7"),)),
    "a GUID in a header": (ADA, (Header("__value_schema_id", b"\1" + KNOWN_GUID.bytes),)),
    "Glue": (b"\3\0" + KNOWN_GUID.bytes + ADA, ()),
    "Glue, compressed": (b"\3\5" + KNOWN_GUID.bytes + zlib.compress(ADA), ()),
}


@pytest.mark.parametrize("name", FRAMED)
def test_every_frame_is_read(name: str) -> None:
    """A serializer's frame leads to the schema; with another topic's schemas alone, the record is undecided."""
    value, headers = FRAMED[name]
    assert judge(f'value.email == "{EMAIL}"', value, headers=headers) == YES
    assert judge('value.email == "bob@example.com"', value, headers=headers) in (NO, UNDECIDED)
    for values in (Values(Schemas([Source()]), "orders"), Values()):
        assert judge(f'value.email == "{EMAIL}"', value, headers=headers, values=values) == UNDECIDED


UNREADABLE = {
    "an unknown schema": confluent(8, ADA),
    "cut off": confluent(7, ADA[:-1]),
    "bytes behind it": confluent(7, ADA + b"\0"),
    "another schema": confluent(7, b"\2\xff" + ADA),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (f'value.email == "{EMAIL}"', UNDECIDED),
        (f'value.anything == "{EMAIL}"', UNDECIDED),
        ("value.id == 42", UNDECIDED),
        ("value.email exists", UNDECIDED),
        ("value.email == null", UNDECIDED),
        ('value.level == "GOLD"', UNDECIDED),
        ('value.email == "eve@example.com"', NO),
        ('value == "whole"', NO),
        (f'value.email == "{EMAIL}" and value.id == 42', UNDECIDED),
    ],
)
def test_a_value_without_its_schema_is_undecided(name: str, where: str, expected: int) -> None:
    """Unless its bytes lack a text that would be in them by any schema."""
    assert judge(where, UNREADABLE[name]) == expected


def test_a_damaged_compressed_value_is_undecided() -> None:
    """What a frame of Glue holds cannot be told without inflating it."""
    whole = zlib.compress(ADA)
    for payload in (whole[:-3], b"\x78" + bytes(20), zlib.compress(bytes(10_000)) * 2):
        assert judge(f'value.email == "{EMAIL}"', b"\3\5" + KNOWN_GUID.bytes + payload) == UNDECIDED


def test_json_in_a_frame_needs_no_schema() -> None:
    """The payload of JSON Schema is JSON; the schema id 0 stands before JSON, too."""
    payload = json.dumps({"email": EMAIL}).encode()
    for schema_id in (7, 8, 0):
        assert judge(f'value.email == "{EMAIL}"', confluent(schema_id, payload)) == YES
        assert judge('value.email == "bob@example.com"', confluent(schema_id, payload)) == NO


def test_bytes_without_a_frame_are_judged_as_before() -> None:
    """Other bytes match nothing by a path: neither numbers of Kafka's serializers nor short ones."""
    for value in (b"", b"\0", b"\0\0\0\7", (42).to_bytes(8, "big"), b"\3\0", b"\xc3\1", b"text", ADA):
        assert judge(f'value.email == "{EMAIL}"', value) == NO


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (f'value.email == "{EMAIL}"', YES),
        ("value.id == 0", YES),
        ("value.id == 42", NO),
        ('value.email == "bob@example.com"', NO),
        ('value.email == "eve@example.com"', UNDECIDED),
    ],
)
def test_a_path_leads_through_a_protobuf_message(where: str, expected: int) -> None:
    """A default that readers see counts. A text within a field that the schema does not know makes it undecided."""
    known, unknown = b"\x12\x0f" + EMAIL.encode(), b"\x1a\x0feve@example.com"
    assert judge(where, confluent(9, b"\0" + known + unknown)) == expected
