"""ListOffsets (key 2): the response encoder, versions 1 to 11. Requests are read by `schemas`.

throttle_time_ms  int32                            [2+]
topics            array of                         [6+ in the flexible encoding]
  name            string
  partitions      array of
    index int32, error_code int16, timestamp int64, offset int64, [4+: leader_epoch int32]
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from diamant.protocol.primitives import INT32, encode_compact_string, encode_string, encode_uvarint

FIRST_FLEXIBLE = 6


class ListOffsetsPartitionResult(NamedTuple):
    """The result for one partition. Offset and timestamp are -1 if there is an error or no record matches."""

    index: int  # type: ignore[assignment]  # Kafka's word for it, and no one calls tuple.index here
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsTopicResult(NamedTuple):
    name: str
    partitions: list[ListOffsetsPartitionResult]


_PARTITION_1 = Struct(">ihqq")
_PARTITION_4 = Struct(">ihqqi")
_PARTITION_6 = Struct(">ihqqiB")


def encode_list_offsets_response(
    version: int, topics: Sequence[ListOffsetsTopicResult], throttle_time_ms: int = 0
) -> bytes:
    """Encode a response of version 1 to 11, without its header."""
    parts = [INT32.pack(throttle_time_ms)] if version >= 2 else []
    if version >= FIRST_FLEXIBLE:
        parts.append(encode_uvarint(len(topics) + 1))
        for name, partitions in topics:
            parts += [encode_compact_string(name), encode_uvarint(len(partitions) + 1)]
            parts += [_PARTITION_6.pack(*partition, 0) for partition in partitions]
            parts.append(b"\x00")
        parts.append(b"\x00")
        return b"".join(parts)
    parts.append(INT32.pack(len(topics)))
    for name, partitions in topics:
        parts += [encode_string(name), INT32.pack(len(partitions))]
        if version >= 4:
            parts += [_PARTITION_4.pack(*partition) for partition in partitions]
        else:
            parts += [_PARTITION_1.pack(*partition[:4]) for partition in partitions]
    return b"".join(parts)
