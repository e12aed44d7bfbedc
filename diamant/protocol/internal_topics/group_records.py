"""The records of `__consumer_offsets`: committed offsets and groups, as Kafka's group coordinator writes them.

A key is an int16 that is the type of the record, then its fields (integers big-endian, strings int16 length + UTF-8).
A value is an int16 version and its fields; null is a tombstone. Versions marked F are flexible: compact strings and
arrays, tagged fields at the end of every struct.

    type  key                        value, the versions read, and the one written
    0, 1  group, topic, partition    OffsetCommitValue 0-3, 4 F        4, or 1 with an expire timestamp
       2  group                      GroupMetadataValue 0-3, 4 F       3
       3  group                      ConsumerGroupMetadataValue 0 F    0
       4  group                      ConsumerGroupPartitionMetadataValue 0 F    read only by brokers before 4.1
       5  group, member              ConsumerGroupMemberMetadataValue 0 F
       6  group                      ConsumerGroupTargetAssignmentMetadataValue 0 F
       7  group, member              ConsumerGroupTargetAssignmentMemberValue 0 F
       8  group, member              ConsumerGroupCurrentMemberAssignmentValue 0 F
      16  group, regular expression  ConsumerGroupRegularExpressionValue 0 F

    OffsetCommitValue      offset int64, [3+: leader epoch int32], metadata string, commit timestamp int64,
                           [1: expire timestamp int64], [4: tag 0 topic id uuid]
    GroupMetadataValue     protocol type string, generation int32, protocol string?, leader string?,
                           [2+: current state timestamp int64], members of
                             member id string, [3+: instance id string?], client id string, client host string,
                             [1+: rebalance timeout int32], session timeout int32, subscription bytes, assignment bytes

Key type 0 is only read. All else (share and streams groups, what later versions add) is left alone: `parse_key` gives None.

    key = parse_key(record.key)
    if isinstance(key, OffsetCommitKey): value = parse_value(key, record.value)

Source: the schemas of Kafka 4.3's group coordinator (GroupCoordinatorRecordSerde, GroupCoordinatorRecordHelpers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.errors import CorruptBatch, ProtocolError
from diamant.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    encode_compact_string,
    encode_string,
    encode_uuid,
    encode_uvarint,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_uuid,
    read_uvarint,
)

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
CONSUMER_GROUP_METADATA = 3
CONSUMER_GROUP_PARTITION_METADATA = 4
CONSUMER_GROUP_MEMBER_METADATA = 5
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
CONSUMER_GROUP_REGULAR_EXPRESSION = 16

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

# ---- keys ----------------------------------------------------------------------------------------------------------


class OffsetCommitKey(NamedTuple):
    """Types 0 and 1: the offset that a group has committed for a partition."""

    group_id: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """Type 2: a classic group with its members."""

    group_id: str


class ConsumerGroupMetadataKey(NamedTuple):
    """Type 3: the epoch of a consumer group (KIP-848)."""

    group_id: str


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """Type 4: topics as a consumer group knew them; written by Kafka up to 4.0, erased by later ones."""

    group_id: str


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """Type 5: a member of a consumer group."""

    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """Type 6: the epoch of a consumer group's target assignment."""

    group_id: str


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """Type 7: what a member of a consumer group is to have."""

    group_id: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """Type 8: what a member of a consumer group has."""

    group_id: str
    member_id: str


class ConsumerGroupRegularExpressionKey(NamedTuple):
    """Type 16: a regular expression that members of a consumer group subscribe to."""

    group_id: str
    regular_expression: str


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
)

# ---- values --------------------------------------------------------------------------------------------------------


