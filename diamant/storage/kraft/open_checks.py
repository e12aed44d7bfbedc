"""Checks before a metadata log is opened: the directory's owner, and that this node alone may continue the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from diamant.protocol.kraft.records import FeatureLevelRecord, MetadataRecord
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_partition_metadata, write_partition_metadata
from diamant.storage.checkpoints.meta_properties import MetaProperties
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.kraft.features import BROKERS_FEATURE, unsupported_feature
from diamant.storage.kraft.replay import LoadedMetadata
from diamant.storage.uuid_text import METADATA_TOPIC_ID

_NOT_MIGRATING = (0, 3)
"""ZkMigrationState none and post-migration: the only states in which the log alone is authoritative."""


def check_owner(path: str, properties: MetaProperties, node_id: int, directory_id: UUID | None) -> None:
    """Raise StorageError for a directory of another node, or with another id."""
    if properties.node_id != node_id:
        raise StorageError(
            f"{path}: the directory belongs to node.id {properties.node_id}, the configuration says {node_id}"
        )
    if directory_id is not None and properties.directory_id != directory_id:
        raise StorageError(f"{path}: directory.id is {properties.directory_id}, expected {directory_id}")


def check_topic_id(env: Env, directory: str) -> None:
    """Write the id of the metadata topic if missing. CorruptLog if the directory has another id."""
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
    """Raise StorageError, with the first reason, for a readable log that these brokers of one node alone cannot continue.

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
