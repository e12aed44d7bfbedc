"""The leaders that responses to Produce (10+), Fetch (16+) and ShareFetch contain along with leadership errors (KIP-951).

per partition   current leader   int32 id, int32 leader epoch
per response    array of (node_id int32, host string, port int32, rack nullable string)

In responses to Produce and Fetch, both are tagged fields; the array has tag 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from diamant.protocol.primitives import INT32, encode_compact_string, encode_uvarint

_CURRENT_LEADER = Struct(">BBiiB")
NO_TAGS = b"\x00"
NO_NODES = b"\x01"


def encode_current_leader(tag: int, leader: tuple[int, int]) -> bytes:
    """Encode a tagged field with a leader and its epoch."""
    return _CURRENT_LEADER.pack(tag, 9, *leader, 0)


def encode_node_endpoints(nodes: Iterable[tuple[int, str, int, str | None]]) -> bytes:
    """Encode the block of tagged fields that ends a response, with (node id, host, port, rack) of each leader."""
    array = encode_nodes(nodes)
    return NO_TAGS if array == NO_NODES else b"\x01\x00" + encode_uvarint(len(array)) + array


def encode_nodes(nodes: Iterable[tuple[int, str, int, str | None]]) -> bytes:
    """Encode an array with (node id, host, port, rack) of each leader."""
    entries: Sequence[bytes] = [
        INT32.pack(node_id) + encode_compact_string(host) + INT32.pack(port) + encode_compact_string(rack) + NO_TAGS
        for node_id, host, port, rack in nodes
    ]
    return encode_uvarint(len(entries) + 1) + b"".join(entries)
