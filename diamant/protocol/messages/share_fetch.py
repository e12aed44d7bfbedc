"""ShareFetch (key 78): the response encoder, versions 1 to 2.

    throttle_time_ms int32, error_code int16, error_message string, acquisition_lock_timeout_ms int32
    topics            array of
      topic_id        uuid
      partitions      array of
        index int32, error_code int16, error_message string, acknowledge_error_code int16, acknowledge_error_message string,
        leader_id, leader_epoch int32, records bytes, acquired_records array of (first, last int64, delivery_count int16)
    node_endpoints    array

Strings, bytes and arrays are compact. A response is a list of buffers and ranges of files, which this module does not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from diamant.protocol.primitives import INT16, INT32, encode_compact_string, encode_uuid, encode_uvarint

_NO_LEADER = INT32.pack(-1) * 2 + b"\0"
_ACQUIRED = Struct(">qqhb")
_TOP = Struct(">ih")
_PARTITION = Struct(">ih")


class SharedPartition(NamedTuple):
    """A partition's records and errors: codes and messages of the fetch and of the acknowledgement."""

    topic_id: UUID
    partition: int
    error: tuple[int, str | None] = (0, None)
    acknowledge_error: tuple[int, str | None] = (0, None)
    slices: Sequence[Any] = ()
    acquired: Sequence[tuple[int, int, int]] = ()


def encode_share_fetch_response(
    partitions: Sequence[SharedPartition], lock_timeout_ms: int = 0, *, error: tuple[int, str | None] = (0, None)
) -> list[Any]:
    """Return the body of a response; `error` is that of the request as a whole."""
    topics: dict[UUID, list[SharedPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_id, []).append(partition)
    out = bytearray(_TOP.pack(0, error[0]) + encode_compact_string(error[1]) + INT32.pack(lock_timeout_ms))
    out += encode_uvarint(len(topics) + 1)
    parts: list[Any] = []
    for topic_id, of_topic in topics.items():
        out += encode_uuid(topic_id) + encode_uvarint(len(of_topic) + 1)
        for one in of_topic:
            out += _PARTITION.pack(one.partition, one.error[0]) + encode_compact_string(one.error[1])
            out += INT16.pack(one.acknowledge_error[0]) + encode_compact_string(one.acknowledge_error[1]) + _NO_LEADER
            out += encode_uvarint(sum(part.size for part in one.slices) + 1)
            if one.slices:
                parts.append(bytes(out))
                parts += one.slices
                out = bytearray()
            out += encode_uvarint(len(one.acquired) + 1)
            for acquired in one.acquired:
                out += _ACQUIRED.pack(*acquired, 0)
            out += b"\0"
        out += b"\0"
    out += b"\1\0"
    parts.append(bytes(out))
    return parts
