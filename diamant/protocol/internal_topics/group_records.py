"""The records of `__consumer_offsets`: committed offsets and groups, as Kafka's group coordinator writes them.

A key is the record's type as an int16, then its fields (integers big-endian, strings int16 length + UTF-8). A value is an int16
version and its fields; null is a tombstone. The classes declare the fields (`typed_records/layout.py`); `TYPES` has the versions.

Keys of type 0 are read, but not written. `parse_key` returns None for the types of streams groups (`other_group_keys`) and for
types of later Kafka versions.

    key = parse_key(record.key)
    if isinstance(key, OffsetCommitKey): value = parse_value(key, record.value)

Source: the schemas of Kafka 4.3's group coordinator (GroupCoordinatorRecordSerde, GroupCoordinatorRecordHelpers).
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

from struct import Struct
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.errors import CorruptBatch
from diamant.protocol.primitives import INT16, INT32, INT64, encode_compact_string, encode_string
from diamant.protocol.typed_records import wire_types as wire
from diamant.protocol.typed_records.layout import (
    KafkaName,
    RecordLayout,
    Since,
    Tag,
    array_of,
    layout,
    nullable_struct_of,
    read_struct,
    write_struct,
)

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class OffsetCommitKey(NamedTuple):
    """Types 0 and 1: a group's committed offset for a partition."""

    group_id: Annotated[wire.Text, KafkaName("group")]
    topic: wire.Text
    partition: wire.Int32


class GroupMetadataKey(NamedTuple):
    """Type 2: a classic group with its members."""

    group_id: Annotated[wire.Text, KafkaName("group")]


class ConsumerGroupMetadataKey(NamedTuple):
    """Type 3: the epoch of a consumer group (KIP-848)."""

    group_id: wire.Text


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """Type 4: a consumer group's topic metadata; written by Kafka up to 4.0, erased by later versions."""

    group_id: wire.Text


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """Type 5: a member of a consumer group."""

    group_id: wire.Text
    member_id: wire.Text


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """Type 6: the epoch of a consumer group's target assignment."""

    group_id: wire.Text


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """Type 7: the target assignment of a consumer group's member."""

    group_id: wire.Text
    member_id: wire.Text


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """Type 8: the current assignment of a consumer group's member."""

    group_id: wire.Text
    member_id: wire.Text


class ConsumerGroupRegularExpressionKey(NamedTuple):
    """Type 16: a regular expression that members of a consumer group subscribe to."""

    group_id: wire.Text
    regular_expression: wire.Text


class ShareGroupMemberMetadataKey(NamedTuple):
    """Type 10: a member of a share group (KIP-932)."""

    group_id: wire.Text
    member_id: wire.Text


class ShareGroupMetadataKey(NamedTuple):
    """Type 11: the epoch of a share group."""

    group_id: wire.Text


class ShareGroupTargetAssignmentMetadataKey(NamedTuple):
    """Type 12: the epoch of a share group's target assignment."""

    group_id: wire.Text


class ShareGroupTargetAssignmentMemberKey(NamedTuple):
    """Type 13: the target assignment of a share group's member."""

    group_id: wire.Text
    member_id: wire.Text


class ShareGroupCurrentMemberAssignmentKey(NamedTuple):
    """Type 14: the current assignment of a share group's member."""

    group_id: wire.Text
    member_id: wire.Text


class ShareGroupStatePartitionMetadataKey(NamedTuple):
    """Type 15: the partitions for which a share group has a state in `__share_group_state`."""

    group_id: wire.Text


GroupRecordKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)


SHARE_KEYS = (
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupStatePartitionMetadataKey,
)
"""The classes of the keys of share groups."""


class OffsetCommitValue(NamedTuple):
    """A committed offset. Timestamps are in ms, -1 if there is none. `topic_id` is None if unknown."""

    offset: wire.Int64
    leader_epoch: Annotated[wire.Int32, Since(3, default=NO_LEADER_EPOCH)]
    metadata: wire.Text
    commit_timestamp: wire.Int64
    expire_timestamp: Annotated[wire.Int64, Since(1, last=1)] = NO_TIMESTAMP
    topic_id: Annotated[wire.NullableId, Since(4), Tag(0)] = None


