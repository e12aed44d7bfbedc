"""Schema-driven decoding of requests and encoding of responses, for all APIs without a hand-written codec.

The `guard` checks a request; then kio's native reader decodes it into kio's frozen dataclass:

    request = decode_request(METADATA, 12, body)
    request.topics[0].name

Field names are Kafka's in snake case; durations are `timedelta` without the suffix `_ms` (`request.timeout`), error codes are
kio's enum, the zero uuid is None.

Responses are plain dicts and lists, independent of the version, and are encoded for the client's version:

    encode_response_fields(FIND_COORDINATOR, version, {
        "throttle_time_ms": 0,
        "error_code": 0, "node_id": 1, "host": "localhost", "port": 9092,                    # up to version 3
        "coordinators": [{"key": "g", "node_id": 1, "host": "localhost", "port": 9092}],     # from version 4
    })

Names are Kafka's in snake case. Durations are ints in ms under their full name (`throttle_time_ms`). So are points in time, for
which None means -1. Error codes are ints, uuids are `UUID` or None. Fields that the version lacks are ignored, and omitted fields
have the schema's default (0, "", empty, or an explicit one). A misspelled field would be ignored silently, so tests of handlers
look for names that no version has (tests/protocol/wire/field_names.py).

The first use of an (API, version) compiles its codec, which is kept; there are at most a few hundred. Two threads may compile
the same codec twice, which is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import (
    INT32,
    encode_bytes,
    encode_compact_string,
    encode_string,
    encode_uuid,
    encode_uvarint,
)
from diamant.protocol.wire.guard import compile_guard
from diamant.protocol.wire.schema_fields import Kind, SchemaField, is_flexible_struct, message_class, schema_fields


class _RequestDecoder(NamedTuple):
    guard: Callable[[bytes], bytes]
    read: Callable[[bytes, int], tuple[Any, int]]


_request_decoders: dict[tuple[int, int], _RequestDecoder] = {}
_encoders: dict[tuple[int, int, Kind], Callable[[Any], bytes]] = {}
_element_encoders: dict[tuple[int, int, str], Callable[[Any], bytes]] = {}


def request_class(api_key: int, version: int) -> type:
    """Return kio's dataclass of a request. Raises ProtocolError if the request is not served."""
    return message_class(api_key, version, "request")


def response_class(api_key: int, version: int) -> type:
    """Return kio's dataclass of a response. Raises ProtocolError if the request is not served."""
    return message_class(api_key, version, "response")


def decode_request(api_key: int, version: int, body: memoryview | bytes) -> Any:
    """Decode a request's body into kio's dataclass.

    Raises ProtocolError if the API or the version is not served, or if the body does not begin with such a request. The result
    shares no memory with `body`.
    """
    decoder = _request_decoders.get((api_key, version))
    if decoder is None:
        decoder = _load_request_decoder(api_key, version)
    checked = decoder.guard(bytes(body))
    try:
        request, size = decoder.read(checked, 0)
    except Exception as error:
        # kio does not document its errors for malformed input; all of them mean that the bytes are invalid.
        raise ProtocolError(f"{request_class(api_key, version).__name__} v{version}: {error!r}") from error
    if size != len(checked):
        raise ProtocolError(f"{type(request).__name__} v{version}: read {size} of {len(checked)} bytes")
    return request


def _load_request_decoder(api_key: int, version: int) -> _RequestDecoder:
    message: Any = request_class(api_key, version)
    from kio.serial import entity_reader  # must come after `import_kio`, which `request_class` calls

    decoder = _RequestDecoder(compile_guard(message), entity_reader(message))
    _request_decoders[api_key, version] = decoder
    return decoder


