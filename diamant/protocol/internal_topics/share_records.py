"""The records of `__share_group_state`: snapshots and updates of the state of share partitions.

A key is the record's type as an int16, then the group's id, the topic's id and the partition. A value is an int16 version and its
fields. A snapshot makes all earlier records of its share partition redundant; a snapshot with a null value removes the state. The
state consists of ids and offsets, never of data from the partition's records.

Source: ShareSnapshotValue, ShareUpdateValue, ShareCoordinatorRecordSerde of Kafka 4.3.
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

from typing import Annotated, NamedTuple

from diamant.protocol.errors import CorruptBatch
from diamant.protocol.primitives import INT16
from diamant.protocol.typed_records.layout import Tag, array_of, layout, read_struct, write_struct
from diamant.protocol.typed_records.wire_types import UNREADABLE, Id, Int8, Int16, Int32, Int64, MalformedRecord, Text

SNAPSHOT, UPDATE = 0, 1
_VERSION = 0


class SharePartitionKey(NamedTuple):
    """A share partition: one partition of a topic, read by one share group."""

    group_id: Text
    topic_id: Id
    partition: Int32


class StateBatch(NamedTuple):
    """The state of the records from `first_offset` to `last_offset`: 0 available, 2 acknowledged, 4 archived."""

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


class ShareSnapshotValue(NamedTuple):
    """The state of a share partition. `start_offset` is -1 before the first fetch; `delivery_complete_count` is -1 if unknown."""

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: Annotated[tuple[StateBatch, ...], array_of(StateBatch)]
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1


class ShareUpdateValue(NamedTuple):
    """The changes since the last snapshot or update. `start_offset` is -1 if it has not changed."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    state_batches: Annotated[tuple[StateBatch, ...], array_of(StateBatch)]
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1


_KEY = layout(SharePartitionKey, _VERSION, False)
_VALUES = {
    SNAPSHOT: layout(ShareSnapshotValue, _VERSION, True),
    UPDATE: layout(ShareUpdateValue, _VERSION, True),
}


def encode_share_record(
    key: SharePartitionKey, value: ShareSnapshotValue | ShareUpdateValue | None
) -> tuple[bytes, bytes | None]:
    """Encode a record; return its key and value. If `value` is None, it is a tombstone with the key of a snapshot."""
    number = UPDATE if isinstance(value, ShareUpdateValue) else SNAPSHOT
    out = bytearray(INT16.pack(number))
    write_struct(_KEY, out, key)
    if value is None:
        return bytes(out), None
    encoded = bytearray(INT16.pack(_VERSION))
    write_struct(_VALUES[number], encoded, value)
    return bytes(out), bytes(encoded)


def parse_share_key(key: bytes) -> SharePartitionKey | None:
    """Parse a record's key; return None for a type of a newer Kafka version. Raises CorruptBatch if the key is malformed."""
    try:
        (number,) = INT16.unpack_from(key)
        return read_struct(_KEY, key, INT16.size)[0] if number in _VALUES else None
    except UNREADABLE as error:
        raise CorruptBatch(
            0, f"the {len(key)}-byte key of a share partition's record cannot be read: {error}"
        ) from None


def parse_share_value(key: bytes, value: bytes) -> ShareSnapshotValue | ShareUpdateValue:
    """Parse the value of a record whose `key` has a known type. Raises CorruptBatch if the value is malformed."""
    try:
        (number,) = INT16.unpack_from(key)
        (version,) = INT16.unpack_from(value)
        if version != _VERSION:
            raise MalformedRecord(f"its version is {version}, expected {_VERSION}")
        return read_struct(_VALUES[number], value, INT16.size)[0]  # type: ignore[no-any-return]
    except UNREADABLE as error:
        reason = f"the {len(value)}-byte value of a share partition's record cannot be read: {error}"
        raise CorruptBatch(0, reason) from None


def coordinator_key(key: SharePartitionKey, topic_id_text: str) -> str:
    """Return the string whose hash selects the partition of the state topic (`SharePartitionKey.asCoordinatorKey`)."""
    return f"{key.group_id}:{topic_id_text}:{key.partition}"