class GroupMetadataMember(NamedTuple):
    """A member of a classic group. `subscription` (its metadata for the group's protocol) and `assignment` are opaque."""

    member_id: wire.Text
    group_instance_id: Annotated[wire.NullableText, Since(3, default=None)]
    client_id: wire.Text
    client_host: wire.Text
    rebalance_timeout_ms: Annotated[wire.Int32, Since(1, default=-1), KafkaName("rebalanceTimeout")]
    session_timeout_ms: Annotated[wire.Int32, KafkaName("sessionTimeout")]
    subscription: wire.Binary
    assignment: wire.Binary


class GroupMetadataValue(NamedTuple):
    """A classic group. An empty one has no protocol, no leader, and the protocol type of its last members or ""."""

    protocol_type: wire.Text
    generation: wire.Int32
    protocol: wire.NullableText
    leader: wire.NullableText
    current_state_timestamp: Annotated[wire.Int64, Since(2)] = NO_TIMESTAMP
    members: Annotated[tuple[GroupMetadataMember, ...], array_of(GroupMetadataMember)] = ()


class TopicPartitions(NamedTuple):
    """Partitions of one topic. `assignment_epochs` is None, or has an epoch for each partition (only in current assignments)."""

    topic_id: wire.Id
    partitions: wire.Int32s
    assignment_epochs: Annotated[tuple[int, ...] | None, wire.INT32_ARRAY, Tag(0)] = None


Assignment: TypeAlias = Annotated[tuple[TopicPartitions, ...], array_of(TopicPartitions)]


class ConsumerGroupMetadataValue(NamedTuple):
    epoch: wire.Int32
    metadata_hash: Annotated[wire.Int64, Tag(0)] = 0


class PartitionRacks(NamedTuple):
    """The racks of a partition's replicas."""

    partition: wire.Int32
    racks: wire.Texts


class TopicMetadata(NamedTuple):
    """The metadata that a consumer group stores about one topic."""

    topic_id: wire.Id
    name: Annotated[wire.Text, KafkaName("topicName")]
    partition_count: Annotated[wire.Int32, KafkaName("numPartitions")]
    racks: Annotated[tuple[PartitionRacks, ...], array_of(PartitionRacks), KafkaName("partitionMetadata")] = ()


class ConsumerGroupPartitionMetadataValue(NamedTuple):
    """The metadata of a group's topics. We do not interpret it; Kafka 4.1 and later neither write nor use it."""

    topics: Annotated[tuple[TopicMetadata, ...], array_of(TopicMetadata)]


class ClassicProtocol(NamedTuple):
    """A protocol that a classic member of a consumer group supports."""

    name: wire.Text
    metadata: wire.Binary


class ClassicMemberMetadata(NamedTuple):
    """The additional metadata of a member that uses the classic protocol."""

    session_timeout_ms: wire.Int32
    supported_protocols: Annotated[tuple[ClassicProtocol, ...], array_of(ClassicProtocol)]


class ConsumerGroupMemberMetadataValue(NamedTuple):
    instance_id: wire.NullableText
    rack_id: wire.NullableText
    client_id: wire.Text
    client_host: wire.Text
    subscribed_topic_names: wire.Texts
    subscribed_topic_regex: wire.NullableText
    rebalance_timeout_ms: wire.Int32
    server_assignor: wire.NullableText
    # Kafka writes the tag even for null.
    classic_member_metadata: Annotated[
        ClassicMemberMetadata | None, nullable_struct_of(ClassicMemberMetadata), Tag(0, is_always_written=True)
    ] = None


class ConsumerGroupTargetAssignmentMetadataValue(NamedTuple):
    """`assignment_timestamp` is the time in ms at which the assignment was computed, or 0 if it is unknown."""

    assignment_epoch: wire.Int32
    assignment_timestamp: Annotated[wire.Int64, Tag(0)] = 0


class ConsumerGroupTargetAssignmentMemberValue(NamedTuple):
    topic_partitions: Assignment


class ConsumerGroupCurrentMemberAssignmentValue(NamedTuple):
    """`state` is Kafka's MemberState: 0 stable, 1 unrevoked partitions, 2 unreleased partitions, 127 unknown."""

    member_epoch: wire.Int32
    previous_member_epoch: wire.Int32
    state: wire.Int8
    assigned_partitions: Assignment
    partitions_pending_revocation: Assignment


class ConsumerGroupRegularExpressionValue(NamedTuple):
    """The topics that match a regular expression, as resolved at metadata offset `version` and time `timestamp` (ms)."""

    topics: wire.Texts
    version: wire.Int64
    timestamp: wire.Int64


class ShareGroupMemberMetadataValue(NamedTuple):
    rack_id: wire.NullableText
    client_id: wire.Text
    client_host: wire.Text
    subscribed_topic_names: wire.Texts


