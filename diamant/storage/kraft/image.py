"""The cluster state after the last record of the metadata log: topics, partitions, configs, brokers, users.

`MetadataImage.apply` replays records by Kafka's rules (MetadataDelta, PartitionRegistration.merge). It refuses records that
would stop a real controller: those that refer to a missing object, or create one that exists. An undo list reverts changes, so
that a batch is applied completely or not at all. `to_records` is the inverse: it yields the records of a snapshot, in the order
of Kafka's image writer.

The loop thread owns an image. Instances of `PartitionImage` and records are never changed, only replaced. `TopicImage.partitions`
and all other mappings are changed in place; other modules may only read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.kraft import records
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import METADATA_VERSION, feature_records

Undo: TypeAlias = list[tuple[dict[Any, Any], Any, Any]]
"""(mapping, key, previous value or `_ABSENT`) for each change, in order; see `undo_changes`."""

_ABSENT: Any = object()


class InconsistentMetadata(StorageError):
    """A record contradicts earlier records; a real controller would stop at it."""


class PartitionImage(NamedTuple):
    """A partition. `leader` is -1 if there is none; `directories` has one entry per replica, or is empty if they are unknown."""

    partition_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


_OF_PARTITION = attrgetter(*PartitionImage._fields)


@dataclass(slots=True)
class TopicImage:
    """A topic and its partitions by number."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionImage] = field(default_factory=dict)


