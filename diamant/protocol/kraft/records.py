"""The records of `__cluster_metadata-0`, a KRaft controller's metadata of topics, configs, users and brokers.

In the log and in snapshots, a record's value is:

    uvarint  frame version   1
    uvarint  api key         type of the record, see `RECORD_TYPES`
    uvarint  record version
    ...      the version's fields, in the order of the class below
    uvarint  number of tagged fields, then for each, by ascending tag: uvarint tag, uvarint size, content

The classes declare the fields (`typed_records/layout.py`), with Kafka's defaults. Layouts are those of Kafka 4.4.0
(metadata.version 7 to 33).

    TopicRecord(name="foo", topic_id=UUID(...))    01 02 00  04 66 6f 6f  <16 bytes>  00
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

import struct
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.typed_records import wire_types as wire
from diamant.protocol.typed_records.frozen_record import FrozenRecord
from diamant.protocol.typed_records.layout import RecordLayout, Since, Tag, array_of, layout, read_struct, write_struct

FRAME_VERSION = 1

MIN_METADATA_VERSION = 7
"""3.3-IV3, the minimum in Kafka 4."""
MAX_METADATA_VERSION = 33
"""4.4-IV2, the level at which Kafka 4.4 formats directories."""

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""Value of PartitionChangeRecord.leader in a record that does not change the leader."""

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
"""Values of ConfigRecord.resource_type (`ConfigResource.Type`). A broker's name is its decimal id, or `""` for all brokers."""


class Endpoint(NamedTuple):
    """A listener of a broker or controller. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: wire.Text
    host: wire.Text
    port: wire.Uint16
    security_protocol: wire.Int16 = 0


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker or controller supports."""

    name: wire.Text
    min_supported_version: wire.Int16
    max_supported_version: wire.Int16


class QuotaEntity(NamedTuple):
    """The entity of a quota. Its type is `user`, `client-id` or `ip`; its name is None for the default of that type."""

    entity_type: wire.Text
    entity_name: wire.NullableText


# Encoded arrays are cached, because partitions have few distinct ones.
Int32s: TypeAlias = Annotated[tuple[int, ...], wire.remembering(wire.array_type(wire.INT32))]
NullableInt32s: TypeAlias = Annotated[
    tuple[int, ...] | None, wire.remembering(wire.array_type(wire.INT32, is_nullable=True))
]
Ids: TypeAlias = Annotated[tuple[UUID, ...], wire.remembering(wire.array_type(wire.UUID_TYPE))]
NullableIds: TypeAlias = Annotated[
    tuple[UUID, ...] | None, wire.remembering(wire.array_type(wire.UUID_TYPE, is_nullable=True))
]
Endpoints: TypeAlias = Annotated[tuple[Endpoint, ...], array_of(Endpoint)]
FeatureRanges: TypeAlias = Annotated[tuple[FeatureRange, ...], array_of(FeatureRange)]
QuotaEntities: TypeAlias = Annotated[tuple[QuotaEntity, ...], array_of(QuotaEntity)]


class RegisterBrokerRecord(FrozenRecord):
    """A broker process has started. `broker_epoch` is the record's own offset; the broker starts fenced."""

    broker_id: wire.Int32
    is_migrating_zk_broker: Annotated[wire.Bool, Since(2)] = False
    incarnation_id: wire.Id
    broker_epoch: wire.Int64
    end_points: Endpoints
    features: FeatureRanges
    rack: wire.NullableText = None
    fenced: wire.Bool = True
    in_controlled_shutdown: Annotated[wire.Bool, Since(1)] = False
    log_dirs: Annotated[Ids, Since(3, is_ignorable=True), Tag(0)] = ()
    cordoned_log_dirs: Annotated[NullableIds, Since(4), Tag(1)] = None


class UnregisterBrokerRecord(FrozenRecord):
    """A broker was unregistered."""

    broker_id: wire.Int32
    broker_epoch: wire.Int64


class TopicRecord(FrozenRecord):
    """A topic was created; its configs and partitions follow in the same batch."""

    name: wire.Text
    topic_id: wire.Id


