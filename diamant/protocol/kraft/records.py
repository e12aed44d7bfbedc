"""The records of `__cluster_metadata-0`, a KRaft controller's metadata of topics, configs, users and brokers.

A record's value, in the log and in snapshots alike:

    uvarint  frame version   1
    uvarint  api key         type of the record, see `RECORD_TYPES`
    uvarint  record version
    ...      the version's fields, in the order of the class below
    uvarint  number of tagged fields, then for each, ascending: uvarint tag, uvarint size, content

The classes declare the fields (`typed_records/layout.py`), with Kafka's defaults. Layouts are those of Kafka 4.4.0
(metadata.version 7 to 33).

    TopicRecord(name="foo", topic_id=UUID(...))    01 02 00  04 66 6f 6f  <16 bytes>  00
"""

# No postponed annotations here: the wire types are read from the classes' annotations as they stand.

import struct
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.typed_records.frozen_record import FrozenRecord
from diamant.protocol.typed_records.layout import RecordLayout, Since, Tag, array_of, layout, read_struct, write_struct
from diamant.protocol.typed_records.wire_types import (
    INT32,
    UUID_TYPE,
    Binary,
    Bool,
    Float64,
    Id,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableText,
    Text,
    Texts,
    Uint16,
    array_type,
    remembering,
)
from diamant.protocol.typed_records.wire_types import MalformedRecord as MalformedRecord
from diamant.protocol.typed_records.wire_types import UnsupportedRecord as UnsupportedRecord

FRAME_VERSION = 1

MIN_METADATA_VERSION = 7
"""3.3-IV3, the minimum of Kafka 4."""
MAX_METADATA_VERSION = 33
"""4.4-IV2, the level with which Kafka 4.4 formats directories."""

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""PartitionChangeRecord.leader if the record does not change the leader."""

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
"""ConfigRecord.resource_type (`ConfigResource.Type`). A broker's name is its decimal id; `""` means all brokers."""


class Endpoint(NamedTuple):
    """A listener of a broker or controller. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: Text
    host: Text
    port: Uint16
    security_protocol: Int16 = 0


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker or controller supports."""

    name: Text
    min_supported_version: Int16
    max_supported_version: Int16


class QuotaEntity(NamedTuple):
    """The entity of a quota: type `user`, `client-id` or `ip`; name None is the default of that type."""

    entity_type: Text
    entity_name: NullableText


# Cached: the partitions have few distinct arrays.
Int32s: TypeAlias = Annotated[tuple[int, ...], remembering(array_type(INT32))]
NullableInt32s: TypeAlias = Annotated[tuple[int, ...] | None, remembering(array_type(INT32, is_nullable=True))]
Ids: TypeAlias = Annotated[tuple[UUID, ...], remembering(array_type(UUID_TYPE))]
NullableIds: TypeAlias = Annotated[tuple[UUID, ...] | None, remembering(array_type(UUID_TYPE, is_nullable=True))]
Endpoints: TypeAlias = Annotated[tuple[Endpoint, ...], array_of(Endpoint)]
FeatureRanges: TypeAlias = Annotated[tuple[FeatureRange, ...], array_of(FeatureRange)]
QuotaEntities: TypeAlias = Annotated[tuple[QuotaEntity, ...], array_of(QuotaEntity)]


class RegisterBrokerRecord(FrozenRecord):
    """A broker process has started. `broker_epoch` is the record's own offset; the broker starts fenced."""

    broker_id: Int32
    is_migrating_zk_broker: Annotated[Bool, Since(2)] = False
    incarnation_id: Id
    broker_epoch: Int64
    end_points: Endpoints
    features: FeatureRanges
    rack: NullableText = None
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, Since(1)] = False
    log_dirs: Annotated[Ids, Since(3, is_ignorable=True), Tag(0)] = ()
    cordoned_log_dirs: Annotated[NullableIds, Since(4), Tag(1)] = None


class UnregisterBrokerRecord(FrozenRecord):
    """A broker was unregistered."""

    broker_id: Int32
    broker_epoch: Int64


class TopicRecord(FrozenRecord):
    """A topic was created; its configs and partitions follow in the same batch."""

    name: Text
    topic_id: Id


