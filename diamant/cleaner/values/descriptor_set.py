"""Converts the Protobuf descriptor sets (`FileDescriptorSet`) that `protoc --descriptor_set_out` and buf write to `.proto` text.

The last file of a set is the schema, because protoc and buf write a file after all files that it imports. Only the parts that
`proto_text.py` needs are read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from diamant.cleaner.values.nodes import Undecodable, plain
from diamant.cleaner.values.protobuf import ProtobufReader

Fields: TypeAlias = Mapping[str, Any]

_DESCRIPTORS = """
syntax = "proto2";
message Files { repeated File file = 1; }
message File { optional string name = 1; optional string package = 2; repeated Message message_type = 4;
  repeated Enum enum_type = 5; optional string syntax = 12; }
message Message { optional string name = 1; repeated Field field = 2; repeated Message nested_type = 3;
  repeated Enum enum_type = 4; optional Options options = 7; }
message Field { optional string name = 1; optional int32 number = 3; optional int32 label = 4; optional int32 type = 5;
  optional string type_name = 6; optional int32 oneof_index = 9; optional bool proto3_optional = 17; }
message Enum { optional string name = 1; repeated Symbol value = 2; }
message Symbol { optional string name = 1; optional int32 number = 2; }
message Options { optional bool map_entry = 7; }
"""
_FIRST_MESSAGE, _SECOND_MESSAGE = b"\0", b"\2\2"
"""The message indexes of `Files` and `File`, which a `ProtobufReader` expects before a message."""
_BASE64 = re.compile(r"[\w+/]+=*\s*", re.ASCII)

_LABELS = {2: "required", 3: "repeated"}
_GROUP = 10
_SCALARS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string", 12: "bytes",
    13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip


@cache
def _reader() -> ProtobufReader:
    return ProtobufReader(_DESCRIPTORS)


def parse_descriptor_set(data: bytes) -> tuple[str, dict[str, str]]:
    """Return the `.proto` text of the schema in a set, and the texts of its imports by name. Raises Undecodable."""
    try:
        files = _reader().read(_FIRST_MESSAGE + data)
        texts = {one["name"]: "\n".join(_file(one)) for one in plain(files)["file"]}
    except (Undecodable, KeyError, ValueError):
        texts = {}
    if not texts:
        raise Undecodable("not a descriptor set of the kind that protoc --descriptor_set_out --include_imports writes")
    _, text = texts.popitem()
    return text, texts


def source_of(text: str) -> str:
    """Return a schema as `.proto` text. It may be a base64 file descriptor, which Confluent's Python client registers."""
    if not _BASE64.fullmatch(text):
        return text
    try:
        file = _reader().read(_SECOND_MESSAGE + base64.b64decode(text))
        return "\n".join(_file(plain(file)))
    except (Undecodable, KeyError, ValueError):
        return text


def _file(found: Fields) -> Iterator[str]:
    yield f'syntax = "{found.get("syntax", "proto2")}";' if found.get("syntax") != "editions" else 'edition = "";'
    if found.get("package"):
        yield f"package {found['package']};"
    yield from _types(found["message_type"], found["enum_type"])


def _types(messages: list[Fields], enums: list[Fields], groups: Mapping[str, Fields] = {}) -> Iterator[str]:
    """Yield declarations in the order of message indexes, including entries of maps. `groups`: the group fields by type name."""
    for one in messages:
        group = groups.get(one["name"])
        head = "message" if group is None else f"{_label(group)} group"
        number = "" if group is None else f"= {group['number']}"
        yield f"{head} {one['name']} {number} {{"
        yield from _body(one)
        yield "}"
    for one in enums:
        yield f"enum {one['name']} {{"
        yield from (f"{symbol['name']} = {symbol['number']};" for symbol in one["value"])
        yield "}"


def _body(message: Fields) -> Iterator[str]:
    entries = {one["name"]: one["field"] for one in message["nested_type"] if one.get("options", {}).get("map_entry")}
    groups = {}
    for field in message["field"]:
        name = _local_name(field)
        if field["type"] == _GROUP:
            groups[name] = field
        elif name in entries:
            key, value = map(_kind, entries[name])
            yield f"map<{key}, {value}> {field['name']} = {field['number']};"
        else:
            declared = f"{_kind(field)} {field['name']} = {field['number']};"
            is_choice = "oneof_index" in field and not field.get("proto3_optional")
            yield f"oneof one {{ {declared} }}" if is_choice else f"{_label(field)} {declared}"
    yield from _types(message["nested_type"], message["enum_type"], groups)


def _label(field: Fields) -> str:
    """Return a field's label; "" for a proto3 field without one, and for `optional` in proto2, where it may be omitted."""
    return _LABELS.get(field["label"], "optional" if field.get("proto3_optional") else "")


def _kind(field: Fields) -> str:
    return _SCALARS.get(field["type"]) or str(field["type_name"])


def _local_name(field: Fields) -> str:
    return str(field.get("type_name", "")).rpartition(".")[2]