class PartitionRecord(FrozenRecord):
    """A partition was created. `directories` names the log directory of each replica, in the order of `replicas`."""

    partition_id: wire.Int32 = -1
    topic_id: wire.Id
    replicas: Int32s
    isr: Int32s
    removing_replicas: Int32s = ()
    adding_replicas: Int32s = ()
    leader: wire.Int32 = NO_LEADER
    leader_recovery_state: Annotated[wire.Int8, Tag(0)] = 0
    leader_epoch: wire.Int32 = -1
    partition_epoch: wire.Int32 = -1
    directories: Annotated[Ids, Since(1, is_ignorable=True)] = ()
    eligible_leader_replicas: Annotated[NullableInt32s, Since(2), Tag(1)] = None
    last_known_elr: Annotated[NullableInt32s, Since(2), Tag(2)] = None


class ConfigRecord(FrozenRecord):
    """A config of a topic, broker or other resource was set, or, if the value is None, reset to its default."""

    resource_type: wire.Int8
    resource_name: wire.Text
    name: wire.Text
    value: wire.NullableText


class PartitionChangeRecord(FrozenRecord):
    """A partition changed; None (-2 for the leader, -1 for the recovery state) leaves a field unchanged.

    Every change increments the partition epoch. Unless `leader` is -2, it also increments the leader epoch, even if `leader` is
    -1 or the current leader.
    """

    partition_id: wire.Int32 = -1
    topic_id: wire.Id
    isr: Annotated[NullableInt32s, Tag(0)] = None
    leader: Annotated[wire.Int32, Tag(1)] = NO_LEADER_CHANGE
    replicas: Annotated[NullableInt32s, Tag(2)] = None
    removing_replicas: Annotated[NullableInt32s, Tag(3)] = None
    adding_replicas: Annotated[NullableInt32s, Tag(4)] = None
    leader_recovery_state: Annotated[wire.Int8, Tag(5)] = -1
    eligible_leader_replicas: Annotated[NullableInt32s, Since(2), Tag(6)] = None
    last_known_elr: Annotated[NullableInt32s, Since(2), Tag(7)] = None
    directories: Annotated[NullableIds, Since(1, is_ignorable=True), Tag(8)] = None


class FenceBrokerRecord(FrozenRecord):
    """A broker was fenced; written before BrokerRegistrationChangeRecord existed."""

    id: wire.Int32
    epoch: wire.Int64


class UnfenceBrokerRecord(FrozenRecord):
    """A broker was unfenced; written before BrokerRegistrationChangeRecord existed."""

    id: wire.Int32
    epoch: wire.Int64


class RemoveTopicRecord(FrozenRecord):
    """A topic was deleted, with its partitions and configs."""

    topic_id: wire.Id


class DelegationTokenRecord(FrozenRecord):
    """A delegation token; times are in ms."""

    owner: wire.Text
    requester: wire.Text
    renewers: wire.Texts
    issue_timestamp: wire.Int64
    max_timestamp: wire.Int64
    expiration_timestamp: wire.Int64
    token_id: wire.Text


class UserScramCredentialRecord(FrozenRecord):
    """A user's SCRAM credential. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512; salt and keys are raw bytes."""

    name: wire.Text
    mechanism: wire.Int8
    salt: wire.Binary
    stored_key: wire.Binary
    server_key: wire.Binary
    iterations: wire.Int32


class FeatureLevelRecord(FrozenRecord):
    """A feature was finalized at a level; 0 removes it."""

    name: wire.Text
    feature_level: wire.Int16


class ClientQuotaRecord(FrozenRecord):
    """A quota was set or removed."""

    entity: QuotaEntities
    key: wire.Text
    value: wire.Float64
    remove: wire.Bool


class ProducerIdsRecord(FrozenRecord):
    """A block of producer ids was allocated; `next_producer_id` is the first unallocated id."""

    broker_id: wire.Int32
    broker_epoch: wire.Int64 = -1
    next_producer_id: wire.Int64