class OffsetCommitValue(NamedTuple):
    """A committed offset. Timestamps are ms, -1: none. `topic_id` is None where it is not known."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: UUID | None = None


class GroupMetadataMember(NamedTuple):
    """A member of a classic group: `subscription` is its metadata for the group's protocol, opaque as `assignment`."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(NamedTuple):
    """A classic group. An empty one has protocol type "" (or what its members had), no protocol, leader and members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = NO_TIMESTAMP
    members: tuple[GroupMetadataMember, ...] = ()


class TopicPartitions(NamedTuple):
    """Partitions of one topic; `assignment_epochs` (tag 0, current assignments only) are of the same length or None."""

    topic_id: UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


class ConsumerGroupMetadataValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class ConsumerGroupPartitionMetadataValue(NamedTuple):
    """Not interpreted: (topic id, name, partitions) of each topic."""

    topics: tuple[tuple[UUID | None, str, int], ...]


class ClassicProtocol(NamedTuple):
    """A protocol that a classic member of a consumer group supports."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(NamedTuple):
    """Tag 0 of a member that uses the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


class ConsumerGroupMemberMetadataValue(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


class ConsumerGroupTargetAssignmentMetadataValue(NamedTuple):
    """`assignment_timestamp` (tag 0): ms at which the assignment was computed, 0 if not known."""

    assignment_epoch: int
    assignment_timestamp: int = 0


class ConsumerGroupTargetAssignmentMemberValue(NamedTuple):
    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentValue(NamedTuple):
    """`state`: MemberState of Kafka, 0 stable, 1 unrevoked partitions, 2 unreleased partitions, 127 unknown."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...]


