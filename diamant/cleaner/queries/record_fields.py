"""Converts records to fields of JSON objects."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from diamant.protocol.batches.header import Record


def record_fields(partition: int, record: Record) -> Mapping[str, object]:
    """Return a record as fields for JSON."""
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": data_fields(record.key),
        "value": data_fields(record.value),
        "headers": [{"key": one.key, "value": data_fields(one.value)} for one in record.headers],
    }


def data_fields(data: bytes | None) -> Mapping[str, str] | None:
    """Return a key or a value as a field for JSON: `text`, with any characters, if it is UTF-8; else `base64`."""
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