class BrokerRegistrationChangeRecord(FrozenRecord):
    """A registered broker changed.

    `fenced`: -1 unfenced, 1 fenced, 0 unchanged. `in_controlled_shutdown`: 1 yes, 0 unchanged. `log_dirs` is empty if unchanged,
    `cordoned_log_dirs` is None if unchanged.
    """

    broker_id: wire.Int32
    broker_epoch: wire.Int64
    fenced: Annotated[wire.Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[wire.Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[Ids, Since(2), Tag(2)] = ()
    cordoned_log_dirs: Annotated[NullableIds, Since(3), Tag(3)] = None


class AccessControlEntryRecord(FrozenRecord):
    """An ACL, with the numeric codes of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType."""

    id: wire.Id
    resource_type: wire.Int8
    resource_name: wire.Text
    pattern_type: wire.Int8
    principal: wire.Text
    host: wire.Text
    operation: wire.Int8
    permission_type: wire.Int8


class RemoveAccessControlEntryRecord(FrozenRecord):
    """An ACL was removed."""

    id: wire.Id


class NoOpRecord(FrozenRecord):
    """No change. Kafka's controllers write one every 500 ms."""


class ZkMigrationStateRecord(FrozenRecord):
    """The state of the migration from ZooKeeper: 0 none, 1 migration, 2 pre-migration, 3 post-migration; removed in Kafka 4."""

    zk_migration_state: wire.Int8


class RemoveUserScramCredentialRecord(FrozenRecord):
    """A user's SCRAM credential was removed."""

    name: wire.Text
    mechanism: wire.Int8


class BeginTransactionRecord(FrozenRecord):
    """A metadata transaction begins: the records that follow take effect at EndTransactionRecord."""

    name: Annotated[wire.NullableText, Tag(0)] = None


class EndTransactionRecord(FrozenRecord):
    """The records since BeginTransactionRecord take effect."""


class AbortTransactionRecord(FrozenRecord):
    """The records since BeginTransactionRecord are discarded."""

    reason: Annotated[wire.NullableText, Tag(0)] = None


class RemoveDelegationTokenRecord(FrozenRecord):
    """A delegation token was removed."""

    token_id: wire.Text


class RegisterControllerRecord(FrozenRecord):
    """A controller process has started."""

    controller_id: wire.Int32
    incarnation_id: wire.Id
    zk_migration_ready: wire.Bool = False
    end_points: Endpoints
    features: FeatureRanges


class ClearElrRecord(FrozenRecord):
    """The eligible leader replicas of a topic (`""`: all topics) were cleared."""

    topic_name: wire.Text


class UnregisterControllerRecord(FrozenRecord):
    """A controller was unregistered (KIP-1312)."""

    controller_id: wire.Int32


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | DelegationTokenRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RemoveUserScramCredentialRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RemoveDelegationTokenRecord
    | RegisterControllerRecord
    | ClearElrRecord
    | UnregisterControllerRecord
)


class RecordType(NamedTuple):
    """A record's class and its newest version; the oldest is always 0."""

    record_class: type
    max_version: int


RECORD_TYPES: dict[int, RecordType] = {
    0: RecordType(RegisterBrokerRecord, 4),
    1: RecordType(UnregisterBrokerRecord, 0),
    2: RecordType(TopicRecord, 0),
    3: RecordType(PartitionRecord, 2),
    4: RecordType(ConfigRecord, 0),
    5: RecordType(PartitionChangeRecord, 2),
    7: RecordType(FenceBrokerRecord, 0),
    8: RecordType(UnfenceBrokerRecord, 0),
    9: RecordType(RemoveTopicRecord, 0),
    10: RecordType(DelegationTokenRecord, 0),
    11: RecordType(UserScramCredentialRecord, 0),
    12: RecordType(FeatureLevelRecord, 0),
    14: RecordType(ClientQuotaRecord, 0),
    15: RecordType(ProducerIdsRecord, 0),
    17: RecordType(BrokerRegistrationChangeRecord, 3),
    18: RecordType(AccessControlEntryRecord, 0),
    19: RecordType(RemoveAccessControlEntryRecord, 0),
    20: RecordType(NoOpRecord, 0),
    21: RecordType(ZkMigrationStateRecord, 0),
    22: RecordType(RemoveUserScramCredentialRecord, 0),
    23: RecordType(BeginTransactionRecord, 0),
    24: RecordType(EndTransactionRecord, 0),
    25: RecordType(AbortTransactionRecord, 0),
    26: RecordType(RemoveDelegationTokenRecord, 0),
    27: RecordType(RegisterControllerRecord, 0),
    28: RecordType(ClearElrRecord, 0),
    29: RecordType(UnregisterControllerRecord, 0),
}
"""All records by api key (`MetadataRecordType`); 6, 13 and 16 were never released."""

_API_KEYS: dict[type[Any], int] = {record_type.record_class: key for key, record_type in RECORD_TYPES.items()}

_VERSION_FROM_METADATA_VERSION: dict[type[Any], tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (7, 1)),
    PartitionRecord: ((23, 2), (17, 1)),
    PartitionChangeRecord: ((23, 2), (17, 1)),
}
"""(first metadata.version, record version), newest first; below the lowest metadata.version, it is 0 (`MetadataVersion`)."""