class ConsumerGroupRegularExpressionValue(NamedTuple):
    """`version` is the metadata offset at which `topics` were found, `timestamp` the ms of that."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


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
)

# ---- reading -------------------------------------------------------------------------------------------------------


def parse_key(key: bytes) -> GroupRecordKey | None:
    """Return what a record is about, None for a type that is none of the above. CorruptBatch if it cannot be read."""
    try:
        (record_type,) = INT16.unpack_from(key)
        view = memoryview(key)
        end = len(view)
        if record_type in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            group_id, position = _text(view, 2, end)
            topic, position = _text(view, position, end)
            (partition,) = INT32.unpack_from(view, position)
            return OffsetCommitKey(group_id, topic, partition)
        key_class = _KEYS.get(record_type)
        if key_class is None:
            return None
        fields = []
        position = 2
        for _ in key_class._fields:
            field, position = _text(view, position, end)
            fields.append(field)
        return key_class(*fields)  # type: ignore[no-any-return]
    except (IndexError, StructError, UnicodeDecodeError, ProtocolError) as error:
        raise CorruptBatch(0, f"the key of a group record, of {len(key)} bytes, cannot be read: {error}") from None


def parse_value(key: GroupRecordKey, value: bytes) -> Any:
    """Return the value that belongs to `key` (an instance of the class named like the key's, with Value for Key).

    CorruptBatch if it cannot be read or its version is not known. Bytes after the known fields are tolerated.
    """
    parse = _PARSERS[type(key)]
    try:
        (version,) = INT16.unpack_from(value)
        return parse(version, memoryview(value), 2)
    except (IndexError, StructError, UnicodeDecodeError, ProtocolError) as error:
        reason = f"the value of a {type(key).__name__}, of {len(value)} bytes, cannot be read: {error}"
        raise CorruptBatch(0, reason) from None


def parse_offset_commit_value(value: bytes) -> OffsetCommitValue:
    """`parse_value` for a committed offset. CorruptBatch if it cannot be read."""
    try:
        (version,) = INT16.unpack_from(value)
        return _parse_offset_commit(version, memoryview(value), 2)
    except (IndexError, StructError, UnicodeDecodeError, ProtocolError) as error:
        raise CorruptBatch(0, f"the value of an offset, of {len(value)} bytes, cannot be read: {error}") from None


_Position: TypeAlias = tuple[Any, int]


def _text(view: memoryview, position: int, end: int) -> tuple[str, int]:
    text, position = read_string(view, position, end)
    if text is None:
        raise ProtocolError(f"a string is null before position {position}")
    return text, position


def _compact_text(view: memoryview, position: int) -> tuple[str, int]:
    text, position = read_compact_string(view, position, len(view))
    if text is None:
        raise ProtocolError(f"a string is null before position {position}")
    return text, position


def _bytes(view: memoryview, position: int) -> tuple[bytes, int]:
    (size,) = INT32.unpack_from(view, position)
    position += 4
    return _slice(view, position, max(size, 0))


def _compact_bytes(view: memoryview, position: int) -> tuple[bytes, int]:
    size, position = read_uvarint(view, position)
    return _slice(view, position, max(size - 1, 0))


def _slice(view: memoryview, position: int, size: int) -> tuple[bytes, int]:
    if size > len(view) - position:
        raise ProtocolError(f"{size} bytes at position {position}, {len(view) - position} bytes left")
    return view[position : position + size].tobytes(), position + size


def _compact_array(
    view: memoryview, position: int, read: Callable[[memoryview, int], _Position]
) -> tuple[tuple[Any, ...], int]:
    count, position = read_compact_array_length(view, position, len(view))
    elements = []
    for _ in range(count):
        element, position = read(view, position)
        elements.append(element)
    return tuple(elements), position


def _int32(view: memoryview, position: int) -> tuple[int, int]:
    return INT32.unpack_from(view, position)[0], position + 4


def _tags(view: memoryview, position: int) -> tuple[dict[int, memoryview], int]:
    """The tagged fields of a struct: tag to content."""
    count, position = read_uvarint(view, position)
    found = {}
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        if size > len(view) - position:
            raise ProtocolError(f"tagged field of {size} bytes at position {position}, {len(view) - position} left")
        found[tag] = view[position : position + size]
        position += size
    return found, position


def _check_version(version: int, highest: int) -> None:
    if not 0 <= version <= highest:
        raise ProtocolError(f"its version is {version}, expected 0 to {highest}")


_COMMIT_V3_HEAD = Struct(">qi")


def _parse_offset_commit(version: int, view: memoryview, position: int) -> OffsetCommitValue:
    _check_version(version, 4)
    leader_epoch = NO_LEADER_EPOCH
    expire_timestamp = NO_TIMESTAMP
    topic_id = None
    if version >= 3:
        offset, leader_epoch = _COMMIT_V3_HEAD.unpack_from(view, position)
        position += 12
    else:
        (offset,) = INT64.unpack_from(view, position)
        position += 8
    metadata, position = _compact_text(view, position) if version >= 4 else _text(view, position, len(view))
    (commit_timestamp,) = INT64.unpack_from(view, position)
    position += 8
    if version == 1:
        (expire_timestamp,) = INT64.unpack_from(view, position)
    elif version >= 4:
        tags, _ = _tags(view, position)
        if 0 in tags:
            topic_id, _ = read_uuid(tags[0], 0, len(tags[0]))
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id)


def _parse_group_metadata(version: int, view: memoryview, position: int) -> GroupMetadataValue:
    _check_version(version, 4)
    is_flexible = version >= 4
    end = len(view)
    read_nullable = read_compact_string if is_flexible else read_string
    protocol_type, position = read_nullable(view, position, end)
    generation, position = _int32(view, position)
    protocol, position = read_nullable(view, position, end)
    leader, position = read_nullable(view, position, end)
    timestamp = NO_TIMESTAMP
    if version >= 2:
        (timestamp,) = INT64.unpack_from(view, position)
        position += 8
    count, position = (read_compact_array_length if is_flexible else read_array_length)(view, position, end)
    members = []
    for _ in range(count):
        member, position = _read_member(version, view, position)
        members.append(member)
    if is_flexible:
        _tags(view, position)
    return GroupMetadataValue(protocol_type or "", generation, protocol, leader, timestamp, tuple(members))


def _read_member(version: int, view: memoryview, position: int) -> tuple[GroupMetadataMember, int]:
    is_flexible = version >= 4
    end = len(view)
    read_nullable = read_compact_string if is_flexible else read_string
    read_bytes = _compact_bytes if is_flexible else _bytes
    member_id, position = read_nullable(view, position, end)
    instance_id = None
    if version >= 3:
        instance_id, position = read_nullable(view, position, end)
    client_id, position = read_nullable(view, position, end)
    client_host, position = read_nullable(view, position, end)
    rebalance_timeout = -1
    if version >= 1:
        rebalance_timeout, position = _int32(view, position)
    session_timeout, position = _int32(view, position)
    subscription, position = read_bytes(view, position)
    assignment, position = read_bytes(view, position)
    if is_flexible:
        _, position = _tags(view, position)
    member = GroupMetadataMember(
        member_id or "",
        instance_id,
        client_id or "",
        client_host or "",
        # Kafka's loader: version 0 has no rebalance timeout, the session's serves.
        session_timeout if rebalance_timeout == -1 else rebalance_timeout,
        session_timeout,
        subscription,
        assignment,
    )
    return member, position


def _parse_group_epoch(version: int, view: memoryview, position: int) -> ConsumerGroupMetadataValue:
    _check_version(version, 0)
    epoch, position = _int32(view, position)
    tags, _ = _tags(view, position)
    return ConsumerGroupMetadataValue(epoch, INT64.unpack_from(tags[0])[0] if 0 in tags else 0)


def _parse_partition_metadata(version: int, view: memoryview, position: int) -> ConsumerGroupPartitionMetadataValue:
    _check_version(version, 0)
    topics, position = _compact_array(view, position, _read_topic_metadata)
    _tags(view, position)
    return ConsumerGroupPartitionMetadataValue(topics)


def _read_topic_metadata(view: memoryview, position: int) -> tuple[tuple[UUID | None, str, int], int]:
    topic_id, position = read_uuid(view, position, len(view))
    name, position = _compact_text(view, position)
    partition_count, position = _int32(view, position)
    _, position = _compact_array(view, position, _read_partition_racks)
    _, position = _tags(view, position)
    return (topic_id, name, partition_count), position


def _read_partition_racks(view: memoryview, position: int) -> _Position:
    partition, position = _int32(view, position)
    racks, position = _compact_array(view, position, _compact_text)
    _, position = _tags(view, position)
    return (partition, racks), position


def _parse_member_metadata(version: int, view: memoryview, position: int) -> ConsumerGroupMemberMetadataValue:
    _check_version(version, 0)
    end = len(view)
    instance_id, position = read_compact_string(view, position, end)
    rack_id, position = read_compact_string(view, position, end)
    client_id, position = _compact_text(view, position)
    client_host, position = _compact_text(view, position)
    names, position = _compact_array(view, position, _compact_text)
    regex, position = read_compact_string(view, position, end)
    rebalance_timeout, position = _int32(view, position)
    assignor, position = read_compact_string(view, position, end)
    tags, _ = _tags(view, position)
    classic = _parse_classic_member(tags[0]) if 0 in tags else None
    return ConsumerGroupMemberMetadataValue(
        instance_id, rack_id, client_id, client_host, names, regex, rebalance_timeout, assignor, classic
    )


def _parse_classic_member(view: memoryview) -> ClassicMemberMetadata | None:
    # One byte says whether the struct is there.
    if view[0] != 1:
        return None
    session_timeout, position = _int32(view, 1)
    protocols, position = _compact_array(view, position, _read_classic_protocol)
    _tags(view, position)
    return ClassicMemberMetadata(session_timeout, protocols)


def _read_classic_protocol(view: memoryview, position: int) -> _Position:
    name, position = _compact_text(view, position)
    metadata, position = _compact_bytes(view, position)
    _, position = _tags(view, position)
    return ClassicProtocol(name, metadata), position


def _parse_target_metadata(version: int, view: memoryview, position: int) -> ConsumerGroupTargetAssignmentMetadataValue:
    _check_version(version, 0)
    epoch, position = _int32(view, position)
    tags, _ = _tags(view, position)
    return ConsumerGroupTargetAssignmentMetadataValue(epoch, INT64.unpack_from(tags[0])[0] if 0 in tags else 0)


def _parse_target_member(version: int, view: memoryview, position: int) -> ConsumerGroupTargetAssignmentMemberValue:
    _check_version(version, 0)
    topics, position = _compact_array(view, position, _read_topic_partitions)
    _tags(view, position)
    return ConsumerGroupTargetAssignmentMemberValue(topics)


def _read_topic_partitions(view: memoryview, position: int) -> _Position:
    topic_id, position = read_uuid(view, position, len(view))
    partitions, position = _compact_array(view, position, _int32)
    tags, position = _tags(view, position)
    epochs = _compact_array(tags[0], 0, _int32)[0] if 0 in tags else None
    return TopicPartitions(UUID(int=0) if topic_id is None else topic_id, partitions, epochs), position


def _parse_current_assignment(
    version: int, view: memoryview, position: int
) -> ConsumerGroupCurrentMemberAssignmentValue:
    _check_version(version, 0)
    epoch, previous, state = _CURRENT_HEAD.unpack_from(view, position)
    assigned, position = _compact_array(view, position + _CURRENT_HEAD.size, _read_topic_partitions)
    pending, position = _compact_array(view, position, _read_topic_partitions)
    _tags(view, position)
    return ConsumerGroupCurrentMemberAssignmentValue(epoch, previous, state, assigned, pending)


def _parse_regular_expression(version: int, view: memoryview, position: int) -> ConsumerGroupRegularExpressionValue:
    _check_version(version, 0)
    topics, position = _compact_array(view, position, _compact_text)
    metadata_version, timestamp = _REGEX_TAIL.unpack_from(view, position)
    _tags(view, position + _REGEX_TAIL.size)
    return ConsumerGroupRegularExpressionValue(topics, metadata_version, timestamp)


_CURRENT_HEAD = Struct(">iib")
_REGEX_TAIL = Struct(">qq")

_KEYS: dict[int, Any] = {
    GROUP_METADATA: GroupMetadataKey,
    CONSUMER_GROUP_METADATA: ConsumerGroupMetadataKey,
    CONSUMER_GROUP_PARTITION_METADATA: ConsumerGroupPartitionMetadataKey,
    CONSUMER_GROUP_MEMBER_METADATA: ConsumerGroupMemberMetadataKey,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: ConsumerGroupTargetAssignmentMetadataKey,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: ConsumerGroupTargetAssignmentMemberKey,
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: ConsumerGroupCurrentMemberAssignmentKey,
    CONSUMER_GROUP_REGULAR_EXPRESSION: ConsumerGroupRegularExpressionKey,
}
_TYPES: dict[type, int] = {key_class: record_type for record_type, key_class in _KEYS.items()}

_PARSERS: dict[type, Callable[[int, memoryview, int], Any]] = {
    OffsetCommitKey: _parse_offset_commit,
    GroupMetadataKey: _parse_group_metadata,
    ConsumerGroupMetadataKey: _parse_group_epoch,
    ConsumerGroupPartitionMetadataKey: _parse_partition_metadata,
    ConsumerGroupMemberMetadataKey: _parse_member_metadata,
    ConsumerGroupTargetAssignmentMetadataKey: _parse_target_metadata,
    ConsumerGroupTargetAssignmentMemberKey: _parse_target_member,
    ConsumerGroupCurrentMemberAssignmentKey: _parse_current_assignment,
    ConsumerGroupRegularExpressionKey: _parse_regular_expression,
}

# ---- writing -------------------------------------------------------------------------------------------------------


def encode_record(key: GroupRecordKey, value: GroupRecordValue | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a record, the value None for a tombstone. OverflowError for strings over 32,767 bytes
    where the format cannot hold them.
    """
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: GroupRecordKey) -> bytes:
    """Return the key of a record."""
    if isinstance(key, OffsetCommitKey):
        return encode_offset_commit_key(*key)
    return INT16.pack(_TYPES[type(key)]) + b"".join([encode_string(field) for field in key])


