"""Keys of the records of streams groups in `__consumer_offsets`. Streams groups are recognized, but not served.

Like all keys of groups, a key is its type as an int16, then the group's id. Values are not read, except for the epoch in the
first field of `EPOCH` and `TARGET_EPOCH` values.

Source: CoordinatorRecordType of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from diamant.protocol.errors import CorruptBatch
from diamant.protocol.primitives import INT16, INT32, encode_string

STREAMS = "streams"
"""Kafka's name for the group type."""


class OtherRecord(IntEnum):
    """The content of a record. Kafka erases a group's records in this order, and fails to load a partition with another order."""

    MEMBER_ASSIGNMENT = 0
    MEMBER_TARGET = 1
    TARGET_EPOCH = 2
    """The epoch of the target assignment."""
    MEMBER = 3
    REST = 4
    """The topology."""
    EPOCH = 5
    """The group and its epoch."""


_TYPES = {
    17: (STREAMS, OtherRecord.EPOCH),
    19: (STREAMS, OtherRecord.MEMBER),
    20: (STREAMS, OtherRecord.TARGET_EPOCH),
    21: (STREAMS, OtherRecord.MEMBER_TARGET),
    22: (STREAMS, OtherRecord.MEMBER_ASSIGNMENT),
    23: (STREAMS, OtherRecord.REST),
}


class OtherGroupKey(NamedTuple):
    """A parsed key. `data` has all its bytes."""

    group_type: str
    record: OtherRecord
    group_id: str
    data: bytes


def parse_other_key(key: bytes) -> OtherGroupKey | None:
    """Parse a key; return None if it does not belong to a streams group. Raises CorruptBatch if it is malformed."""
    kind = _TYPES.get(int.from_bytes(key[:2], "big"))
    if kind is None:
        return None
    end = 4 + int.from_bytes(key[2:4], "big", signed=True)
    if not 4 <= end <= len(key):
        raise CorruptBatch(0, f"the {len(key)}-byte key of a group record has no group id")
    try:
        group_id = key[4:end].decode()
    except UnicodeDecodeError as error:
        raise CorruptBatch(0, f"the {len(key)}-byte key of a group record cannot be read: {error}") from None
    return OtherGroupKey(*kind, group_id, key)


def tombstone_keys(group_type: str, group_id: str, keys: Iterable[OtherGroupKey]) -> list[bytes]:
    """Return the keys that must be erased to remove a group whose records have `keys`, in Kafka's order.

    The keys of the two epochs are included even if there are no such records: Kafka also fails if their tombstones are missing.
    """
    tombstones = {key.data: key.record for key in keys}
    for number, (its_type, record) in _TYPES.items():
        if its_type == group_type and record in (OtherRecord.TARGET_EPOCH, OtherRecord.EPOCH):
            tombstones[INT16.pack(number) + encode_string(group_id)] = record
    return sorted(tombstones, key=tombstones.__getitem__)


def epoch_of(value: bytes) -> int:
    """Return the epoch in the value of an `EPOCH` or `TARGET_EPOCH` record; -1 if the value is too short."""
    return INT32.unpack_from(value, INT16.size)[0] if len(value) >= INT16.size + INT32.size else -1