class ShareGroupMetadataValue(NamedTuple):
    epoch: wire.Int32
    metadata_hash: wire.Int64


class ShareGroupTargetAssignmentMetadataValue(NamedTuple):
    """`assignment_timestamp` is the time in ms at which the assignment was computed, or 0 if it is unknown."""

    assignment_epoch: wire.Int32
    assignment_timestamp: Annotated[wire.Int64, Tag(0)] = 0


class AssignedPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: wire.Id
    partitions: wire.Int32s


class ShareGroupTargetAssignmentMemberValue(NamedTuple):
    topic_partitions: Annotated[tuple[AssignedPartitions, ...], array_of(AssignedPartitions)]


class ShareGroupCurrentMemberAssignmentValue(NamedTuple):
    """`state` is 0 (stable), the only state that Kafka writes for a member of a share group."""

    member_epoch: wire.Int32
    previous_member_epoch: wire.Int32
    state: wire.Int8
    assigned_partitions: Annotated[tuple[AssignedPartitions, ...], array_of(AssignedPartitions)]


class NamedPartitions(NamedTuple):
    """Partitions of one topic, with the topic's name."""

    topic_id: wire.Id
    topic_name: wire.Text
    partitions: wire.Int32s


class NamedTopic(NamedTuple):
    """A topic's id and name."""

    topic_id: wire.Id
    topic_name: wire.Text


class ShareGroupStatePartitionMetadataValue(NamedTuple):
    """Topics with partitions whose state is being initialized, is initialized, or is being deleted."""

    initializing_topics: Annotated[tuple[NamedPartitions, ...], array_of(NamedPartitions)]
    initialized_topics: Annotated[tuple[NamedPartitions, ...], array_of(NamedPartitions)]
    deleting_topics: Annotated[tuple[NamedTopic, ...], array_of(NamedTopic)]


GroupRecordValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
    | ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)


class GroupRecordType(NamedTuple):
    """A type of record: its key's layout, its value's class, and the newest, written and first flexible version of the value."""

    key: RecordLayout
    value_class: type
    max_version: int = 0
    written_version: int = 0
    first_flexible: int = 0


TYPES = {
    1: GroupRecordType(layout(OffsetCommitKey, 0, False), OffsetCommitValue, 4, 4, 4),
    2: GroupRecordType(layout(GroupMetadataKey, 0, False), GroupMetadataValue, 4, 3, 4),
    3: GroupRecordType(layout(ConsumerGroupMetadataKey, 0, False), ConsumerGroupMetadataValue),
    4: GroupRecordType(layout(ConsumerGroupPartitionMetadataKey, 0, False), ConsumerGroupPartitionMetadataValue),
    5: GroupRecordType(layout(ConsumerGroupMemberMetadataKey, 0, False), ConsumerGroupMemberMetadataValue),
    6: GroupRecordType(
        layout(ConsumerGroupTargetAssignmentMetadataKey, 0, False), ConsumerGroupTargetAssignmentMetadataValue
    ),
    7: GroupRecordType(
        layout(ConsumerGroupTargetAssignmentMemberKey, 0, False), ConsumerGroupTargetAssignmentMemberValue
    ),
    8: GroupRecordType(
        layout(ConsumerGroupCurrentMemberAssignmentKey, 0, False), ConsumerGroupCurrentMemberAssignmentValue
    ),
    10: GroupRecordType(layout(ShareGroupMemberMetadataKey, 0, False), ShareGroupMemberMetadataValue),
    11: GroupRecordType(layout(ShareGroupMetadataKey, 0, False), ShareGroupMetadataValue),
    12: GroupRecordType(
        layout(ShareGroupTargetAssignmentMetadataKey, 0, False), ShareGroupTargetAssignmentMetadataValue
    ),
    13: GroupRecordType(layout(ShareGroupTargetAssignmentMemberKey, 0, False), ShareGroupTargetAssignmentMemberValue),
    14: GroupRecordType(layout(ShareGroupCurrentMemberAssignmentKey, 0, False), ShareGroupCurrentMemberAssignmentValue),
    15: GroupRecordType(layout(ShareGroupStatePartitionMetadataKey, 0, False), ShareGroupStatePartitionMetadataValue),
    16: GroupRecordType(layout(ConsumerGroupRegularExpressionKey, 0, False), ConsumerGroupRegularExpressionValue),
}
_NUMBERS = {record_type.key.record_class: number for number, record_type in TYPES.items()}
_OF_VALUE = {record_type.value_class: record_type for record_type in TYPES.values()}