def encode_offset_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key of a committed offset."""
    return offset_commit_key_front(group_id, topic) + INT32.pack(partition)


def offset_commit_key_front(group_id: str, topic: str) -> bytes:
    """Return what the keys of a topic's partitions have in common; the partition follows as an int32."""
    return b"\x00\x01" + encode_string(group_id) + encode_string(topic)


def encode_offset_commit_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    expire_timestamp: int = NO_TIMESTAMP,
    topic_id: UUID | None = None,
) -> bytes:
    """Return a committed offset: version 4, or 1 (which has no leader epoch and no topic id) with an expire timestamp."""
    if expire_timestamp != NO_TIMESTAMP:
        head = _COMMIT_V1_HEAD.pack(1, offset)
        return head + encode_string(metadata) + _COMMIT_V1_TAIL.pack(commit_timestamp, expire_timestamp)
    head = _COMMIT_V4.pack(4, offset, leader_epoch) + encode_compact_string(metadata) + INT64.pack(commit_timestamp)
    return head + (b"\x00" if topic_id is None else b"\x01\x00\x10" + topic_id.bytes)


def encode_value(value: GroupRecordValue) -> bytes:
    """Return the value of a record, in the version that Kafka 4.3 writes."""
    return _ENCODERS[type(value)](value)


