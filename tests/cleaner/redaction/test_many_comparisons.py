"""Many comparisons of one path are made at once, with the verdict that each of them alone would lead to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.cleaner.redaction.json_path import NO, UNDECIDED, YES
from diamant.cleaner.redaction.where import MANY, any_of, parse_where
from diamant.cleaner.values.schemas import Schemas, SchemaText, Values
from diamant.protocol.batches.header import Record

LITERALS = ('"42"', "42", '"ada@example.com"', "null", "true", '"1"', "-7", "1.50", '"grün"')
VALUES: list[tuple[Any, int]] = [
    ({"who": "42"}, YES),
    ({"who": 42}, YES),
    ({"who": 42.0}, YES),
    ({"who": 1.5}, YES),
    ({"who": ["x", {"no": 1}, "ada@example.com"]}, YES),
    ({"who": None}, YES),
    ({"who": True}, YES),
    ({"who": "grün"}, YES),
    ({"who": 1}, NO),
    ({"who": False}, NO),
    ({"who": "true"}, NO),
    ({"who": {"who": "42"}}, NO),
    ({"name": "42"}, NO),
    ({"who": '{"a": 1}'}, NO),
    ('{"who": "42"}', UNDECIDED),
]


def record(value: bytes) -> Record:
    return Record(0, 0, None, value, ())


def verdicts(data: bytes, values: Values | None = None) -> tuple[int, int]:
    """Return the joint verdict, and the highest of the single ones."""
    assert len(LITERALS) >= MANY
    single = [parse_where(f"value.who == {one}", values=values) for one in LITERALS]
    joint = any_of(single)
    written = parse_where(" or ".join(one.text for one in single), values=values)
    assert joint.judge(record(data)) == written.judge(record(data))
    assert joint.may_be_in(data) == any(one.may_be_in(data) for one in single)
    return joint.judge(record(data)), max(one.judge(record(data)) for one in single)


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[json.dumps(value) for value, _ in VALUES])
def test_json_is_judged_as_by_each_alone(value: Any, expected: int) -> None:
    """Types do not mix, lists are searched, JSON within a text is undecided."""
    assert verdicts(json.dumps(value).encode()) == (expected, expected)


@pytest.mark.parametrize("end", range(1, 16))
def test_bytes_that_are_not_json_are_judged_as_by_each_alone(end: int) -> None:
    """Cut off at any byte, escaped, or in another encoding."""
    for data in (b'{"who": "42", "', '{"who": "grün"'.encode("utf-16"), rb'{"who": "gr\u00fcn" '):
        joint, single = verdicts(data[:end])
        assert joint == single


class _Avro:
    """A source with one schema."""

    def find(self, name: object, topic: str, field: str) -> SchemaText:
        fields = [{"name": "who", "type": ["long", "string"]}]
        return SchemaText("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_framed_values_are_decoded_once_and_judged_as_by_each_alone() -> None:
    """A number and a text of Avro; bytes that do not fit the schema are undecided if one comparison says so."""
    values = Values(Schemas([_Avro()]), "topic")
    frame = b"\0\0\0\0\x07"
    for payload, expected in ((b"\0\x54", YES), (b"\x02\x0442", YES), (b"\0\x56", NO), (b"\x09", UNDECIDED)):
        assert verdicts(frame + payload, values) == (expected, expected)
