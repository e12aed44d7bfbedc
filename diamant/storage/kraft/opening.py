"""Opens the metadata log at startup, and adds the records of the start to it.

Like a real node, a starting broker reads the log, becomes its leader in a new epoch and registers. Every start writes:

    LeaderChange                      a control batch; with KRaftVersion and KRaftVoters the first time
    Begin, features, End              the first time only, from the formatter's checkpoint
    FeatureLevel                      the number of brokers, if this process has several and the number has changed
    RegisterBroker                    its broker epoch is its own offset
    BrokerRegistrationChange          unfences the broker; in the same batch, a PartitionChange for every partition without
                                      a leader (a real Kafka leaves them so when it stops), or after a crash for every one.
                                      If there are several brokers, those fenced at the stop stay fenced

Source: KafkaRaftClient, QuorumController, ClusterControlManager, ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.kraft.records import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    Endpoint,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_partition_metadata, write_partition_metadata
from diamant.storage.checkpoints.meta_properties import MetaProperties, read_meta_properties
from diamant.storage.checkpoints.quorum_state import read_quorum_state
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.kraft.features import (
    BROKERS_FEATURE,
    DEFAULT_RELEASE,
    RELEASES,
    registered_ranges,
    unsupported_feature,
)
from diamant.storage.kraft.format import DEFAULT_CONTROLLER_ENDPOINT, format_directory, metadata_directory
from diamant.storage.kraft.incarnation import is_of_diamant, new_incarnation_id
from diamant.storage.kraft.metadata_log import (
    DEFAULT_SNAPSHOT_BYTES,
    DEFAULT_SNAPSHOT_INTERVAL_MS,
    MAX_RECORDS_PER_BATCH,
    MetadataLog,
)
from diamant.storage.kraft.replay import LoadedMetadata, load_metadata
from diamant.storage.kraft.start_records import bootstrap_records, folded, orphaned_configs, resumed, takeovers
from diamant.storage.uuid_text import METADATA_TOPIC_ID

_NOT_MIGRATING = (0, 3)
"""ZkMigrationState none and post-migration: the only states in which the log alone is authoritative."""


def check_owner(path: str, properties: MetaProperties, node_id: int, directory_id: UUID | None) -> None:
    """Raise StorageError if the directory belongs to another node or has another id."""
    if properties.node_id != node_id:
        raise StorageError(
            f"{path}: the directory belongs to node.id {properties.node_id}, but the configuration says {node_id}"
        )
    if directory_id is not None and properties.directory_id != directory_id:
        raise StorageError(f"{path}: directory.id is {properties.directory_id}, expected {directory_id}")


def check_topic_id(env: Env, directory: str) -> None:
    """Write the id of the metadata topic if it is missing. Raises CorruptLog if the directory has another id."""
    topic_id = read_partition_metadata(env, directory)
    if topic_id is None:
        write_partition_metadata(env, directory, METADATA_TOPIC_ID)
    elif topic_id != METADATA_TOPIC_ID:
        raise CorruptLog(
            f"{directory}/{names.PARTITION_METADATA}", 2, f"topic id is {topic_id}, expected {METADATA_TOPIC_ID}"
        )


def check_writable(
    directory: str,
    loaded: LoadedMetadata,
    properties: MetaProperties,
    first: Sequence[MetadataRecord],
    broker_ids: Collection[int],
) -> None:
    """Raise StorageError, with the first reason found, if the log is readable but these brokers of one node cannot continue it.

    `first`: the records that a first start will add.
    """
    reason = next(_objections(loaded, properties, first, broker_ids), None)
    if reason is not None:
        raise StorageError(f"{directory}: {reason}")


def _objections(
    loaded: LoadedMetadata, properties: MetaProperties, first: Sequence[MetadataRecord], broker_ids: Collection[int]
) -> Iterator[str]:
    node_id = properties.node_id
    image = loaded.image
    count = image.features.get(BROKERS_FEATURE, 1)
    if count > len(broker_ids):
        yield (
            f"its partitions are on {count} brokers. Start with --brokers {count} (diamant.brokers={count}), or make it a "
            "directory of one broker: diamant log fold-brokers"
        )
    formatted = {record.name: record.feature_level for record in first if isinstance(record, FeatureLevelRecord)}
    for name, level in (image.features | formatted).items():
        reason = unsupported_feature(name, level)
        if reason is not None:
            yield reason
    if loaded.kraft_version > 1:
        yield f"kraft.version is {loaded.kraft_version}, supported are 0 and 1"
    if loaded.kraft_version:
        members = [(voter.id, voter.directory_id) for voter in loaded.voters.voters] if loaded.voters else []
        if members != [(node_id, properties.directory_id)]:
            yield (
                f"the voters are {members} (node id, directory id), expected only this node and directory: "
                f"{(node_id, properties.directory_id)}"
            )
    elif loaded.quorum not in ((), (node_id,)):
        yield f"the voters are {loaded.quorum}, expected only this node: {node_id}"
    if image.zk_migration_state not in _NOT_MIGRATING:
        yield f"a migration from ZooKeeper is in progress (state {image.zk_migration_state})"
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            if not partition.replicas or not {*partition.replicas, *partition.adding_replicas} <= {*broker_ids}:
                expected = f"only this node: {node_id}" if len(broker_ids) == 1 else f"only {list(broker_ids)}"
                yield (f"{topic.name}-{partition.partition_id} has replicas {partition.replicas}, expected {expected}")


def _made_directory(env: Env, path: str) -> str:
    """Return the directory of the metadata log; create it if missing, as in a formatted log directory that was never started."""
    directory = metadata_directory(path)
    if not env.is_dir(directory):
        env.make_dirs(directory)
        env.sync_dir(path)
    return directory


class OtherBroker(NamedTuple):
    """An additional broker in this process, to register along with this node."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None


