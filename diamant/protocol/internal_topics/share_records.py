"""The records of `__share_group_state`: snapshots and updates of the state of share partitions.

A key is the record's type as an int16, then the group's id, the topic's id and the partition. A value is an int16 version and its
fields. A snapshot makes all earlier records of its share partition redundant; a null in its place removes the state. The records
hold ids and offsets, never a record's key or value.

Source: ShareSnapshotValue, ShareUpdateValue, ShareCoordinatorRecordSerde of Kafka 4.3.
"""

# No postponed annotations here: the wire types are read from the classes' annotations as they stand.

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
    """The whole state. `start_offset` is -1 until a member has fetched; `delivery_complete_count` is -1 if unknown."""

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: Annotated[tuple[StateBatch, ...], array_of(StateBatch)]
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1


class ShareUpdateValue(NamedTuple):
    """The changes since the last snapshot or update. A start offset of -1 means unchanged."""

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
    """Return the key and value of a record; a value of None is the tombstone of a snapshot."""
    number = UPDATE if isinstance(value, ShareUpdateValue) else SNAPSHOT
    out = bytearray(INT16.pack(number))
    write_struct(_KEY, out, key)
    if value is None:
        return bytes(out), None
    encoded = bytearray(INT16.pack(_VERSION))
    write_struct(_VALUES[number], encoded, value)
    return bytes(out), bytes(encoded)


def parse_share_key(key: bytes) -> SharePartitionKey | None:
    """Return the share partition in a record's key; None for types of a newer Kafka. Raises CorruptBatch if it is malformed."""
    try:
        (number,) = INT16.unpack_from(key)
        return read_struct(_KEY, key, INT16.size)[0] if number in _VALUES else None
    except UNREADABLE as error:
        raise CorruptBatch(
            0, f"the key of a share partition's record, of {len(key)} bytes, cannot be read: {error}"
        ) from None


def parse_share_value(key: bytes, value: bytes) -> ShareSnapshotValue | ShareUpdateValue:
    """Return the value of a record whose `key` is known. Raises CorruptBatch if it is malformed."""
    try:
        (number,) = INT16.unpack_from(key)
        (version,) = INT16.unpack_from(value)
        if version != _VERSION:
            raise MalformedRecord(f"its version is {version}, expected {_VERSION}")
        return read_struct(_VALUES[number], value, INT16.size)[0]  # type: ignore[no-any-return]
    except UNREADABLE as error:
        reason = f"the value of a share partition's record, of {len(value)} bytes, cannot be read: {error}"
        raise CorruptBatch(0, reason) from None


def coordinator_key(key: SharePartitionKey, topic_id_text: str) -> str:
    """Return the text whose hash chooses the partition of the state topic (`SharePartitionKey.asCoordinatorKey`)."""
    return f"{key.group_id}:{topic_id_text}:{key.partition}"
