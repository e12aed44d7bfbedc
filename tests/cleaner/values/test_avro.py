"""Avro: every value is decoded as the reference library does, and hostile ones cost neither the process nor its memory."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.values.avro import MAX_SCHEMA_DEPTH, AvroReader
from diamant.cleaner.values.cursor import MAX_DEPTH
from diamant.cleaner.values.nodes import DateOrTime, Object, Undecodable, is_equal, plain
from tests.effort import examples

LIST = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
LAUGHS = {
    "type": "record",
    "name": "L0",
    "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
}

NULLS = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "N",
        "fields": [{"name": f"f{number}", "type": "null"} for number in range(999)],
    },
}


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoded(schema: Any, data: bytes) -> Any:
    return AvroReader(json.dumps(schema)).read(data)


def native(node: Any) -> Any:
    """As the reference library returns it."""
    if isinstance(node, Object):
        return {name: native(value) for name, value in node}
    return [native(one) for one in node] if isinstance(node, list) else node


INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}
SCHEMAS = st.recursive(
    st.sampled_from(list(PRIMITIVES)) | st.just({"enum": 3}) | st.integers(0, 9).map(lambda size: {"fixed": size}),
    lambda inner: (
        inner.map(lambda one: {"array": one})
        | inner.map(lambda one: {"map": one})
        | st.lists(inner, max_size=4).map(lambda many: {"record": many})
        | inner.map(lambda one: {"optional": one})
        | inner.map(lambda one: {"choice": one})
    ),
    max_leaves=8,
)


def drawn(draw: st.DrawFn, plan: Any, count: list[int]) -> tuple[Any, st.SearchStrategy[Any]]:
    """Return an Avro schema for a plan, and its values."""
    if isinstance(plan, str):
        return plan, PRIMITIVES[plan]
    ((kind, part),) = plan.items()
    count[0] += 1
    name = f"n{count[0]}"
    if kind == "enum":
        symbols = [f"s{number}" for number in range(part)]
        return {"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": part}, st.binary(min_size=part, max_size=part)
    if kind == "record":
        fields = [drawn(draw, one, count) for one in part]
        schema = {
            "type": "record",
            "name": name,
            "namespace": draw(st.sampled_from(["a.b", ""])),
            "fields": [{"name": f"f{number}", "type": one[0]} for number, one in enumerate(fields)],
        }
        values = st.fixed_dictionaries({f"f{number}": one[1] for number, one in enumerate(fields)})
        if not draw(st.booleans()):
            return schema, values
        schema["fields"].append({"name": "next", "type": ["null", name]})
        last = values.map(lambda one: {**one, "next": None})
        return schema, st.builds(lambda one, link: {**one, "next": link}, values, st.none() | last)
    inner, values = drawn(draw, part, count)
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=5), values, max_size=4)
    if inner == "null" or isinstance(inner, list):
        return inner, values
    if kind == "choice" and not isinstance(inner, str):
        return ["null", "boolean", inner], st.none() | st.booleans() | values
    return ["null", inner], st.none() | values


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[Any, Any]:
    schema, values = drawn(draw, draw(SCHEMAS), [0])
    return schema, draw(values)


@settings(max_examples=examples(150), deadline=None)
@given(schemas_and_values())
def test_random_values_are_decoded_as_by_the_reference_library(one: tuple[Any, Any]) -> None:
    """A value of any schema is the same as fastavro's; and cut off anywhere, it is undecodable."""
    schema, value = one
    data = encoded(schema, value)
    assert native(decoded(schema, data)) == fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema))
    for size in range(0, len(data), 1 + len(data) // 20):
        with pytest.raises(Undecodable):
            decoded(schema, data[:size])
    with pytest.raises(Undecodable):
        decoded(schema, data + b"\0")


@given(st.floats(width=32, allow_nan=False))
def test_a_float_has_the_fewest_digits(number: float) -> None:
    """0.1 in four bytes is 0.1, and not 0.10000000149011612; any other number keeps its four bytes."""
    found = decoded("float", struct.pack("<f", number))
    assert struct.pack("<f", found) == struct.pack("<f", number)
    assert decoded("float", struct.pack("<f", 0.1)) == 0.1


@pytest.mark.parametrize(
    ("schema", "data", "expected"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x04\xfb\x2e", Decimal("-12.34")),
        ({"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "scale": 0}, b"\x04\xd2", Decimal(1234)),
        ({"type": "int", "logicalType": "date"}, b"\x02", DateOrTime(1, "1970-01-02")),
        ({"type": "int", "logicalType": "time-millis"}, b"\xd0\x0f", DateOrTime(1000, "00:00:01")),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xd2\x0f", DateOrTime(1001, "1970-01-01T00:00:01.001Z")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, b"\1", DateOrTime(-1, "1969-12-31T23:59:59.999999")),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xff" * 9 + b"\1", -(2**63)),
        ({"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, bytes(16), str(UUID(int=0))),
        ({"type": "string", "logicalType": "uuid"}, b"\2a", "a"),
        ({"type": "int", "logicalType": "something-else"}, b"\2", 1),
        ({"type": "bytes", "logicalType": "decimal", "scale": -1}, b"\2\1", b"\1"),
    ],
)  # fmt: skip
def test_logical_types(schema: Any, data: bytes, expected: Any) -> None:
    """Logical types are what they mean. An unknown, ill-fitting or unrepresentable one is its plain value."""
    found = decoded(schema, data)
    assert found == expected
    assert type(found) is type(expected)


def test_a_value_equals_what_people_write() -> None:
    """A moment equals its number and its text, bytes their text, 42 equals 42.0; true does not equal 1."""
    moment = DateOrTime(1001, "1970-01-01T00:00:01.001Z")
    assert is_equal(moment, Decimal(1001))
    assert is_equal(moment, moment.text)
    assert not is_equal(moment, "1001")
    assert is_equal("é".encode(), "é")
    assert not is_equal(b"1", Decimal(1))
    assert is_equal(0.1, Decimal("0.1"))
    assert is_equal(42, Decimal("42.0"))
    assert not is_equal(True, Decimal(1))
    assert not is_equal(float("nan"), Decimal(0))
    assert plain(Object([("a", b"\0"), ("b", [Decimal("1.10"), moment, float("inf")])])) == {
        "a": "AA==",
        "b": ["1.10", moment.text, "inf"],
    }


def test_types_of_other_schemas_and_recursive_ones() -> None:
    """A schema may use types of those that it refers to, by full name or from its own namespace."""
    other = json.dumps({"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "string"}]})
    text = json.dumps(
        {
            "type": "record",
            "name": "Customer",
            "namespace": "shop",
            "fields": [{"name": "home", "type": "Address"}, {"name": "friends", "type": {"type": "array", "items": "Customer"}}],
        }
    )  # fmt: skip
    found = AvroReader(text, {"address": other}).read(b"\x08Bern\2\x08Zug!\0\0")
    assert plain(found) == {"home": {"city": "Bern"}, "friends": [{"home": {"city": "Zug!"}, "friends": []}]}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param(LIST, b"\2" * 2_000_000 + b"\0", id="deep"),
        pytest.param({"type": "array", "items": "null"}, b"\xfe" + b"\xff" * 8 + b"\1\0", id="2^62 nulls"),
        pytest.param(
            {"type": "array", "items": LAUGHS}, b"\x80\x80\x80\x01" + b"\xfe\xff\x3f\0" * 99, id="many arrays"
        ),
        pytest.param("string", b"\xfe" + b"\xff" * 8 + b"\1", id="a huge text"),
        pytest.param("string", b"\1", id="a negative size"),
        pytest.param("string", b"\2\xff", id="not UTF-8"),
        pytest.param("boolean", b"\2", id="no boolean"),
        pytest.param("long", b"\xff" * 10, id="a long number"),
        pytest.param(["null"], b"\2", id="no branch"),
        pytest.param({"type": "enum", "name": "e", "symbols": ["a"]}, b"\1", id="no symbol"),
        pytest.param({"type": "bytes", "logicalType": "decimal"}, b"\xa0\x9c\1" + b"\1" * 10_000, id="a long decimal"),
    ],
)
def test_hostile_values_are_undecodable(schema: Any, data: bytes) -> None:
    """A few bytes that would nest without end, or stand for endless memory, and bytes of another schema."""
    with pytest.raises(Undecodable):
        decoded(schema, data)


def test_fields_without_bytes_have_a_limit() -> None:
    """An array of records of nulls stands for much memory in a few bytes."""
    assert len(decoded(NULLS, b"\xc8\1\0")) == 100
    with pytest.raises(Undecodable, match="parts"):
        decoded(NULLS, b"\xa0\x1f\0")


def nested(levels: int) -> Any:
    schema: Any = "string"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[" * 100_000, '"Unknown"', "unknown", "17", "null ]", "{}", '{"type": "record", "name": "a"}',
        '{"type": "fixed", "name": "a", "size": "x"}', '{"type": "fixed", "name": "a", "size": 1e999}',
        '{"type": "enum", "name": "a", "symbols": 1}',
        '{"type": "enum", "name": "a", "symbols": ["c-42"]}', '{"type": "enum", "name": "a", "symbols": [""]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": {"type": "map"}}]}',
        json.dumps(nested(MAX_SCHEMA_DEPTH + 1)),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_bad_schemas_are_refused(text: str) -> None:
    """Text that is not a schema, or nests too deep, raises one error."""
    with pytest.raises(Undecodable):
        AvroReader(text)


def test_a_value_may_nest_to_the_limit() -> None:
    """A list as long as the limit allows is decoded; a longer one is not."""
    links = MAX_DEPTH // 2
    assert decoded(LIST, b"\2" * (links - 1) + b"\0")
    with pytest.raises(Undecodable, match="levels"):
        decoded(LIST, b"\2" * (links + 1) + b"\0")
