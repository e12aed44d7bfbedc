"""The records that a broker adds to the metadata log at startup, derived from the current state of the log.

Source: QuorumController, ActivationRecordsGenerator, ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from diamant.protocol.kraft.records import (
    BROKER_RESOURCE,
    NO_LEADER_CHANGE,
    TOPIC_RESOURCE,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from diamant.storage import names
from diamant.storage.env.env import MAX_LOG_FILE, Env
from diamant.storage.kraft.elections import partition_change
from diamant.storage.kraft.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    FIRST_WITH_DIRECTORIES,
    FIRST_WITH_TRANSACTIONS,
    METADATA_VERSION,
    MIN_INSYNC_REPLICAS,
    feature_records,
)
from diamant.storage.kraft.image import MetadataImage, PartitionImage
from diamant.storage.kraft.replay import LoadedMetadata
from diamant.storage.kraft.snapshot import decode_snapshot

_BOOTSTRAP_NAME = "Bootstrap records"


def bootstrap_records(
    env: Env, path: str, loaded: LoadedMetadata, features: Mapping[str, int], min_insync_replicas: str
) -> list[MetadataRecord]:
    """Return the records that the first start in the log directory `path` writes, as one transaction; none at a later start.

    They set the features with which the directory was formatted, or `features` if formatting recorded none. If ELR is enabled,
    they make `min_insync_replicas` the cluster-wide setting.
    """
    # An aborted first start leaves only records of an open transaction (`ActivationRecordsGenerator`).
    if not (loaded.is_empty or (loaded.has_open_transaction and loaded.image.is_empty)):
        return []
    file = f"{path}/{names.BOOTSTRAP_CHECKPOINT}"
    records: list[MetadataRecord] = list(loaded.bootstrap_records)
    if env.exists(file):
        records = list(decode_snapshot(file, env.read_bytes(file, MAX_LOG_FILE)).records)
    levels = {record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)}
    if METADATA_VERSION not in levels:
        levels = dict(features)
        records = [*feature_records(levels), *records]
    if levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION):
        # As in QuorumController: with ELR, min.insync.replicas is a setting of the cluster, not of each broker.
        records.append(
            ConfigRecord(
                resource_type=BROKER_RESOURCE, resource_name="", name=MIN_INSYNC_REPLICAS, value=min_insync_replicas
            )
        )
    if levels[METADATA_VERSION] < FIRST_WITH_TRANSACTIONS:
        return records
    return [BeginTransactionRecord(name=_BOOTSTRAP_NAME), *records, EndTransactionRecord()]


def orphaned_configs(image: MetadataImage) -> list[ConfigRecord]:
    """Return the records that remove the configs of deleted topics.

    Kafka's snapshots (at least in 4.3.1) can bring such configs back if a topic was created and deleted between two snapshots;
    a new topic of that name would inherit them.
    """
    return [
        ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=None)
        for (resource_type, resource_name), values in image.configs.items()
        if resource_type == TOPIC_RESOURCE and resource_name not in image.topics
        for name in values
    ]


def resumed(
    image: MetadataImage, live: Collection[int], directory_id: UUID, *, has_crashed: bool
) -> list[PartitionChangeRecord]:
    """Return the changes for a start of several brokers: partitions without a leader get one, and after a crash every partition
    gets a new leader epoch, for the reason given in `takeovers`.
    """
    changes = []
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            min_isr, has_elr = isr_rules(image, topic.name)
            unchanged = PartitionChangeRecord(partition_id=partition.partition_id, topic_id=topic.topic_id)
            change = (
                partition_change(topic.topic_id, partition, live.__contains__, min_isr=min_isr, has_elr=has_elr)
                or unchanged
            )
            if has_crashed and change.leader == NO_LEADER_CHANGE:
                change = change.changed(leader=partition.leader)
            ours = (directory_id,) * len(partition.replicas)
            if partition.directories != ours and image.metadata_version >= FIRST_WITH_DIRECTORIES:
                change = change.changed(directories=ours)
            if change != unchanged:
                changes.append(change)
    return changes


def folded(image: MetadataImage, node_id: int, directory_id: UUID) -> list[PartitionChangeRecord]:
    """Return the changes that make node `node_id` the only replica of every partition."""
    has_directories = image.metadata_version >= FIRST_WITH_DIRECTORIES
    return [
        PartitionChangeRecord(
            partition_id=partition.partition_id,
            topic_id=topic.topic_id,
            replicas=(node_id,),
            isr=(node_id,),
            leader=node_id,
            removing_replicas=(),
            adding_replicas=(),
            eligible_leader_replicas=() if partition.eligible_leader_replicas else None,
            last_known_elr=() if partition.last_known_elr else None,
            directories=(directory_id,) if has_directories else None,
        )
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    ]


def isr_rules(image: MetadataImage, topic: str) -> tuple[int, bool]:
    """Return a topic's `min.insync.replicas`, as the controller sees it, and whether eligible leader replicas are enabled."""
    of_all = image.configs.get((BROKER_RESOURCE, ""), {}).get(MIN_INSYNC_REPLICAS, "1")
    text = image.configs.get((TOPIC_RESOURCE, topic), {}).get(MIN_INSYNC_REPLICAS, of_all)
    return int(text), bool(image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION))


def takeovers(
    image: MetadataImage, node_id: int, directory_id: UUID, *, has_crashed: bool
) -> list[PartitionChangeRecord]:
    """Return the changes that make node `node_id` the leader of every partition, in the log directory `directory_id`.

    After a crash this includes partitions that we already lead: unsynced records may be lost, and the new leader epoch lets
    clients detect that other records were written at their offsets.
    """
    changes = []
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            change = _takeover(image, node_id, directory_id, topic.topic_id, partition, has_crashed=has_crashed)
            if change is not None:
                changes.append(change)
    return changes


def _takeover(
    image: MetadataImage,
    node_id: int,
    directory_id: UUID,
    topic_id: UUID,
    partition: PartitionImage,
    *,
    has_crashed: bool,
) -> PartitionChangeRecord | None:
    has_leader = partition.leader == node_id and not has_crashed
    ours = (directory_id,)
    # A directory may be unassigned, or on a lost disk; a real controller then elects no leader.
    moves = partition.directories != ours and image.metadata_version >= FIRST_WITH_DIRECTORIES
    if has_leader and not moves:
        return None
    return PartitionChangeRecord(
        partition_id=partition.partition_id,
        topic_id=topic_id,
        isr=None if node_id in partition.isr else (node_id,),
        leader=NO_LEADER_CHANGE if has_leader else node_id,
        leader_recovery_state=0 if partition.leader_recovery_state else -1,
        # With ELR (KIP-966) these two fields list a stopped node that has left the ISR.
        eligible_leader_replicas=() if partition.eligible_leader_replicas else None,
        last_known_elr=() if partition.last_known_elr else None,
        directories=ours if moves else None,
    )