def open_metadata_log(
    env: Env,
    path: str,
    *,
    node_id: int,
    endpoints: Sequence[Endpoint],
    controller_endpoint: Endpoint = DEFAULT_CONTROLLER_ENDPOINT,
    directory_id: UUID | None = None,
    rack: str | None = None,
    others: Sequence[OtherBroker] = (),
    features: Mapping[str, int] = RELEASES[DEFAULT_RELEASE],
    min_insync_replicas: str = "1",
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
    snapshot_interval_ms: int = DEFAULT_SNAPSHOT_INTERVAL_MS,
) -> MetadataLog:
    """Open the metadata log of the log directory `path`, formatting a new directory first. Blocks on the disk.

    The caller holds the directory's lock. `endpoints` are the broker's advertised listeners, `(name, host, port, security
    protocol)`. `controller_endpoint`, `features`, `min_insync_replicas` and `directory_id` apply to a new directory; an existing
    directory must have this `directory_id`. `others`: the additional brokers in this process. A snapshot is due
    after `snapshot_bytes` of records, or after `snapshot_interval_ms` (0 means never).

    Raises StorageError if the log belongs to another node, has replicas on other brokers or other voters, or was written by a
    newer Kafka; CorruptLog if it is damaged.
    """
    if not endpoints:
        raise ValueError("expected at least one endpoint to register, got none")
    properties = read_meta_properties(env, path)
    if properties is None:
        properties = format_directory(
            env,
            path,
            node_id=node_id,
            directory_id=directory_id,
            controller_endpoint=controller_endpoint,
            features=features,
        )
    check_owner(path, properties, node_id, directory_id)
    directory = _made_directory(env, path)
    check_topic_id(env, directory)
    loaded, epoch = _load(env, directory)
    first = bootstrap_records(env, path, loaded, features, min_insync_replicas)
    broker_ids = (node_id, *(other.broker_id for other in others))
    check_writable(directory, loaded, properties, first, broker_ids)
    log = MetadataLog(
        env,
        path,
        properties,
        loaded,
        broker_ids=broker_ids,
        snapshot_bytes=snapshot_bytes,
        snapshot_interval_ms=snapshot_interval_ms,
    )
    try:
        log.remove_leftovers()
        log.begin_epoch(epoch, has_voters_in_log=loaded.has_voters_in_log)
        if loaded.has_open_transaction:
            log.append([AbortTransactionRecord(reason="Controller failover")])
        if first:
            log.append(first)
        _register(log, OtherBroker(node_id, tuple(Endpoint(*endpoint) for endpoint in endpoints), rack), others)
        _append_all(log, orphaned_configs(log.image))
        log.sync()
    except BaseException:
        log.close(clean=False)
        raise
    return log


