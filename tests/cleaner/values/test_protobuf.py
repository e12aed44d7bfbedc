"""Protobuf: every message is decoded as the reference library does, and hostile ones cost neither the process nor its memory."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.values.descriptor_set import parse_descriptor_set, source_of
from diamant.cleaner.values.framing import ID, Frame, frame_of
from diamant.cleaner.values.nodes import Object, Undecodable, Unknown
from diamant.cleaner.values.protobuf import ProtobufReader
from tests.effort import examples

SHOP = """
syntax = "proto3"; // a comment; with signs {
package shop.v1;
import "google/protobuf/any.proto";
import public "common.proto";
option java_package = "com.example";
/* message Hidden {} */
enum Level { option allow_alias = true; BASIC = 0; GOLD = 1 [deprecated = true]; FIRST = 1; }
message Other { string name = 1; }
message Customer {
  reserved 7, 100 to max; reserved "old";
  message Address { string city = 1; .shop.v1.Customer.Kind kind = 2; }
  enum Kind { HOME = 0; WORK = 5; }
  int64 id = 1 [json_name = "ID", (my.option) = { a: "}" b: [1, 2] }];
  optional string email = 2;
  Level level = 3;
  repeated Address addresses = 4;
  map<string, common.Money> amounts = 5;
  oneof contact { string phone = 8; Other other = 9; option (x) = true; }
  repeated int32 numbers = 10 [packed = false];
  google.protobuf.Any extra = 11;
  Customer friend = 12;
  map<bool, bytes> flags = 13;
}
service Shop { rpc Get(Other) returns (stream Customer) { option (http) = { get: "/x;" }; } }
"""
COMMON = """
syntax = "proto2"; package common;
message Money { required sint64 units = 1; optional group Note = 2 { optional string text = 3; } }
"""
READER = ProtobufReader(SHOP, {"common.proto": COMMON})
SET, IMPORTED = parse_descriptor_set(Path(__file__).with_name("shop.binpb").read_bytes())
"""`SHOP` without options, compiled by `protoc --include_imports --descriptor_set_out` 35.1."""
READERS = [READER, ProtobufReader(SET, IMPORTED)]
CUSTOMER = b"\2\2"
"""The message indexes of `Customer`: one, 1."""


def native(node: Any) -> Any:
    if isinstance(node, Object):
        return {name: native(value) for name, value in node}
    return [native(one) for one in node] if isinstance(node, list) else node


def read(message: bytes, indexes: bytes = CUSTOMER) -> Any:
    """Read a message by the schema as a text, and as a descriptor set."""
    first, second = (native(one.read(indexes + message)) for one in READERS)
    assert first == second
    return first


def sized(number: int, data: bytes) -> bytes:
    """Return a field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


def ref(name: bytes) -> bytes:
    """Return what Apicurio's serializer writes before a message of the type with this name."""
    return bytes([len(name) + 2]) + sized(1, name)