def parse_key(key: bytes) -> GroupRecordKey | None:
    """Parse a record's key; return None for types not in `TYPES`. Raises CorruptBatch if the key is malformed."""
    try:
        (number,) = INT16.unpack_from(key)
        record_type = TYPES.get(number or 1)
        if record_type is None:
            return None
        return read_struct(record_type.key, key, 2)[0]  # type: ignore[no-any-return]
    except wire.UNREADABLE as error:
        raise CorruptBatch(0, f"the {len(key)}-byte key of a group record cannot be read: {error}") from None


def parse_value(key: GroupRecordKey, value: bytes) -> Any:
    """Parse the value of the record with `key`. Its class is named like the key's, but with Value instead of Key.

    Raises CorruptBatch if the value is malformed or has an unknown version. Bytes after the known fields are ignored.
    """
    record_type = TYPES[_NUMBERS[type(key)]]
    try:
        (version,) = INT16.unpack_from(value)
        if not 0 <= version <= record_type.max_version:
            raise wire.MalformedRecord(f"its version is {version}, expected 0 to {record_type.max_version}")
        parsed, _ = read_struct(_layout(record_type, version), value, 2)
    except wire.UNREADABLE as error:
        reason = f"the {len(value)}-byte value of a record with {type(key).__name__} cannot be read: {error}"
        raise CorruptBatch(0, reason) from None
    if isinstance(parsed, GroupMetadataValue) and version == 0:
        # As in Kafka's loader: version 0 has no rebalance timeout, so the session timeout replaces it.
        members = (member._replace(rebalance_timeout_ms=member.session_timeout_ms) for member in parsed.members)
        return parsed._replace(members=tuple(members))
    return parsed


def parse_offset_commit_value(value: bytes) -> OffsetCommitValue:
    """Parse a committed offset, like `parse_value`. Raises CorruptBatch if it is malformed."""
    return parse_value(_ANY_OFFSET, value)  # type: ignore[no-any-return]


_ANY_OFFSET = OffsetCommitKey("", "", 0)


def _layout(record_type: GroupRecordType, version: int) -> RecordLayout:
    return layout(record_type.value_class, version, version >= record_type.first_flexible)


def encode_record(key: GroupRecordKey, value: GroupRecordValue | None) -> tuple[bytes, bytes | None]:
    """Encode a record; return its key and value. A value of None makes it a tombstone.

    Raises OverflowError if a string in a field with an int16 length has more than 32,767 bytes.
    """
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: GroupRecordKey) -> bytes:
    """Encode the key of a record."""
    number = _NUMBERS[type(key)]
    out = bytearray(INT16.pack(number))
    write_struct(TYPES[number].key, out, key)
    return bytes(out)


def encode_value(value: GroupRecordValue) -> bytes:
    """Encode the value of a record in the version that Kafka 4.3 writes."""
    if isinstance(value, OffsetCommitValue):
        return encode_offset_commit_value(*value)
    record_type = _OF_VALUE[type(value)]
    version = record_type.written_version
    out = bytearray(INT16.pack(version))
    write_struct(_layout(record_type, version), out, value)
    return bytes(out)


# ---- committed offsets, encoded by hand since there are millions ----------------------------------------------------


def encode_offset_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed offset."""
    return offset_commit_key_front(group_id, topic) + INT32.pack(partition)


def offset_commit_key_front(group_id: str, topic: str) -> bytes:
    """Encode the prefix that all keys for a group and a topic share. In a key, the partition follows as an int32."""
    return b"\x00\x01" + encode_string(group_id) + encode_string(topic)


_COMMIT_V1_HEAD = Struct(">hq")
_COMMIT_V1_TAIL = Struct(">qq")
_COMMIT_V4 = Struct(">hqi")


def encode_offset_commit_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    expire_timestamp: int = NO_TIMESTAMP,
    topic_id: UUID | None = None,
) -> bytes:
    """Encode a committed offset in version 4; if it has an expire timestamp, in version 1, without leader epoch and topic id."""
    if expire_timestamp != NO_TIMESTAMP:
        head = _COMMIT_V1_HEAD.pack(1, offset)
        return head + encode_string(metadata) + _COMMIT_V1_TAIL.pack(commit_timestamp, expire_timestamp)
    head = _COMMIT_V4.pack(4, offset, leader_epoch) + encode_compact_string(metadata) + INT64.pack(commit_timestamp)
    return head + (b"\x00" if topic_id is None else b"\x01\x00\x10" + topic_id.bytes)
