"""Conversion of kio's entities to the plain dicts and lists that `schemas` encodes, so that a message can be changed.

    fields = message_fields(decode_request(PRODUCE, 9, body))
    fields["topic_data"][0]["name"]
    encode_request_fields(PRODUCE, 9, fields) == body

Durations and times are ints in ms under their full names (`timeout_ms`), error codes ints, uuids `UUID` or None, bytes `bytes`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.schema_fields import SchemaField, schema_fields
from diamant.protocol.wire.schemas import response_class

_MILLISECOND = timedelta(milliseconds=1)
_described: dict[type, list[SchemaField]] = {}
_TIMES = ("timedelta_i32", "timedelta_i64", "datetime_i64")


def message_fields(entity: Any) -> dict[str, Any]:
    """Return the fields of a request, a response, or a structure within them."""
    fields = {}
    for field in _fields(type(entity)):
        value = getattr(entity, field.name)
        name = f"{field.name}_ms" if field.wire_type in _TIMES else field.name
        fields[name] = _array(value) if field.is_array else _plain(value)
    return fields


def decode_response_fields(api_key: int, version: int, body: bytes) -> dict[str, object]:
    """Decode the body of a response, without header. Raises ProtocolError if it is not exactly one such response."""
    response: Any = response_class(api_key, version)
    from kio.serial import entity_reader  # must come after `import_kio`, which `response_class` calls

    entity, size = entity_reader(response)(body, 0)
    if size != len(body):
        raise ProtocolError(f"{type(entity).__name__} v{version}: read {size} of {len(body)} bytes")
    return message_fields(entity)


def _fields(struct: type) -> list[SchemaField]:
    fields = _described.get(struct)
    if fields is None:
        fields = _described[struct] = schema_fields(struct)
    return fields


def _array(values: Any) -> list[Any] | None:
    return None if values is None else [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | bool | float):
        return value
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "__dataclass_fields__"):
        return message_fields(value)
    return value
