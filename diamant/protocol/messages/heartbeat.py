"""Heartbeat (key 12): the request decoder, versions 0 to 4.

Request (version 4 has the flexible encoding):

    group_id             string
    generation           int32
    member_id            string
    group_instance_id    nullable string               [3+]

Hand-written because every member of a classic group sends one every three seconds.
"""

from __future__ import annotations

from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import INT32, read_compact_string, read_string, skip_tags

_new = tuple.__new__  # makes a named tuple in two thirds of the time that calling its class takes

FIRST_WITH_INSTANCE_ID = 3
FIRST_FLEXIBLE = 4


class HeartbeatRequest(NamedTuple):
    """A request; `group_instance_id` is set for static members (KIP-345)."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None


def decode_heartbeat_request(version: int, body: memoryview) -> HeartbeatRequest:
    """Decode a request of version 0 to 4, ignoring bytes after it. Raises ProtocolError if it is malformed."""
    read_text = read_compact_string if version >= FIRST_FLEXIBLE else read_string
    end = len(body)
    try:
        group_id, position = read_text(body, 0, end)
        (generation,) = INT32.unpack_from(body, position)
        member_id, position = read_text(body, position + 4, end)
        instance_id = None
        if version >= FIRST_WITH_INSTANCE_ID:
            instance_id, position = read_text(body, position, end)
        if version >= FIRST_FLEXIBLE and body[position]:
            skip_tags(body, position, end)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Heartbeat v{version} request of {end} bytes: {error}") from error
    if group_id is None or member_id is None:
        raise ProtocolError(f"{'group' if group_id is None else 'member'} id is null")
    return _new(HeartbeatRequest, (group_id, generation, member_id, instance_id))
