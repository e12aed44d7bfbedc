"""Metadata (key 3): the response encoder, versions 0 to 13. Requests are read by `schemas`.

    throttle_time_ms  int32                            [3+]
    brokers           array of                         [9+ in the flexible encoding]
      node_id int32, host string, port int32, [1+: rack nullable string]
    cluster_id        nullable string                  [2+]
    controller_id     int32                            [1+]
    topics            array of
      error_code int16, name string (nullable 12+), [10+: topic_id uuid], [1+: is_internal bool]
      partitions      array of
        error_code int16, index int32, leader_id int32, [7+: leader_epoch int32], replicas array of int32,
        isr array of int32, [5+: offline replicas array of int32]
      [8+: authorized operations int32]
    cluster authorized operations int32                [8 to 10]
    error_code        int16                            [13+]

Clients request all topics again and again. `encode_metadata_topic` encodes one topic; until the topic changes, callers may cache
the bytes and pass them to `encode_metadata_response` instead of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.primitives import INT16, INT32, encode_compact_string, encode_string, encode_uuid, encode_uvarint

FIRST_FLEXIBLE = 9

OPERATIONS_NOT_ASKED_FOR = -(1 << 31)
"""Value of the authorized operations if the client did not request them."""


class MetadataBroker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(NamedTuple):
    """A partition; `replicas`, `isr` and `offline` are node ids."""

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    error_code: int = 0


class MetadataTopic(NamedTuple):
    """A topic. `name` is None for an unknown topic id, sent as "" before version 12; `topic_id` is sent from version 10 on."""

    name: str | None
    topic_id: UUID | None
    partitions: Sequence[MetadataPartition]
    is_internal: bool = False
    error_code: int = 0
    authorized_operations: int = OPERATIONS_NOT_ASKED_FOR


_Count = Callable[[int], bytes]
_Text = Callable[[str | None], bytes]

_PARTITION_0 = Struct(">hii")
_PARTITION_7 = Struct(">hiii")


def encode_metadata_response(
    version: int,
    *,
    brokers: Sequence[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[MetadataTopic | bytes],
    error_code: int = 0,
    throttle_time_ms: int = 0,
    cluster_authorized_operations: int = OPERATIONS_NOT_ASKED_FOR,
) -> bytes:
    """Encode a response of version 0 to 13, without its header.

    A topic passed as bytes must come from `encode_metadata_topic` for the same version.
    """
    count, text, end = _encoding(version)
    parts = [INT32.pack(throttle_time_ms)] if version >= 3 else []
    parts.append(count(len(brokers)))
    for broker in brokers:
        parts += [INT32.pack(broker.node_id), text(broker.host), INT32.pack(broker.port)]
        if version >= 1:
            parts.append(text(broker.rack))
        parts.append(end)
    if version >= 2:
        parts.append(text(cluster_id))
    if version >= 1:
        parts.append(INT32.pack(controller_id))
    parts.append(count(len(topics)))
    for topic in topics:
        parts.append(topic if isinstance(topic, bytes) else encode_metadata_topic(version, topic))
    if 8 <= version <= 10:
        parts.append(INT32.pack(cluster_authorized_operations))
    if version >= 13:
        parts.append(INT16.pack(error_code))
    parts.append(end)
    return b"".join(parts)


def encode_metadata_topic(version: int, topic: MetadataTopic) -> bytes:
    """Encode one topic of a response."""
    count, text, end = _encoding(version)
    name = topic.name if topic.name is not None or version >= 12 else ""
    parts = [INT16.pack(topic.error_code), text(name)]
    if version >= 10:
        parts.append(encode_uuid(topic.topic_id))
    if version >= 1:
        parts.append(b"\x01" if topic.is_internal else b"\x00")
    parts.append(count(len(topic.partitions)))
    # Encode each list of nodes once: on a single node, most partitions have the same replicas.
    encoded_nodes: dict[tuple[int, ...], bytes] = {}

    def nodes(node_ids: Sequence[int]) -> bytes:
        key = tuple(node_ids)
        encoded = encoded_nodes.get(key)
        if encoded is None:
            encoded = encoded_nodes[key] = count(len(key)) + Struct(f">{len(key)}i").pack(*key)
        return encoded

    for index, leader_id, leader_epoch, replicas, isr, offline, error_code in topic.partitions:
        if version >= 7:
            parts.append(_PARTITION_7.pack(error_code, index, leader_id, leader_epoch))
        else:
            parts.append(_PARTITION_0.pack(error_code, index, leader_id))
        parts += [nodes(replicas), nodes(isr)]
        if version >= 5:
            parts.append(nodes(offline))
        parts.append(end)
    if version >= 8:
        parts.append(INT32.pack(topic.authorized_operations))
    parts.append(end)
    return b"".join(parts)


def _encoding(version: int) -> tuple[_Count, _Text, bytes]:
    """Return the encoders of array counts and strings, and the bytes that end a structure."""
    if version >= FIRST_FLEXIBLE:
        return _compact_count, encode_compact_string, b"\x00"
    return INT32.pack, encode_string, b""


def _compact_count(count: int) -> bytes:
    return encode_uvarint(count + 1)
