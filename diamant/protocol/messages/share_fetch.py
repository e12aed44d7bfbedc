"""ShareFetch (key 78): the response encoder, versions 1 to 2.

    throttle_time_ms int32, error_code int16, error_message string, acquisition_lock_timeout_ms int32
    topics            array of
      topic_id        uuid
      partitions      array of
        index int32, error_code int16, error_message string, acknowledge_error_code int16, acknowledge_error_message string,
        leader_id, leader_epoch int32, records bytes, acquired_records array of (first, last int64, delivery_count int16)
    node_endpoints    array of (node_id int32, host string, port int32, rack nullable string)

Strings, bytes and arrays are compact. An encoded response is a list of buffers and of ranges of files, which this module does not
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from diamant.protocol.messages.leaders import encode_nodes
from diamant.protocol.primitives import INT16, INT32, encode_compact_string, encode_uuid, encode_uvarint

_LEADER = Struct(">iib")
_ACQUIRED = Struct(">qqhb")
_TOP = Struct(">ih")
_PARTITION = Struct(">ih")


class ShareOutcome(NamedTuple):
    """The outcome of a fetch or an acknowledgement. `current_leader` is (broker, epoch) if there is a leadership error."""

    code: int = 0
    message: str | None = None
    current_leader: tuple[int, int] = (-1, -1)


DONE = ShareOutcome()


class SharedPartition(NamedTuple):
    """A partition's records, and the outcomes of its fetch and acknowledgement. Only the fetch's current leader is encoded."""

    topic_id: UUID
    partition: int
    error: ShareOutcome = DONE
    acknowledge_error: ShareOutcome = DONE
    slices: Sequence[Any] = ()
    acquired: Sequence[tuple[int, int, int]] = ()


def encode_share_fetch_response(
    partitions: Sequence[SharedPartition],
    lock_timeout_ms: int = 0,
    *,
    error: ShareOutcome = DONE,
    node_endpoints: Iterable[tuple[int, str, int, str | None]] = (),
) -> list[Any]:
    """Encode a response, without its header. `error` concerns the whole request; `node_endpoints` are the leaders' addresses."""
    topics: dict[UUID, list[SharedPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_id, []).append(partition)
    out = bytearray(_TOP.pack(0, error.code) + encode_compact_string(error.message) + INT32.pack(lock_timeout_ms))
    out += encode_uvarint(len(topics) + 1)
    parts: list[Any] = []
    for topic_id, of_topic in topics.items():
        out += encode_uuid(topic_id) + encode_uvarint(len(of_topic) + 1)
        for one in of_topic:
            out += _PARTITION.pack(one.partition, one.error.code) + encode_compact_string(one.error.message)
            out += INT16.pack(one.acknowledge_error.code) + encode_compact_string(one.acknowledge_error.message)
            out += _LEADER.pack(*one.error.current_leader, 0)
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
    out += encode_nodes(node_endpoints) + b"\0"
    parts.append(bytes(out))
    return parts
