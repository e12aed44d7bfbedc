"""Converts records and their keys from and to JSON.

A key is `{"text": "customer-42"}` (encoded as UTF-8), `{"hex": "00ff"}` or `{"base64": "AP8="}`; a plain string means the same
as `text`. Responses use `text` for printable UTF-8, and `hex` otherwise.

A record is one line. `diamant latest` prints such lines, and `diamant exec --seed` reads them:

    {"topic": "users", "key": "42", "value": {"json": {"name": "Ada"}}, "headers": [{"key": "h", "value": "v"}], "timestamp": 0}

Only `topic` is required. A key or a value is null, a string, or an object with one of `text`, `hex`, `base64` and `json` (any
JSON, stored without spaces). By default, the key determines the `partition`, and the `timestamp` (ms) is the current time.
`offset` is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import NamedTuple

from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.queries.record_fields import record_fields
from diamant.protocol.batches.header import Record

FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
IGNORED_FIELDS = ("key_json", "value_json")
"""Fields with the decoded key and value, which `diamant latest` prints in addition to the bytes."""
_KEY_FORMS = ("text", "hex", "base64")
MAX_TIMESTAMP_MS = 2**63 - 1


def parse_key(found: object, name: str = "key") -> bytes:
    """Return the bytes of a key given as JSON. Raises BadArgument, with a message that contains `name` but not the key."""
    if isinstance(found, str):
        return _text(found, name)
    if not isinstance(found, Mapping) or len(found) != 1:
        raise BadArgument(f'{name}: expected a string or an object with one of "text", "hex" and "base64"')
    form, value = next(iter(found.items()))
    if form not in _KEY_FORMS or not isinstance(value, str):
        raise BadArgument(f'{name}: expected {{"text": "..."}}, {{"hex": "..."}} or {{"base64": "..."}}')
    if form == "text":
        return _text(value, name)
    try:
        return bytes.fromhex(value) if form == "hex" else base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise BadArgument(f"{name}: the value of {form} is not valid {form}") from None


def key_fields(key: bytes) -> dict[str, str]:
    """Return a key as a JSON object."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return {"hex": key.hex()}
    return {"text": text} if text.isprintable() else {"hex": key.hex()}


class RecordLine(NamedTuple):
    """A record to write."""

    topic: str
    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def parse_record_line(line: str | bytes, *, topic: str | None = None) -> RecordLine:
    """Parse a line. `topic` is the default for lines without one.

    Raises BadArgument, with a message that says what was expected and contains neither the key nor the value.
    """
    try:
        found = json.loads(line)
    except ValueError as error:
        position = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadArgument(f"this is not JSON{position}") from None
    if not isinstance(found, dict):
        raise BadArgument('expected an object: {"topic": "users", "key": "42", "value": "..."}')
    unknown = [name for name in found if name not in FIELDS + IGNORED_FIELDS]
    if unknown:
        raise BadArgument(f"{unknown[0]!r} is not a field of a record; expected {', '.join(FIELDS)}")
    topic = found.get("topic", topic)
    if not isinstance(topic, str) or not topic:
        raise BadArgument('topic: expected the name of a topic, as in {"topic": "users"}')
    return RecordLine(
        topic,
        _number(found, "partition", 2**31 - 1),
        _number(found, "timestamp", MAX_TIMESTAMP_MS),
        _bytes(found.get("key"), "key"),
        _bytes(found.get("value"), "value"),
        _headers(found.get("headers", [])),
    )


def format_record_line(topic: str, partition: int, record: Record) -> str:
    """Return a record as a line for `parse_record_line`, without a newline."""
    return json.dumps({"topic": topic, **record_fields(partition, record)})


def _text(value: str, name: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{name}: the text has lone surrogates, which UTF-8 cannot encode; give it as hex") from None


def _number(found: Mapping[str, object], name: str, most: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadArgument(f"{name}: expected a whole number from 0 to {most}")
    return value


def _bytes(value: object, name: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and [*value] == ["json"]:
        return json.dumps(value["json"], ensure_ascii=False, separators=(",", ":")).encode()
    try:
        return parse_key(value)
    except BadArgument as error:
        reason = str(error).removeprefix("key: ").replace('"hex" and "base64"', '"hex", "base64" and "json"')
        raise BadArgument(f"{name}: {reason}") from None


def _headers(value: object) -> tuple[tuple[str, bytes | None], ...]:
    if not isinstance(value, list):
        raise BadArgument('headers: expected a list, as in [{"key": "name", "value": "..."}]')
    found = []
    for header in value:
        if not isinstance(header, Mapping) or not isinstance(header.get("key"), str):
            raise BadArgument('headers: expected {"key": "name", "value": "..."} for each header')
        found.append((header["key"], _bytes(header.get("value"), "value of a header")))
    return tuple(found)
