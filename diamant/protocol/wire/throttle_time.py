"""`throttle_time_ms` in encoded responses: the first field of most, the last field of Produce, in the middle of ApiVersions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, TypeAlias, cast

from diamant.protocol.wire.apis import PRODUCE, is_flexible
from diamant.protocol.wire.message_fields import decode_response_fields
from diamant.protocol.wire.schema_fields import schema_fields
from diamant.protocol.wire.schemas import encode_response_fields, response_class

_INT32 = Struct(">i")
_FIELD = "throttle_time"
_NO_TAGS = b"\x00"

Body: TypeAlias = bytes | bytearray | memoryview | Sequence[Any]
"""The body of a response: one buffer, or a sequence of buffers and ranges of files."""


@cache
def throttle_time_position(api_key: int, version: int) -> int | None:
    """Return the number of fields before the throttle time; None if the version has no throttle time."""
    for position, field in enumerate(schema_fields(response_class(api_key, version))):
        if field.name == _FIELD:
            return position
    return None


def with_throttle_time(api_key: int, version: int, body: Body, throttle_time_ms: int) -> Body:
    """Return the response with this throttle time, or unchanged if its version has none. Ranges of files are not touched."""
    if api_key == PRODUCE:
        whole, end = _whole(body), _NO_TAGS if is_flexible(api_key, version) else b""
        if whole.endswith(end):
            return whole[: -_INT32.size - len(end)] + _INT32.pack(throttle_time_ms) + end
    position = throttle_time_position(api_key, version)
    if position is None:
        return body
    if position == 0:
        parts = [body] if isinstance(body, bytes | bytearray | memoryview) else list(body)
        return [_INT32.pack(throttle_time_ms), memoryview(parts[0])[_INT32.size :], *parts[1:]]
    fields = decode_response_fields(api_key, version, _whole(body))
    return encode_response_fields(api_key, version, {**fields, "throttle_time_ms": throttle_time_ms})


def first_throttle_time_ms(body: Body) -> int:
    """Return the throttle time of a response that begins with it, such as Fetch."""
    first: Any = body if isinstance(body, bytes | bytearray | memoryview) else body[0]
    (throttle_time_ms,) = _INT32.unpack_from(first)
    return int(throttle_time_ms)


def _whole(body: Body) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b"".join(cast("Sequence[bytes]", body))