EMPTY = {"id": 0, "level": "BASIC", "addresses": [], "amounts": {}, "numbers": [], "flags": {}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", {}),
        (b"\x08\x2a" + sized(2, b"a@b.c"), {"id": 42, "email": "a@b.c"}),
        (b"\x08" + b"\xff" * 9 + b"\1", {"id": -1}),
        (sized(2, b""), {"email": ""}),
        (b"\x18\1", {"level": "GOLD"}),
        (b"\x18\7", {"level": 7}),
        (sized(4, sized(1, b"Bern") + b"\x10\5"), {"addresses": [{"city": "Bern", "kind": "WORK"}]}),
        (sized(4, b"") * 2, {"addresses": [{"city": "", "kind": "HOME"}] * 2}),
        (sized(5, sized(1, b"EUR") + sized(2, b"\x08\3")), {"amounts": {"EUR": {"units": -2}}}),
        (sized(5, sized(2, b"\x08\0\x13\x1a\1x\x14")), {"amounts": {"": {"units": 0, "note": {"text": "x"}}}}),
        (sized(8, b"1"), {"phone": "1"}),
        (sized(9, sized(1, b"n")), {"other": {"name": "n"}}),
        (b"\x50\1\x50\2" + sized(10, b"\3\4"), {"numbers": [1, 2, 3, 4]}),
        (
            sized(11, sized(1, b"x.y/shop.v1.Other") + sized(2, sized(1, b"n"))),
            {"extra": {"@type": "x.y/shop.v1.Other", "name": "n"}},
        ),
        (sized(11, sized(1, b"a/b") + sized(2, b"n")), {"extra": {"@type": "a/b", "value": Unknown(b"n")}}),
        (sized(12, b"\x08\1") + sized(12, sized(2, b"e")), {"friend": {**EMPTY, "id": 1, "email": "e"}}),
        (sized(13, b"\x08\1\x12\1\xff"), {"flags": {"true": b"\xff"}}),
        (b"\xf8\1\1", {"?31": Unknown(b"\xf8\1\1")}),
        (b"\xfb\1\x08\1\xfc\1", {"?31": Unknown(b"\xfb\1\x08\1\xfc\1")}),
    ],
)
def test_fields_of_every_kind(message: bytes, expected: dict[str, Any]) -> None:
    """Fields are decoded with defaults that readers see, a message in parts, unknown fields, and an Any with and without its
    type.
    """
    assert read(message) == {**EMPTY, **expected}


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [(b"\0", {"name": "n"}), (b"\2\0", {"name": "n"}), (b"\4\2\0", {"city": "n", "kind": "HOME"})],
)
def test_message_indexes_choose_the_type(indexes: bytes, expected: Any) -> None:
    """Indexes choose the first message, also in their short form, or a nested one."""
    assert read(sized(1, b"n"), indexes) == expected


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [b"Other", b"Customer"])
def test_a_name_chooses_the_type(name: bytes, reader: ProtobufReader) -> None:
    """Apicurio's serializer writes the name of the type before the message, in a message of its own."""
    found = native(reader.read(ref(name) + sized(1 if name == b"Other" else 2, b"n")))
    assert found == ({"name": "n"} if name == b"Other" else {**EMPTY, "email": "n"})


@pytest.mark.parametrize("schema", [(SHOP, {"common.proto": COMMON}), (SET, IMPORTED)])
@pytest.mark.parametrize(("number", "expected"), [(1, {"city": "n", "kind": "HOME"}), (4, {"name": "n"})])
def test_a_number_among_all_types_chooses_the_type(
    number: int, expected: Any, schema: tuple[str, dict[str, str]]
) -> None:
    """AWS Glue's serializer counts all types of the file by their names: a customer's address, amounts and flags come first."""
    reader = ProtobufReader(*schema, is_of_glue=True)
    assert native(reader.read(bytes([number]) + sized(1, b"n"))) == expected
    with pytest.raises(Undecodable, match="no message with this index"):
        reader.read(bytes([5]))


def test_options_and_the_entry_of_a_map_that_is_written_out() -> None:
    """Registries of Apicurio and AWS Glue get schemas in which a map is a repeated entry, with an option."""
    text = """syntax = "proto3"; message Basket { option deprecated = true;
      repeated .Basket.NotesEntry notes = 1;
      message NotesEntry { option map_entry = true; string key = 1; string value = 2; } }"""
    for schema in (text, 'syntax = "proto3"; message Basket { map<string, string> notes = 1; }'):
        reader = ProtobufReader(schema)
        message = sized(1, sized(1, b"a") + sized(2, b"b")) + sized(1, sized(1, b"c"))
        assert native(reader.read(b"\0" + message)) == {"notes": {"a": "b", "c": ""}}
        entry = ProtobufReader(schema, is_of_glue=True).read(b"\1" + sized(1, b"a"))
        assert native(entry) == {"key": "a", "value": ""}


