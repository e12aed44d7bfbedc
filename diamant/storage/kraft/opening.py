"""Opening of the metadata log, and the records that a start writes to it.

Like a real node at its start, reads the log, becomes its leader in a new epoch and registers the broker. Every start writes:

    LeaderChange                      a control batch; with KRaftVersion and KRaftVoters the first time
    Begin, features, End              the first time only, from the formatter's checkpoint
    RegisterBroker                    its broker epoch is its own offset
    BrokerRegistrationChange          unfenced, and in the same batch a PartitionChange for every partition without a
                                      leader, as a real Kafka leaves them at its stop; after a crash for all partitions

Source: KafkaRaftClient, QuorumController, ClusterControlManager, ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from diamant.protocol.kraft.records import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    Endpoint,
    MetadataRecord,
    RegisterBrokerRecord,
)
from diamant.storage.checkpoints.meta_properties import read_meta_properties
from diamant.storage.checkpoints.quorum_state import read_quorum_state
from diamant.storage.env.env import Env
from diamant.storage.kraft.features import DEFAULT_RELEASE, RELEASES, registered_ranges
from diamant.storage.kraft.format import DEFAULT_CONTROLLER_ENDPOINT, format_directory, metadata_directory
from diamant.storage.kraft.incarnation import is_of_diamant, new_incarnation_id
from diamant.storage.kraft.metadata_log import (
    DEFAULT_SNAPSHOT_BYTES,
    DEFAULT_SNAPSHOT_INTERVAL_MS,
    MAX_RECORDS_PER_BATCH,
    MetadataLog,
)
from diamant.storage.kraft.open_checks import check_owner, check_topic_id, check_writable
from diamant.storage.kraft.replay import load_metadata
from diamant.storage.kraft.start_records import bootstrap_records, orphaned_configs, takeovers


def open_metadata_log(
    env: Env,
    path: str,
    *,
    node_id: int,
    endpoints: Sequence[Endpoint],
    controller_endpoint: Endpoint = DEFAULT_CONTROLLER_ENDPOINT,
    directory_id: UUID | None = None,
    rack: str | None = None,
    features: Mapping[str, int] = RELEASES[DEFAULT_RELEASE],
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
    snapshot_interval_ms: int = DEFAULT_SNAPSHOT_INTERVAL_MS,
) -> MetadataLog:
    """Open the metadata log of the log directory `path`; format a new directory first. Blocks.

    The caller holds the directory's lock. `endpoints` are the broker's advertised listeners, `(name, host, port, security
    protocol)`. `controller_endpoint` and `features` are those of a new directory; `directory_id` too, and must match that of
    an existing one. A snapshot is due after `snapshot_bytes` of records or after `snapshot_interval_ms`, 0 for never.

    StorageError if the log belongs to another node, has replicas on other brokers or other voters, or is from a newer Kafka;
    CorruptLog if it is damaged.
    """
    if not endpoints:
        raise ValueError("a broker registers at least one endpoint, got none")
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
    directory = metadata_directory(path)
    if not env.is_dir(directory):
        # Formatted for voters from the configuration, but never started.
        env.make_dirs(directory)
        env.sync_dir(path)
    check_topic_id(env, directory)
    loaded = load_metadata(env, directory)
    quorum_state = read_quorum_state(env, directory)
    if not loaded.quorum and quorum_state.voters:
        loaded.quorum = quorum_state.voters
    first = bootstrap_records(env, path, loaded, features)
    check_writable(directory, loaded, properties, first)
    log = MetadataLog(
        env,
        path,
        properties,
        loaded,
        snapshot_bytes=snapshot_bytes,
        snapshot_interval_ms=snapshot_interval_ms,
    )
    try:
        log.remove_leftovers()
        epoch = max(quorum_state.leader_epoch, loaded.last_epoch) + 1
        log.begin_epoch(epoch, has_voters_in_log=loaded.has_voters_in_log)
        if loaded.has_open_transaction:
            log.append([AbortTransactionRecord(reason="Controller failover")])
        if first:
            log.append(first)
        _register(log, tuple(Endpoint(*endpoint) for endpoint in endpoints), rack)
        _append_all(log, orphaned_configs(log.image))
        log.sync()
    except BaseException:
        log.close(clean=False)
        raise
    return log


def _register(log: MetadataLog, endpoints: tuple[Endpoint, ...], rack: str | None) -> None:
    before = log.image.brokers.get(log.node_id)
    has_crashed = before is not None and not before.fenced
    log.is_taken_over = before is not None and not is_of_diamant(before.incarnation_id)
    log.broker_epoch = log.end_offset
    registration = RegisterBrokerRecord(
        broker_id=log.node_id,
        incarnation_id=new_incarnation_id(),
        broker_epoch=log.broker_epoch,
        end_points=endpoints,
        features=registered_ranges(log.image.features),
        rack=rack,
        log_dirs=(log.directory_id,),
    )
    log.append([registration])
    unfenced = BrokerRegistrationChangeRecord(broker_id=log.node_id, broker_epoch=log.broker_epoch, fenced=-1)
    taken_over = takeovers(log.image, log.node_id, log.directory_id, has_crashed=has_crashed)
    _append_all(log, [unfenced, *taken_over])


def _append_all(log: MetadataLog, records: Sequence[MetadataRecord]) -> None:
    for start in range(0, len(records), MAX_RECORDS_PER_BATCH):
        log.append(records[start : start + MAX_RECORDS_PER_BATCH])