_COMMIT_V1_HEAD = Struct(">hq")
_COMMIT_V1_TAIL = Struct(">qq")
_COMMIT_V4 = Struct(">hqi")


def _encode_offset_commit(value: OffsetCommitValue) -> bytes:
    return encode_offset_commit_value(*value)


def _encode_group_metadata(value: GroupMetadataValue) -> bytes:
    parts = [
        b"\x00\x03",
        encode_string(value.protocol_type),
        INT32.pack(value.generation),
        encode_string(value.protocol),
        encode_string(value.leader),
        INT64.pack(value.current_state_timestamp),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            encode_string(member.member_id),
            encode_string(member.group_instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(len(member.subscription)),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _encode_group_epoch(value: ConsumerGroupMetadataValue) -> bytes:
    tags = _encode_tags({0: INT64.pack(value.metadata_hash)} if value.metadata_hash else {})
    return b"\x00\x00" + INT32.pack(value.epoch) + tags


def _encode_partition_metadata(value: ConsumerGroupPartitionMetadataValue) -> bytes:
    topics = [
        encode_uuid(topic_id) + encode_compact_string(name) + INT32.pack(count) + b"\x01\x00"
        for topic_id, name, count in value.topics
    ]
    return b"\x00\x00" + _encode_compact_array(topics) + b"\x00"


def _encode_member_metadata(value: ConsumerGroupMemberMetadataValue) -> bytes:
    classic = value.classic_member_metadata
    return b"".join(
        (
            b"\x00\x00",
            encode_compact_string(value.instance_id),
            encode_compact_string(value.rack_id),
            encode_compact_string(value.client_id),
            encode_compact_string(value.client_host),
            _encode_compact_array([encode_compact_string(name) for name in value.subscribed_topic_names]),
            encode_compact_string(value.subscribed_topic_regex),
            INT32.pack(value.rebalance_timeout_ms),
            encode_compact_string(value.server_assignor),
            # Kafka writes the tag for null as well.
            _encode_tags({0: b"\x00" if classic is None else _encode_classic_member(classic)}),
        )
    )


def _encode_classic_member(classic: ClassicMemberMetadata) -> bytes:
    protocols = [
        encode_compact_string(name) + encode_uvarint(len(metadata) + 1) + metadata + b"\x00"
        for name, metadata in classic.supported_protocols
    ]
    return b"\x01" + INT32.pack(classic.session_timeout_ms) + _encode_compact_array(protocols) + b"\x00"


def _encode_target_metadata(value: ConsumerGroupTargetAssignmentMetadataValue) -> bytes:
    tags = _encode_tags({0: INT64.pack(value.assignment_timestamp)} if value.assignment_timestamp else {})
    return b"\x00\x00" + INT32.pack(value.assignment_epoch) + tags


def _encode_target_member(value: ConsumerGroupTargetAssignmentMemberValue) -> bytes:
    return b"\x00\x00" + _encode_topic_partitions(value.topic_partitions) + b"\x00"


def _encode_current_assignment(value: ConsumerGroupCurrentMemberAssignmentValue) -> bytes:
    return b"".join(
        (
            b"\x00\x00",
            _CURRENT_HEAD.pack(value.member_epoch, value.previous_member_epoch, value.state),
            _encode_topic_partitions(value.assigned_partitions),
            _encode_topic_partitions(value.partitions_pending_revocation),
            b"\x00",
        )
    )


def _encode_regular_expression(value: ConsumerGroupRegularExpressionValue) -> bytes:
    topics = _encode_compact_array([encode_compact_string(topic) for topic in value.topics])
    return b"\x00\x00" + topics + _REGEX_TAIL.pack(value.version, value.timestamp) + b"\x00"


def _encode_topic_partitions(topics: Sequence[TopicPartitions]) -> bytes:
    encoded = []
    for topic_id, partitions, epochs in topics:
        tags = _encode_tags({} if epochs is None else {0: _encode_int32s(epochs)})
        encoded.append(topic_id.bytes + _encode_int32s(partitions) + tags)
    return _encode_compact_array(encoded)


def _encode_int32s(values: Sequence[int]) -> bytes:
    return encode_uvarint(len(values) + 1) + b"".join([INT32.pack(value) for value in values])


def _encode_compact_array(elements: Sequence[bytes]) -> bytes:
    return encode_uvarint(len(elements) + 1) + b"".join(elements)


def _encode_tags(fields: dict[int, bytes]) -> bytes:
    parts = [encode_uvarint(tag) + encode_uvarint(len(content)) + content for tag, content in fields.items()]
    return encode_uvarint(len(parts)) + b"".join(parts)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    OffsetCommitValue: _encode_offset_commit,
    GroupMetadataValue: _encode_group_metadata,
    ConsumerGroupMetadataValue: _encode_group_epoch,
    ConsumerGroupPartitionMetadataValue: _encode_partition_metadata,
    ConsumerGroupMemberMetadataValue: _encode_member_metadata,
    ConsumerGroupTargetAssignmentMetadataValue: _encode_target_metadata,
    ConsumerGroupTargetAssignmentMemberValue: _encode_target_member,
    ConsumerGroupCurrentMemberAssignmentValue: _encode_current_assignment,
    ConsumerGroupRegularExpressionValue: _encode_regular_expression,
}