def test_a_header_names_the_type() -> None:
    """Apicurio's serializer names the type in a header if the schema's id is in one, of keys in another."""
    headers = [
        ("apicurio.protobuf.type", b"Customer"),
        ("apicurio.value.globalId", bytes(7) + b"\x2a"),
        ("apicurio.key.globalId", bytes(7) + b"\x2b"),
        ("apicurio.protobuf.type.key", b"Other"),
    ]
    for field, number, name in (("value", 42, b"Customer"), ("key", 43, b"Other")):
        frame = frame_of(b"message", field, headers)
        assert frame == Frame((ID, number), b"message", 0, prefix=ref(name))
    assert frame_of(b"message", "value", headers[1:]) == Frame((ID, 42), b"message", 0)


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (b"\2\4", b""),
        (b"\2\1", b""),
        (b"\4\2\4", b""),
        (b"\xd0\x0f", b""),
        (b"\1", b""),
        (b"", b""),
        (b"\2", b""),
        (CUSTOMER, sized(1, b"x")),
        (CUSTOMER, b"\x10\1"),
        (CUSTOMER, b"\x12\5abc"),
        (CUSTOMER, b"\x12\1\xff"),
        (CUSTOMER, b"\x22\1\x0a"),
        (CUSTOMER, b"\x08"),
        (CUSTOMER, b"\0\0"),
        (CUSTOMER, b"\x0f"),
        (CUSTOMER, b"\x0c"),
        (CUSTOMER, b"\xfb\1\x08\1"),
        (CUSTOMER, sized(5, sized(2, b"\x13\x1a\1x"))),
    ],
)
def test_other_bytes_are_undecodable(indexes: bytes, message: bytes) -> None:
    """An index without a message, fields of other types, cut-off fields, and groups without an end are undecodable."""
    with pytest.raises(Undecodable):
        read(message, indexes)


def nested(levels: int) -> bytes:
    def varint(number: int) -> bytes:
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)

    message = b""
    for _ in range(levels):
        message = b"\x62" + varint(len(message)) + message
    return message


@pytest.mark.parametrize(
    "message",
    [nested(101), nested(2_000), b"\xfb\1" * 100_000, sized(4, b"") * 300_000, b"\x50\0" * 1_100_000],
    ids=["deep", "deeper", "groups", "many parts", "many numbers"],
)
def test_hostile_messages_are_undecodable(message: bytes) -> None:
    """Messages and groups that nest too deep or have too many parts are undecodable."""
    with pytest.raises(Undecodable):
        read(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        "message",
        "message A {",
        "message A { int32 a }",
        "message A { int32 a = x; }",
        'edition = "2023"; message A {}',
        "message A { B b = 1; }",
        "message A " + "{ message A " * 100,
        "message A { " + "oneof a { " * 1_000,
        f"package {'a.' * 1_000}b; message A {{}}",
        "message A { /* }",
        "enum E { A = 1.5; }",
        "message A {} enum E { c.42 = 0; }",
        "message 1 {}",
    ],
)
def test_bad_schemas_are_refused(text: str) -> None:
    """Text that is not a schema, that nests too deep, or that uses unknown types, raises one error."""
    with pytest.raises(Undecodable):
        ProtobufReader(text).read(b"\0\x0a\0")


def _map_entry_without_value() -> bytes:
    entry = {
        "name": "E",
        "field": [{"name": "key", "number": 1, "label": 1, "type": 9}],
        "options": {"map_entry": True},
    }
    field = {"name": "e", "number": 1, "label": 3, "type": 11, "type_name": ".M.E"}
    file = {"name": "a.proto", "message_type": [{"name": "M", "field": [field], "nested_type": [entry]}]}
    return bytes(
        descriptor_pb2.FileDescriptorSet(file=[descriptor_pb2.FileDescriptorProto(**file)]).SerializeToString()
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"\x0a\3abc", b"\0" * 50, bytes(SET, "utf-8"), b"\x0a\7\x0a\5a.txt\x12", _map_entry_without_value()],
)
def test_other_bytes_are_no_descriptor_set(data: bytes) -> None:
    """Nothing, other bytes, a `.proto` file, a cut-off set and a map without values raise one error."""
    with pytest.raises(Undecodable, match="not a descriptor set"):
        parse_descriptor_set(data)


