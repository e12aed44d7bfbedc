"""Random messages of any (API, version), in the dict form of `diamant.protocol.wire.schemas` and as kio's dataclasses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any, cast
from uuid import UUID

from diamant.protocol.wire.apis import SERVED
from diamant.protocol.wire.schema_fields import SchemaField, schema_fields

_BOUNDS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "error_code": (-1, 119),
    "timedelta_i32": (-(1 << 31), (1 << 31) - 1),
    # Within these bounds a float of seconds, as used by kio's writer, still represents milliseconds exactly.
    "timedelta_i64": (-(1 << 42), 1 << 42),
    "datetime_i64": (-1, 1 << 41),
}
_TEXTS = ["", "a", "topic-1", "grüße", "消費者", "x" * 200]


def served_versions() -> Iterator[tuple[int, int]]:
    """Yield every (API key, version) that is served."""
    for api_key, served in SERVED.items():
        for version in range(served.min, served.max + 1):
            yield api_key, version


def random_fields(rng: random.Random, struct: type, max_elements: int = 3) -> dict[str, Any]:
    """Return a message or structure as a dict with every field of the schema, under kio's names."""
    return {field.name: _random_field(rng, field, max_elements) for field in schema_fields(struct)}


def _random_field(rng: random.Random, field: SchemaField, max_elements: int) -> Any:
    if field.tag is not None and rng.random() < 0.5:
        return plain(field.default) if field.has_default else random_fields(rng, field.struct or object, max_elements)
    # kio cannot write null into a tagged field.
    if field.is_nullable and field.wire_type != "uuid" and field.tag is None and rng.random() < 0.3:
        return None
    if field.is_array:
        return [_random_value(rng, field, max_elements) for _ in range(rng.randint(0, max_elements))]
    return _random_value(rng, field, max_elements)


def _random_value(rng: random.Random, field: SchemaField, max_elements: int) -> Any:
    if field.struct is not None:
        return random_fields(rng, field.struct, max_elements)
    match field.wire_type:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.uniform(-1e9, 1e9)
        case "string":
            return rng.choice(_TEXTS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 61, 300)))
        case "uuid":
            return None if rng.random() < 0.2 else UUID(bytes=rng.randbytes(16))
        case "datetime_i64":
            # Whole seconds, the smallest step of kio's type. None means -1, an unknown time.
            return None if field.is_nullable and rng.random() < 0.3 else rng.randrange(1 << 31) * 1000
        case wire_type:
            low, high = _BOUNDS[str(wire_type)]
            return rng.choice((low, high, 0, -1 if low else 1, rng.randint(low, high)))


def plain(value: Any) -> Any:
    """Convert a value of kio's to its form in a dict."""
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, tuple):
        return [plain(element) for element in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in schema_fields(type(value))}
    return value


def entity(struct: type, fields: dict[str, Any]) -> Any:
    """Return kio's dataclass with the values of a dict that has every field."""
    return struct(**{field.name: _kio_value(field, fields[field.name]) for field in schema_fields(struct)})


def _kio_value(field: SchemaField, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return tuple(_kio_element(field, element) for element in value)
    return _kio_element(field, value)


def _kio_element(field: SchemaField, value: Any) -> Any:
    from kio.schema.errors import ErrorCode

    if field.struct is not None:
        return entity(field.struct, value)
    match field.wire_type:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return datetime.fromtimestamp(value / 1000, UTC)
    return value


def kio_bytes(message: Any) -> bytes:
    """Encode an entity with kio's writer."""
    from kio.serial import entity_writer

    buffer = BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_read(struct: type, data: bytes) -> Any:
    """Decode an entity with kio's reader, which must read all of `data`."""
    from kio.serial import entity_reader

    read: Any = entity_reader(cast(Any, struct))
    message, size = read(data, 0)
    assert size == len(data)
    return message