def record_version(record: MetadataRecord, metadata_version: int) -> int:
    """Return the record version that a controller at `metadata_version` writes for `record`."""
    record_class = type(record)
    if isinstance(record, BrokerRegistrationChangeRecord):
        # The lowest version that has all fields of the record, as in Kafka's ReplicationControlManager.
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    for since, version in _VERSION_FROM_METADATA_VERSION.get(record_class, ()):
        if metadata_version >= since:
            return version
    return 0


def encode_record(
    record: MetadataRecord, *, metadata_version: int = MAX_METADATA_VERSION, version: int | None = None
) -> bytes:
    """Encode `record`, including its frame, in `version`, or by default in the version for `metadata_version`.

    Raises MalformedRecord if the version cannot represent the value of a field.
    """
    if version is None:
        version = record_version(record, metadata_version)
    form = _layout(_API_KEYS[type(record)], version)
    for name, default in form.absent:
        value = getattr(record, name)
        if value != default:
            raise wire.MalformedRecord(f"{type(record).__name__} v{version} has no {name}, got {value!r}")
    out = bytearray((FRAME_VERSION, _API_KEYS[type(record)], version))
    try:
        write_struct(form, out, record)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise wire.MalformedRecord(f"{record!r} cannot be written: {error}") from error
    return bytes(out)


def decode_record(value: bytes) -> MetadataRecord:
    """Parse the value of a record, including its frame. Unknown tags are skipped.

    Raises UnsupportedRecord if the api key or the version is not in `RECORD_TYPES`, and MalformedRecord if the bytes violate the
    layout or some are left over.
    """
    # In all existing records, the three numbers of the frame have one byte each.
    if len(value) < 4 or value[0] != FRAME_VERSION:
        raise wire.MalformedRecord(
            f"frame begins with {bytes(value[:4]).hex() or 'nothing'}, expected frame version {FRAME_VERSION}"
        )
    api_key, version, position = value[1], value[2], 3
    if api_key > 0x7F or version > 0x7F:
        raise wire.UnsupportedRecord(f"frame begins with {bytes(value[:4]).hex()}; no record up to Kafka 4.4 does")
    form = _layout(api_key, version)
    try:
        record, position = read_struct(form, value, 3)
    except (IndexError, struct.error):
        raise wire.MalformedRecord(
            f"{form.record_class.__name__} v{version} is cut off at {len(value)} bytes"
        ) from None
    except UnicodeDecodeError as error:
        raise wire.MalformedRecord(
            f"{form.record_class.__name__} v{version}: a string is not UTF-8: {error}"
        ) from error
    except ProtocolError as error:
        raise wire.MalformedRecord(f"{form.record_class.__name__} v{version}: {error}") from error
    if position != len(value):
        raise wire.MalformedRecord(f"{form.record_class.__name__} v{version}: {len(value) - position} bytes left over")
    return record  # type: ignore[no-any-return]


@cache
def _layout(api_key: int, version: int) -> RecordLayout:
    """Return the layout of a record version. The cache has one entry per known (api key, version)."""
    record_type = RECORD_TYPES.get(api_key)
    if record_type is None:
        raise wire.UnsupportedRecord(
            f"record with api key {api_key} (version {version}): no such record up to Kafka 4.4"
        )
    record_class, max_version = record_type
    if not 0 <= version <= max_version:
        raise wire.UnsupportedRecord(f"{record_class.__name__} v{version}: versions 0 to {max_version} are known")
    return layout(record_class, version)
