"""ConsumerGroupHeartbeat (key 68), versions 0 and 1: the request and the response if nothing has changed.

Request:

    group_id, member_id  string, string
    member_epoch         int32
    instance_id, rack_id nullable string               [null here and below: unchanged]
    rebalance_timeout_ms int32                         [-1: unchanged]
    subscribed_topic_names  nullable array of string
    subscribed_topic_regex  nullable string            [1]
    server_assignor      nullable string
    topic_partitions     nullable array of (topic_id uuid, partitions array of int32)

Response:

    throttle_time_ms, error_code, error_message  int32, int16, nullable string
    member_id            nullable string
    member_epoch, heartbeat_interval_ms  int32, int32
    assignment           nullable struct

All strings and arrays are compact. Every member of a consumer group sends a request every five seconds, nearly always without
changes, and receives a response without an assignment. This module handles such messages; `schemas` handles all others.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import INT32, encode_compact_string, read_compact_string

_new = tuple.__new__  # makes a named tuple in two thirds of the time that calling its class takes

_AS_BEFORE = tuple(
    b"\0\0\xff\xff\xff\xff" + bytes(nulls) for nulls in (4, 5)
)  # from instance_id to the tags, by version
_EPOCH_AND_INTERVAL = Struct(">iiBB")


class ConsumerGroupHeartbeat(NamedTuple):
    """A request. Fields that have not changed are None, or -1 for the timeout."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: list[tuple[UUID | None, tuple[int, ...]]] | None = None


def decode_unchanged(version: int, body: memoryview) -> ConsumerGroupHeartbeat | None:
    """Decode a request of version 0 or 1 that reports no changes. Return None for any other request, valid or not."""
    end = len(body)
    try:
        group_id, position = read_compact_string(body, 0, end)
        member_id, position = read_compact_string(body, position, end)
        if group_id is None or member_id is None or body[position + 4 :] != _AS_BEFORE[version]:
            return None
        (member_epoch,) = INT32.unpack_from(body, position)
    except (IndexError, StructError, UnicodeDecodeError, ProtocolError):
        return None
    return _new(ConsumerGroupHeartbeat, (group_id, member_id, member_epoch, None, None, -1, None, None, None, None))


def encode_without_assignment(member_id: str, member_epoch: int, heartbeat_interval_ms: int) -> bytes:
    """Encode a response without an error or an assignment, without its header. It is the same in all versions."""
    return (
        bytes(7)
        + encode_compact_string(member_id)
        + _EPOCH_AND_INTERVAL.pack(member_epoch, heartbeat_interval_ms, 0xFF, 0)
    )