def encode_response_fields(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """Encode a response, without its header, from fields in the form that the module docstring describes."""
    return _encode_fields(api_key, version, "response", fields)


def element_encoder(api_key: int, version: int, name: str) -> Callable[[Any], bytes]:
    """Return an encoder for elements of a response's array `name`, which must be structures.

    The array that is passed to `encode_response_fields` may contain encoded elements in place of plain ones.
    """
    encode = _element_encoders.get((api_key, version, name))
    if encode is None:
        (field,) = (one for one in schema_fields(response_class(api_key, version)) if one.name == name)
        assert field.struct is not None
        encode = _element_encoders[api_key, version, name] = _struct_encoder(field.struct)
    return encode


_PLACE = b"\0place of the elements\0"


def encode_around(api_key: int, version: int, name: str, elements: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a response. Its array `name` has the encoded `elements`; all other fields have their defaults."""
    around = {name: [_PLACE, *[b""] * (len(elements) - 1)]} if elements else {}
    head, _, tail = encode_response_fields(api_key, version, around).partition(_PLACE)
    return [head, *elements, tail]


def encode_request_fields(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """Encode a request, without its header, from fields in the same form as for a response. For tests and tools."""
    return _encode_fields(api_key, version, "request", fields)


def _encode_fields(api_key: int, version: int, kind: Kind, fields: Mapping[str, Any]) -> bytes:
    encode = _encoders.get((api_key, version, kind))
    if encode is None:
        encode = _encoders[api_key, version, kind] = _struct_encoder(message_class(api_key, version, kind))
    return encode(fields)


# ---- encoding ------------------------------------------------------------------------------------------------------

_Encode = Callable[[Any], bytes]

_PLAIN_TYPES: dict[str, tuple[Struct, Any]] = {
    "int8": (Struct(">b"), 0),
    "int16": (Struct(">h"), 0),
    "uint16": (Struct(">H"), 0),
    "int32": (Struct(">i"), 0),
    "int64": (Struct(">q"), 0),
    "float64": (Struct(">d"), 0.0),
    "bool": (Struct(">?"), False),
    "error_code": (Struct(">h"), 0),
    "timedelta_i32": (Struct(">i"), 0),
    "timedelta_i64": (Struct(">q"), 0),
    "datetime_i64": (Struct(">q"), 0),
}


def dict_names(field: SchemaField) -> tuple[str, ...]:
    """Return the names under which a dict may have a field."""
    is_time = field.wire_type in ("timedelta_i32", "timedelta_i64", "datetime_i64")
    return (f"{field.name}_ms", field.name) if is_time else (field.name,)


def _struct_encoder(struct: type) -> _Encode:
    is_flexible = is_flexible_struct(struct)
    plain: list[tuple[str, str, _Encode, bytes]] = []
    tagged: list[tuple[str, str, _Encode, bytes, bytes]] = []
    for field in schema_fields(struct):
        encode = _field_encoder(field, is_flexible)
        names = dict_names(field)
        default = _default_bytes(field, encode)
        if field.tag is None:
            plain.append((names[0], names[-1], encode, default))
        else:
            tagged.append((names[0], names[-1], encode, default, encode_uvarint(field.tag)))

    def encode_struct(fields: Mapping[str, Any] | bytes) -> bytes:
        if type(fields) is bytes:
            return fields  # encoded by `element_encoder`
        assert not isinstance(fields, bytes)
        parts = []
        name = ""
        try:
            for name, other_name, encode, default in plain:
                if name in fields:
                    parts.append(encode(fields[name]))
                elif other_name in fields:
                    parts.append(encode(fields[other_name]))
                else:
                    parts.append(default)
            if is_flexible:
                parts.append(encode_tags(fields) if tagged else b"\x00")
        except (AttributeError, OverflowError, StructError, TypeError) as error:
            error.add_note(f"in field {name!r} of {struct.__name__} v{struct.__version__}")  # type: ignore[attr-defined]
            raise
        return b"".join(parts)

    def encode_tags(fields: Mapping[str, Any]) -> bytes:
        contents = []
        for name, other_name, encode, default, tag in tagged:
            if name in fields:
                content = encode(fields[name])
            elif other_name in fields:
                content = encode(fields[other_name])
            else:
                continue
            # Omit defaults: an absent tag means the default.
            if content != default:
                contents.append(tag + encode_uvarint(len(content)) + content)
        return encode_uvarint(len(contents)) + b"".join(contents)

    return encode_struct


def _field_encoder(field: SchemaField, is_flexible: bool) -> _Encode:
    if field.struct is not None:
        encode = _struct_encoder(field.struct)
        if not field.is_array and field.is_nullable and field.tag is None:
            return _nullable_struct_encoder(encode)
    else:
        encode = _value_encoder(field, is_flexible)
    return _array_encoder(encode, is_flexible, field.is_nullable) if field.is_array else encode


def _nullable_struct_encoder(encode: _Encode) -> _Encode:
    def encode_nullable_struct(value: Any) -> bytes:
        return b"\xff" if value is None else b"\x01" + encode(value)

    return encode_nullable_struct


def _array_encoder(encode: _Encode, is_flexible: bool, is_nullable: bool) -> _Encode:
    def encode_array(values: Any) -> bytes:
        if values is None:
            if not is_nullable:
                raise TypeError("array must not be None")
            return b"\x00" if is_flexible else b"\xff\xff\xff\xff"
        count = encode_uvarint(len(values) + 1) if is_flexible else INT32.pack(len(values))
        return count + b"".join([encode(value) for value in values])

    return encode_array


def _value_encoder(field: SchemaField, is_flexible: bool) -> _Encode:
    wire_type = field.wire_type
    assert wire_type is not None
    if wire_type == "uuid":
        return encode_uuid
    if wire_type in _PLAIN_TYPES:
        pack = _PLAIN_TYPES[wire_type][0].pack
        if wire_type == "datetime_i64":
            return lambda value: pack(-1 if value is None else value)
        return pack
    is_nullable = field.is_nullable and not field.is_array
    if wire_type == "string":
        encode: _Encode = encode_compact_string if is_flexible else encode_string
    elif wire_type in ("bytes", "records"):
        encode = _encode_compact_bytes if is_flexible else encode_bytes
    else:
        raise TypeError(f"field {field.name} has the unknown wire type {wire_type}")
    return encode if is_nullable else _not_null(encode)


def _not_null(encode: _Encode) -> _Encode:
    def encode_not_null(value: Any) -> bytes:
        if value is None:
            raise TypeError("value must not be None")
        return encode(value)

    return encode_not_null


def _encode_compact_bytes(value: bytes | None) -> bytes:
    return b"\x00" if value is None else encode_uvarint(len(value) + 1) + value


def _default_bytes(field: SchemaField, encode: _Encode) -> bytes:
    if field.is_array:
        return encode(None if field.has_default and field.default is None else ())
    if field.struct is not None:
        if field.is_nullable and field.tag is None:
            return encode(None)
        return encode({})
    if not field.has_default:
        implicit = {"uuid": None, "string": "", "bytes": b"", "records": b""}
        wire_type = field.wire_type
        assert wire_type is not None
        return encode(_PLAIN_TYPES[wire_type][1] if wire_type in _PLAIN_TYPES else implicit[wire_type])
    return encode(_plain_value(field.default))


def _plain_value(default: Any) -> Any:
    """Convert one of kio's default values to the form that it has in a dict."""
    if isinstance(default, timedelta):
        return round(default / timedelta(milliseconds=1))
    if isinstance(default, datetime):
        return round(default.timestamp() * 1000)
    return default