def _load(env: Env, directory: str) -> tuple[LoadedMetadata, int]:
    """Load the log; return its contents, and the epoch of the next leader."""
    loaded = load_metadata(env, directory)
    state = read_quorum_state(env, directory)
    if not loaded.quorum and state.voters:
        loaded.quorum = state.voters
    return loaded, max(state.leader_epoch, loaded.last_epoch) + 1


def _register(log: MetadataLog, own: OtherBroker, others: Sequence[OtherBroker]) -> None:
    before = log.image.brokers.get(log.node_id)
    log.is_taken_over = before is not None and not is_of_diamant(before.incarnation_id)
    if not others:
        has_crashed = before is not None and not before.fenced
        unfenced = _registered(log, own)
        log.broker_epoch = unfenced.broker_epoch
        _append_all(log, [unfenced, *takeovers(log.image, log.node_id, log.directory_id, has_crashed=has_crashed)])
        return
    known = log.image.brokers if BROKERS_FEATURE in log.image.features else {}
    last = [known.get(broker_id) for broker_id in log.broker_ids]
    has_crashed = any(broker is not None and not (broker.fenced or broker.in_controlled_shutdown) for broker in last)
    if not known and before is not None:
        has_crashed = not before.fenced
    if log.image.features.get(BROKERS_FEATURE) != len(log.broker_ids):
        log.append([FeatureLevelRecord(name=BROKERS_FEATURE, feature_level=len(log.broker_ids))])
    changes = [_registered(log, broker) for broker in (own, *others)]
    log.broker_epoch = changes[0].broker_epoch
    up = [change for change, broker in zip(changes, last, strict=True) if broker is None or not broker.fenced]
    live = {change.broker_id for change in up}
    _append_all(log, [*up, *resumed(log.image, live, log.directory_id, has_crashed=has_crashed)])


def _registered(log: MetadataLog, broker: OtherBroker) -> BrokerRegistrationChangeRecord:
    """Register a broker; return the record that unfences it."""
    epoch = log.end_offset
    registration = RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=new_incarnation_id(),
        broker_epoch=epoch,
        end_points=broker.endpoints,
        features=registered_ranges(log.image.features),
        rack=broker.rack,
        log_dirs=(log.directory_id,),
    )
    log.append([registration])
    return BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=epoch, fenced=-1)


def fold_brokers(env: Env, path: str) -> int:
    """Convert the log directory of several brokers to one broker, which becomes the only replica of every partition.

    Returns the previous number of brokers. Raises StorageError if it is 1. Blocks on the disk; the caller holds its lock.
    """
    directory = metadata_directory(path)
    properties = read_meta_properties(env, path)
    if properties is None or not env.is_dir(directory):
        raise StorageError(f"{path}: is not the data directory of a broker: it has no metadata log")
    loaded, epoch = _load(env, directory)
    count = loaded.image.features.get(BROKERS_FEATURE, 1)
    if count == 1:
        raise StorageError(f"{path}: its partitions are already on one broker; there is nothing to fold")
    broker_ids = range(properties.node_id, properties.node_id + count)
    check_writable(directory, loaded, properties, (), broker_ids)
    log = MetadataLog(
        env, path, properties, loaded, broker_ids=broker_ids[:1], snapshot_bytes=0, snapshot_interval_ms=0
    )
    try:
        log.begin_epoch(epoch, has_voters_in_log=loaded.has_voters_in_log)
        log.broker_epoch = log.image.brokers[log.node_id].broker_epoch
        _append_all(log, folded(log.image, log.node_id, log.directory_id))
        others = [log.image.brokers[broker_id] for broker_id in broker_ids[1:] if broker_id in log.image.brokers]
        gone = [UnregisterBrokerRecord(broker_id=other.broker_id, broker_epoch=other.broker_epoch) for other in others]
        log.append([*gone, FeatureLevelRecord(name=BROKERS_FEATURE, feature_level=0)])
        # Kafka starts from the newest snapshot, and so does not see the earlier record of the feature, which it would refuse.
        log.write_snapshot(log.prepare_snapshot())
    except BaseException:
        log.close(clean=False)
        raise
    log.close()
    return count


def _append_all(log: MetadataLog, records: Sequence[MetadataRecord]) -> None:
    for start in range(0, len(records), MAX_RECORDS_PER_BATCH):
        log.append(records[start : start + MAX_RECORDS_PER_BATCH])