class PartitionRecord(FrozenRecord):
    """A partition was created. `directories` names the log directory of each replica, in the order of `replicas`."""

    partition_id: Int32 = -1
    topic_id: Id
    replicas: Int32s
    isr: Int32s
    removing_replicas: Int32s = ()
    adding_replicas: Int32s = ()
    leader: Int32 = NO_LEADER
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[Ids, Since(1, is_ignorable=True)] = ()
    eligible_leader_replicas: Annotated[NullableInt32s, Since(2), Tag(1)] = None
    last_known_elr: Annotated[NullableInt32s, Since(2), Tag(2)] = None


class ConfigRecord(FrozenRecord):
    """A config of a topic, broker, ... was set, or with value None reset to its default."""

    resource_type: Int8
    resource_name: Text
    name: Text
    value: NullableText


class PartitionChangeRecord(FrozenRecord):
    """A partition changed; None (-2 for the leader, -1 for the recovery state) leaves a field unchanged.

    Every change increments the partition epoch. Any leader but -2, even -1 or the old leader, increments the leader epoch.
    """

    partition_id: Int32 = -1
    topic_id: Id
    isr: Annotated[NullableInt32s, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = NO_LEADER_CHANGE
    replicas: Annotated[NullableInt32s, Tag(2)] = None
    removing_replicas: Annotated[NullableInt32s, Tag(3)] = None
    adding_replicas: Annotated[NullableInt32s, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    eligible_leader_replicas: Annotated[NullableInt32s, Since(2), Tag(6)] = None
    last_known_elr: Annotated[NullableInt32s, Since(2), Tag(7)] = None
    directories: Annotated[NullableIds, Since(1, is_ignorable=True), Tag(8)] = None


class FenceBrokerRecord(FrozenRecord):
    """A broker was fenced; written before BrokerRegistrationChangeRecord existed."""

    id: Int32
    epoch: Int64


class UnfenceBrokerRecord(FrozenRecord):
    """A broker was unfenced; written before BrokerRegistrationChangeRecord existed."""

    id: Int32
    epoch: Int64


class RemoveTopicRecord(FrozenRecord):
    """A topic was deleted, with its partitions and configs."""

    topic_id: Id


class DelegationTokenRecord(FrozenRecord):
    """A delegation token; times in ms."""

    owner: Text
    requester: Text
    renewers: Texts
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: Text


class UserScramCredentialRecord(FrozenRecord):
    """A user's SCRAM credential. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512; salt and keys are raw bytes."""

    name: Text
    mechanism: Int8
    salt: Binary
    stored_key: Binary
    server_key: Binary
    iterations: Int32


class FeatureLevelRecord(FrozenRecord):
    """A feature was finalized at a level; 0 removes it."""

    name: Text
    feature_level: Int16


class ClientQuotaRecord(FrozenRecord):
    """A quota was set or removed."""

    entity: QuotaEntities
    key: Text
    value: Float64
    remove: Bool


class ProducerIdsRecord(FrozenRecord):
    """A block of producer ids was allocated; `next_producer_id` is the first unallocated id."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


class BrokerRegistrationChangeRecord(FrozenRecord):
    """A registered broker changed.

    `fenced`: -1 unfenced, 1 fenced, 0 unchanged. `in_controlled_shutdown`: 1 yes, 0 unchanged. Empty `log_dirs` and
    `cordoned_log_dirs` None: unchanged.
    """

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[Ids, Since(2), Tag(2)] = ()
    cordoned_log_dirs: Annotated[NullableIds, Since(3), Tag(3)] = None


class AccessControlEntryRecord(FrozenRecord):
    """An ACL, in numeric codes of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType."""

    id: Id
    resource_type: Int8
    resource_name: Text
    pattern_type: Int8
    principal: Text
    host: Text
    operation: Int8
    permission_type: Int8


class RemoveAccessControlEntryRecord(FrozenRecord):
    """An ACL was removed."""

    id: Id


class NoOpRecord(FrozenRecord):
    """No change; a real controller writes one every 500 ms."""


class ZkMigrationStateRecord(FrozenRecord):
    """0 none, 1 migration, 2 pre-migration, 3 post-migration; removed in Kafka 4."""

    zk_migration_state: Int8


class RemoveUserScramCredentialRecord(FrozenRecord):
    """A user's SCRAM credential was removed."""

    name: Text
    mechanism: Int8


class BeginTransactionRecord(FrozenRecord):
    """Begins a metadata transaction: later records take effect at EndTransactionRecord."""

    name: Annotated[NullableText, Tag(0)] = None


class EndTransactionRecord(FrozenRecord):
    """The records since BeginTransactionRecord take effect."""


class AbortTransactionRecord(FrozenRecord):
    """The records since BeginTransactionRecord are discarded."""

    reason: Annotated[NullableText, Tag(0)] = None


class RemoveDelegationTokenRecord(FrozenRecord):
    """A delegation token was removed."""

    token_id: Text


class RegisterControllerRecord(FrozenRecord):
    """A controller process has started."""

    controller_id: Int32
    incarnation_id: Id
    zk_migration_ready: Bool = False
    end_points: Endpoints
    features: FeatureRanges


class ClearElrRecord(FrozenRecord):
    """The eligible leader replicas of a topic (`""`: all topics) were cleared."""

    topic_name: Text


class UnregisterControllerRecord(FrozenRecord):
    """A controller was unregistered (KIP-1312)."""

    controller_id: Int32


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
"""(from metadata.version, record version), newest first; 0 below the last row (`MetadataVersion`)."""


def record_version(record: MetadataRecord, metadata_version: int) -> int:
    """Return the record version that a controller at `metadata_version` writes for `record`."""
    record_class = type(record)
    if isinstance(record, BrokerRegistrationChangeRecord):
        # The lowest version that can represent it (`BrokerRegistrationTracker`'s counterpart in ReplicationControlManager).
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
    """Return the value of `record`, including its frame, in the version for `metadata_version` or in `version`.

    Raises MalformedRecord if the version cannot represent a field's value.
    """
    if version is None:
        version = record_version(record, metadata_version)
    form = _layout(_API_KEYS[type(record)], version)
    for name, default in form.absent:
        value = getattr(record, name)
        if value != default:
            raise MalformedRecord(f"{type(record).__name__} v{version} has no {name}, got {value!r}")
    out = bytearray((FRAME_VERSION, _API_KEYS[type(record)], version))
    try:
        write_struct(form, out, record)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise MalformedRecord(f"{record!r} cannot be written: {error}") from error
    return bytes(out)


def decode_record(value: bytes) -> MetadataRecord:
    """Parse the value of a record, including its frame. Unknown tags are skipped.

    UnsupportedRecord for an api key or version not in `RECORD_TYPES`; MalformedRecord for bytes that violate the layout, or
    are left over.
    """
    # In all existing records the three numbers of the frame have one byte each.
    if len(value) < 4 or value[0] != FRAME_VERSION:
        raise MalformedRecord(
            f"frame begins with {bytes(value[:4]).hex() or 'nothing'}, expected frame version {FRAME_VERSION}"
        )
    api_key, version, position = value[1], value[2], 3
    if api_key > 0x7F or version > 0x7F:
        raise UnsupportedRecord(f"frame begins with {bytes(value[:4]).hex()}: no such record")
    form = _layout(api_key, version)
    try:
        record, position = read_struct(form, value, 3)
    except (IndexError, struct.error):
        raise MalformedRecord(f"{form.record_class.__name__} v{version} is cut off at {len(value)} bytes") from None
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"{form.record_class.__name__} v{version}: text is not UTF-8: {error}") from error
    if position != len(value):
        raise MalformedRecord(f"{form.record_class.__name__} v{version}: {len(value) - position} bytes left over")
    return record  # type: ignore[no-any-return]


@cache
def _layout(api_key: int, version: int) -> RecordLayout:
    """Return the layout of a record version. The cache has one entry per known (api key, version)."""
    record_type = RECORD_TYPES.get(api_key)
    if record_type is None:
        raise UnsupportedRecord(f"record with api key {api_key} (version {version}): no such record up to Kafka 4.4")
    record_class, max_version = record_type
    if not 0 <= version <= max_version:
        raise UnsupportedRecord(f"{record_class.__name__} v{version}: versions 0 to {max_version} are known")
    return layout(record_class, version)