def test_message_indexes_of_a_descriptor_count_the_entries_of_maps() -> None:
    """Serializers that have compiled classes count a map's entry, which protoc makes of its field, as a nested message."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    outer = file.message_type.add(name="Outer")
    entry, inner = outer.nested_type.add(name="LabelsEntry"), outer.nested_type.add(name="Inner")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    labels = outer.field.add(name="labels", number=1, type=FIELD.TYPE_MESSAGE, label=FIELD.LABEL_REPEATED)
    labels.type_name = ".Outer.LabelsEntry"
    inner.field.add(name="email", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    reader = ProtobufReader(source_of(base64.b64encode(file.SerializeToString()).decode()))
    assert native(reader.read(b"\4\0\2" + sized(1, b"a@b.c"))) == {"email": "a@b.c"}
    assert native(reader.read(b"\0" + sized(1, sized(1, b"k") + sized(2, b"v")))) == {"labels": {"k": "v"}}


def test_a_descriptor_in_base64_is_a_schema() -> None:
    """Confluent's serializers of Python register a schema, and each that it imports, in this form."""
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("shop.binpb").read_bytes()).file
    texts = [source_of(base64.b64encode(one.SerializeToString()).decode()) for one in files]
    reader = ProtobufReader(texts[-1], dict(enumerate(texts[:-1])))  # type: ignore[arg-type]
    money = sized(5, sized(1, b"EUR") + sized(2, b"\x08\3"))
    assert native(reader.read(CUSTOMER + money)) == read(money)
    assert source_of(SHOP) == SHOP
    assert source_of("message") == "message"


# -- random messages ---------------------------------------------------------------------------------------------------

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": st.floats(allow_nan=False),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
    "M": st.none(),
}


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, Any]:
    """Return a schema and a message: fields of all types, one of them the message itself."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(list(SCALARS)), st.booleans()), max_size=6))
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    described = file.message_type.add(name="M")
    lines = []
    for number, (kind, is_repeated) in enumerate(kinds, 1):
        lines.append(f"{'repeated ' if is_repeated else ''}{kind} f{number} = {number};")
        field = described.field.add(name=f"f{number}", number=number)
        field.label = FIELD.LABEL_REPEATED if is_repeated else FIELD.LABEL_OPTIONAL
        if kind == "M":
            field.type, field.type_name = FIELD.TYPE_MESSAGE, ".M"
        else:
            field.type = FIELD.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))

    def filled(depth: int) -> Any:
        message = made()
        for number, (kind, is_repeated) in enumerate(kinds, 1):
            if kind == "M":
                inner = [filled(depth + 1) for _ in range(draw(st.integers(0, 2)))] if depth < 2 else []
                if is_repeated:
                    getattr(message, f"f{number}").extend(inner)
                elif inner:
                    getattr(message, f"f{number}").CopyFrom(inner[0])
            elif is_repeated:
                getattr(message, f"f{number}").extend(draw(st.lists(SCALARS[kind], max_size=3)))
            else:
                setattr(message, f"f{number}", draw(SCALARS[kind]))
        return message

    return f'syntax = "proto3"; message M {{ {" ".join(lines)} }}', filled(0)


def by_the_library(message: Any) -> dict[str, Any]:
    """Return the fields that readers see: those with a value, and defaults."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [by_the_library(one) if field.message_type else one for one in value]
        elif field.message_type is None:
            found[field.name] = value
        elif message.HasField(field.name):
            found[field.name] = by_the_library(value)
    return found


@settings(max_examples=examples(120), deadline=None)
@given(messages())
def test_random_messages_are_decoded_as_by_the_reference_library(one: tuple[str, Any]) -> None:
    """A message of any schema has the same fields, with the schema as a text and as a descriptor set."""
    text, message = one
    as_set = descriptor_pb2.FileDescriptorSet(file=[descriptor_pb2.FileDescriptorProto()])
    message.DESCRIPTOR.file.CopyToProto(as_set.file[0])
    for schema in (text, parse_descriptor_set(as_set.SerializeToString())[0]):
        assert native(ProtobufReader(schema).read(b"\0" + message.SerializeToString())) == by_the_library(message)