class MetadataImage:
    """The state built from the records; initially empty."""

    topics: dict[str, TopicImage]
    topics_by_id: dict[UUID, TopicImage]
    configs: dict[tuple[int, str], dict[str, str]]
    """Config values by (resource type, resource name), without empty entries."""
    features: dict[str, int]
    """Finalized levels above 0, including that of `metadata.version`."""
    brokers: dict[int, records.RegisterBrokerRecord]
    """Registrations, with their later changes applied."""
    controllers: dict[int, records.RegisterControllerRecord]
    scram_credentials: dict[tuple[int, str], records.UserScramCredentialRecord]
    """Credentials by (mechanism, user)."""
    acls: dict[UUID, records.AccessControlEntryRecord]
    quotas: dict[tuple[records.QuotaEntity, ...], dict[str, float]]
    delegation_tokens: dict[str, records.DelegationTokenRecord]
    next_producer_id: int
    """The first producer id that has not been allocated in a block."""
    zk_migration_state: int

    def __init__(self) -> None:
        self.topics = {}
        self.topics_by_id = {}
        self.configs = {}
        self.features = {}
        self.brokers = {}
        self.controllers = {}
        self.scram_credentials = {}
        self.acls = {}
        self.quotas = {}
        self.delegation_tokens = {}
        self.next_producer_id = 0
        self.zk_migration_state = 0

    def __eq__(self, other: object) -> bool:
        """Compare everything; for tests and checks."""
        return isinstance(other, MetadataImage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    @property
    def metadata_version(self) -> int:
        """The finalized `metadata.version`, 0 before there is one."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def is_empty(self) -> bool:
        """True if the image holds no state."""
        return self == MetadataImage()

    def apply(self, record: records.MetadataRecord, undo: Undo | None = None) -> None:
        """Apply one record; add every change to `undo`, if given.

        Raises InconsistentMetadata if the record contradicts the image; `undo_changes` then restores the image from `undo`.
        Do not pass Begin, End and Abort records of transactions: the reader of the log resolves transactions.
        """
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise InconsistentMetadata(f"{record!r} cannot be applied: it changes no metadata by itself")
        handler(self, record, undo)

    def to_records(self) -> Iterator[records.MetadataRecord]:
        """Yield the records that build this image from an empty one, in the order of Kafka's snapshots."""
        yield from feature_records(self.features)
        if self.zk_migration_state:
            yield records.ZkMigrationStateRecord(zk_migration_state=self.zk_migration_state)
        for broker_id in sorted(self.brokers):
            yield self.brokers[broker_id]
        yield from self.controllers.values()
        for topic in self.topics.values():
            yield records.TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for partition in topic.partitions.values():
                yield _partition_record(topic.topic_id, partition)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield records.ConfigRecord(
                    resource_type=resource_type, resource_name=resource_name, name=name, value=value
                )
        for entity, quota in self.quotas.items():
            for key, limit in quota.items():
                yield records.ClientQuotaRecord(entity=entity, key=key, value=limit, remove=False)
        if self.next_producer_id:
            yield records.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
        yield from self.acls.values()
        yield from self.scram_credentials.values()
        yield from self.delegation_tokens.values()


Handler: TypeAlias = Callable[[MetadataImage, Any, Undo | None], None]


def undo_changes(undo: Undo) -> None:
    """Revert the changes in reverse order, and clear the list."""
    while undo:
        mapping, key, before = undo.pop()
        if before is _ABSENT:
            del mapping[key]
        else:
            mapping[key] = before


def _put(undo: Undo | None, mapping: dict[Any, Any], key: Any, value: Any) -> None:
    if undo is not None:
        undo.append((mapping, key, mapping.get(key, _ABSENT)))
    mapping[key] = value


def _drop(undo: Undo | None, mapping: dict[Any, Any], key: Any) -> None:
    """Remove a key if present. Undo re-adds it at the end, so readers must not depend on the order."""
    if key in mapping:
        before = mapping.pop(key)
        if undo is not None:
            undo.append((mapping, key, before))


def _set(undo: Undo | None, image: MetadataImage, name: str, value: Any) -> None:
    """Set an attribute of the image itself."""
    _put(undo, image.__dict__, name, value)


# -- topics ------------------------------------------------------------------------------------------------------------


def _topic(image: MetadataImage, record: records.TopicRecord, undo: Undo | None) -> None:
    if record.name in image.topics:
        raise InconsistentMetadata(f"{record!r}: topic already exists with id {image.topics[record.name].topic_id}")
    if record.topic_id in image.topics_by_id:
        raise InconsistentMetadata(f"{record!r}: the id belongs to topic {image.topics_by_id[record.topic_id].name}")
    topic = TopicImage(record.name, record.topic_id)
    _put(undo, image.topics, record.name, topic)
    _put(undo, image.topics_by_id, record.topic_id, topic)


def _partition(image: MetadataImage, record: records.PartitionRecord, undo: Undo | None) -> None:
    topic = image.topics_by_id.get(record.topic_id)
    if topic is None:
        raise InconsistentMetadata(f"{record!r}: no topic has this id")
    _check_directories(record, record.replicas, record.directories)
    # A second record for a partition is valid: Kafka's TopicDelta replaces the partition.
    partition = PartitionImage._make(_OF_PARTITION(record))
    _put(undo, topic.partitions, record.partition_id, partition)


def _partition_change(image: MetadataImage, record: records.PartitionChangeRecord, undo: Undo | None) -> None:
    topic = image.topics_by_id.get(record.topic_id)
    if topic is None:
        raise InconsistentMetadata(f"{record!r}: no topic has this id")
    before = topic.partitions.get(record.partition_id)
    if before is None:
        raise InconsistentMetadata(f"{record!r}: topic {topic.name} has no such partition")
    _put(undo, topic.partitions, record.partition_id, _merge(before, record))


def _check_directories(record: records.MetadataRecord, replicas: Sized, directories: Sized) -> None:
    if directories and len(directories) != len(replicas):
        raise InconsistentMetadata(
            f"{record!r}: {len(directories)} directories for {len(replicas)} replicas, expected one for each"
        )


def _merge(before: PartitionImage, record: records.PartitionChangeRecord) -> PartitionImage:
    """Return the partition after a change (`PartitionRegistration.merge`)."""
    replicas = before.replicas if record.replicas is None else record.replicas
    directories = before.directories if record.directories is None else record.directories
    _check_directories(record, replicas, directories)
    changes_leader = record.leader != records.NO_LEADER_CHANGE
    elr = record.eligible_leader_replicas
    last_known = record.last_known_elr
    state = record.leader_recovery_state
    return PartitionImage(
        before.partition_id,
        replicas,
        before.isr if record.isr is None else record.isr,
        record.leader if changes_leader else before.leader,
        before.leader_epoch + 1 if changes_leader else before.leader_epoch,
        before.partition_epoch + 1,
        directories,
        before.removing_replicas if record.removing_replicas is None else record.removing_replicas,
        before.adding_replicas if record.adding_replicas is None else record.adding_replicas,
        before.leader_recovery_state if state == -1 else state,
        before.eligible_leader_replicas if elr is None else elr,
        before.last_known_elr if last_known is None else last_known,
    )


def _clear_elr(image: MetadataImage, record: records.ClearElrRecord, undo: Undo | None) -> None:
    if record.topic_name and record.topic_name not in image.topics:
        raise InconsistentMetadata(f"{record!r}: no such topic")
    topics = [image.topics[record.topic_name]] if record.topic_name else list(image.topics.values())
    for topic in topics:
        for number, partition in list(topic.partitions.items()):
            if partition.eligible_leader_replicas or partition.last_known_elr:
                change = records.PartitionChangeRecord(
                    partition_id=number, topic_id=topic.topic_id, eligible_leader_replicas=(), last_known_elr=()
                )
                _put(undo, topic.partitions, number, _merge(partition, change))


def _remove_topic(image: MetadataImage, record: records.RemoveTopicRecord, undo: Undo | None) -> None:
    topic = image.topics_by_id.get(record.topic_id)
    if topic is None:
        raise InconsistentMetadata(f"{record!r}: no topic has this id")
    _drop(undo, image.topics_by_id, record.topic_id)
    _drop(undo, image.topics, topic.name)
    _drop(undo, image.configs, (records.TOPIC_RESOURCE, topic.name))


def _config(image: MetadataImage, record: records.ConfigRecord, undo: Undo | None) -> None:
    resource = (record.resource_type, record.resource_name)
    values = image.configs.get(resource)
    if record.value is None:
        if values is not None:
            _drop(undo, values, record.name)
            if not values:
                _drop(undo, image.configs, resource)
        return
    if values is None:
        values = {}
        _put(undo, image.configs, resource, values)
    _put(undo, values, record.name, record.value)


# -- the cluster -------------------------------------------------------------------------------------------------------


def _feature(image: MetadataImage, record: records.FeatureLevelRecord, undo: Undo | None) -> None:
    if record.feature_level == 0:
        _drop(undo, image.features, record.name)
    else:
        _put(undo, image.features, record.name, record.feature_level)


def _broker(
    image: MetadataImage, record: records.MetadataRecord, broker_id: int, broker_epoch: int
) -> records.RegisterBrokerRecord:
    """Return the registration that a record refers to."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise InconsistentMetadata(f"{record!r}: no such broker is registered")
    if broker.broker_epoch != broker_epoch:
        raise InconsistentMetadata(f"{record!r}: the broker is registered with epoch {broker.broker_epoch}")
    return broker


def _unregister_broker(image: MetadataImage, record: records.UnregisterBrokerRecord, undo: Undo | None) -> None:
    _broker(image, record, record.broker_id, record.broker_epoch)
    _drop(undo, image.brokers, record.broker_id)


def _broker_change(image: MetadataImage, record: records.BrokerRegistrationChangeRecord, undo: Undo | None) -> None:
    before = _broker(image, record, record.broker_id, record.broker_epoch)
    after = before.changed(
        fenced=record.fenced > 0 if record.fenced else before.fenced,
        in_controlled_shutdown=before.in_controlled_shutdown or record.in_controlled_shutdown > 0,
        log_dirs=record.log_dirs or before.log_dirs,
        cordoned_log_dirs=before.cordoned_log_dirs if record.cordoned_log_dirs is None else record.cordoned_log_dirs,
    )
    _put(undo, image.brokers, record.broker_id, after)


def _fence_broker(image: MetadataImage, record: records.FenceBrokerRecord, undo: Undo | None) -> None:
    before = _broker(image, record, record.id, record.epoch)
    _put(undo, image.brokers, record.id, before.changed(fenced=True))


def _unfence_broker(image: MetadataImage, record: records.UnfenceBrokerRecord, undo: Undo | None) -> None:
    before = _broker(image, record, record.id, record.epoch)
    _put(undo, image.brokers, record.id, before.changed(fenced=False))


def _producer_ids(image: MetadataImage, record: records.ProducerIdsRecord, undo: Undo | None) -> None:
    if record.next_producer_id <= image.next_producer_id:
        raise InconsistentMetadata(f"{record!r}: the next producer id is already {image.next_producer_id}")
    _set(undo, image, "next_producer_id", record.next_producer_id)


def _zk_migration_state(image: MetadataImage, record: records.ZkMigrationStateRecord, undo: Undo | None) -> None:
    _set(undo, image, "zk_migration_state", record.zk_migration_state)


def _quota(image: MetadataImage, record: records.ClientQuotaRecord, undo: Undo | None) -> None:
    quota = image.quotas.get(record.entity)
    if record.remove:
        if quota is not None:
            _drop(undo, quota, record.key)
            if not quota:
                _drop(undo, image.quotas, record.entity)
        return
    if quota is None:
        quota = {}
        _put(undo, image.quotas, record.entity, quota)
    _put(undo, quota, record.key, record.value)


# -- records that are kept as they are ---------------------------------------------------------------------------------


def _keep(mapping: str, key: Callable[[Any], object]) -> Handler:
    def keep(image: MetadataImage, record: records.MetadataRecord, undo: Undo | None) -> None:
        _put(undo, getattr(image, mapping), key(record), record)

    return keep


def _remove(mapping: str, key: Callable[[Any], object], if_missing: str) -> Handler:
    """Return a handler that removes a key. `if_missing`: the error message for a missing key, or empty to ignore it."""

    def remove(image: MetadataImage, record: records.MetadataRecord, undo: Undo | None) -> None:
        kept = getattr(image, mapping)
        if if_missing and key(record) not in kept:
            raise InconsistentMetadata(f"{record!r}: {if_missing}")
        _drop(undo, kept, key(record))

    return remove


def _nothing(image: MetadataImage, record: records.NoOpRecord, undo: Undo | None) -> None:
    pass


_CONTROLLER, _CREDENTIAL = attrgetter("controller_id"), attrgetter("mechanism", "name")
_ACL, _TOKEN = attrgetter("id"), attrgetter("token_id")

_HANDLERS: dict[type[Any], Handler] = {
    records.RegisterBrokerRecord: _keep("brokers", attrgetter("broker_id")),
    records.UnregisterBrokerRecord: _unregister_broker,
    records.TopicRecord: _topic,
    records.PartitionRecord: _partition,
    records.ConfigRecord: _config,
    records.PartitionChangeRecord: _partition_change,
    records.FenceBrokerRecord: _fence_broker,
    records.UnfenceBrokerRecord: _unfence_broker,
    records.RemoveTopicRecord: _remove_topic,
    records.DelegationTokenRecord: _keep("delegation_tokens", _TOKEN),
    records.UserScramCredentialRecord: _keep("scram_credentials", _CREDENTIAL),
    records.FeatureLevelRecord: _feature,
    records.ClientQuotaRecord: _quota,
    records.ProducerIdsRecord: _producer_ids,
    records.BrokerRegistrationChangeRecord: _broker_change,
    records.AccessControlEntryRecord: _keep("acls", _ACL),
    records.RemoveAccessControlEntryRecord: _remove("acls", _ACL, "there is no such ACL"),
    records.NoOpRecord: _nothing,
    records.ZkMigrationStateRecord: _zk_migration_state,
    records.RemoveUserScramCredentialRecord: _remove("scram_credentials", _CREDENTIAL, "there is no such credential"),
    records.RemoveDelegationTokenRecord: _remove("delegation_tokens", _TOKEN, ""),
    records.RegisterControllerRecord: _keep("controllers", _CONTROLLER),
    records.ClearElrRecord: _clear_elr,
    records.UnregisterControllerRecord: _remove("controllers", _CONTROLLER, "no such controller is registered"),
}


def _partition_record(topic_id: UUID, partition: PartitionImage) -> records.PartitionRecord:
    return records.PartitionRecord(
        topic_id=topic_id,
        **partition._replace(
            eligible_leader_replicas=partition.eligible_leader_replicas or None,
            last_known_elr=partition.last_known_elr or None,
        )._asdict(),
    )
