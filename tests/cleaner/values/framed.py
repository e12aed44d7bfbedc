"""Values in the frames of serializers, and the records of a registry's topic."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "email", "type": ["null", "string"], "default": None},
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["BASIC", "GOLD"]}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


def avro(schema: Any, value: Any) -> bytes:
    """Return a value in Avro, without a frame."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def customer(number: int, email: str | None, level: str = "BASIC", **tags: str) -> bytes:
    """Return a `CUSTOMER` in Avro, without a frame."""
    return avro(CUSTOMER, {"id": number, "email": email, "level": level, "tags": tags})


def confluent(schema_id: int, payload: bytes) -> bytes:
    """Return a payload in the frame of Confluent's serializers."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def registered(
    schema_id: int,
    schema: Any,
    subject: str = "customers-value",
    version: int = 1,
    references: list[dict[str, Any]] | None = None,
    **more: Any,
) -> tuple[bytes, bytes]:
    """Return key and value of the record that a registry writes for a schema."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    text = schema if isinstance(schema, str) else json.dumps(schema)
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": False, **more}
    if references:
        value["references"] = references
    return json.dumps(key).encode(), json.dumps(value).encode()
