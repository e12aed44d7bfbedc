"""Directories with a metadata log, for tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

from diamant.protocol.kraft.batch import encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import LeaderChange
from diamant.protocol.kraft.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    encode_record,
)
from diamant.storage.checkpoints.meta_properties import MetaProperties, write_meta_properties
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.kraft.opening import open_metadata_log
from diamant.storage.uuid_text import random_id
from tests.memory_env import MemoryEnv

GOLDEN = Path(__file__).parents[1].parent / "golden" / "metadata-kafka-4.3.1"
GOLDEN_4_4 = GOLDEN.with_name("metadata-kafka-4.4.0")
DATA = "/data"
METADATA = f"{DATA}/__cluster_metadata-0"
FIRST_SEGMENT = f"{METADATA}/00000000000000000000.log"
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092)
START_MS = 1_700_000_000_000


def open_log(env: MemoryEnv | RealEnv, path: str = DATA, **fields: Any) -> MetadataLog:
    """Open a metadata log as the broker does."""
    defaults = {"node_id": 1, "directory_id": None, "snapshot_bytes": 20 << 20, "snapshot_interval_ms": 3_600_000}
    return open_metadata_log(env, path, endpoints=[ENDPOINT], **defaults | fields)  # type: ignore[arg-type]


def topic(log: MetadataLog, name: str, partitions: int = 1, **configs: str) -> list[MetadataRecord]:
    """Return the records that create a topic."""
    topic_id = random_id()
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(config(name, key, value) for key, value in configs.items()),
        *(partition(topic_id, number, log.directory_id) for number in range(partitions)),
    ]


def config(name: str, key: str, value: str | None) -> ConfigRecord:
    """Return a topic's config; underscores in the key stand for dots."""
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=name, name=key.replace("_", "."), value=value)


def partition(topic_id: UUID, number: int, directory_id: UUID, node_id: int = 1) -> PartitionRecord:
    """Return a fresh partition."""
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=(node_id,),
        isr=(node_id,),
        leader=node_id,
        leader_epoch=0,
        partition_epoch=0,
        directories=(directory_id,),
    )


def golden_directory(tmp_path: Path, golden: Path = GOLDEN, *, with_snapshots: bool = True) -> str:
    """Return a copy of a directory left by Kafka."""
    target = tmp_path / "kafka"
    shutil.copytree(golden, target)
    if not with_snapshots:
        for snapshot in (target / "__cluster_metadata-0").glob("*-0000000002.checkpoint"):
            snapshot.unlink()
    return str(target)


def write_log(env: MemoryEnv | RealEnv, data: bytes, path: str = FIRST_SEGMENT) -> None:
    """Replace a segment's content."""
    env.write_atomically(path, data)


def batch(records: list[MetadataRecord], base_offset: int, epoch: int = 1) -> bytes:
    """Return a batch as a log has it."""
    values = [encode_record(record) for record in records]
    return encode_metadata_batch(values, base_offset=base_offset, leader_epoch=epoch, timestamp_ms=START_MS)


def leader_change(base_offset: int = 0, epoch: int = 1, voters: tuple[int, ...] = (1,)) -> bytes:
    """Return the batch that begins an epoch."""
    return encode_control_batch(
        [LeaderChange(1, voters, voters)], base_offset=base_offset, leader_epoch=epoch, timestamp_ms=START_MS
    )


FEATURE_25 = FeatureLevelRecord(name="metadata.version", feature_level=25)
KAFKAS_FEATURES = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""The features finalized by `kafka-storage format` of 4.3.1."""
FEATURES_OF_4_4 = {**KAFKAS_FEATURES, "metadata.version": 33, "share.version": 2}
"""Those of 4.4.0."""


def make_static_log(env: MemoryEnv, *batches: bytes) -> None:
    """Make a directory whose voters are in the configuration, with a log of these batches."""
    env.make_dirs(METADATA)
    write_meta_properties(env, DATA, MetaProperties("cluster", 1, UUID(int=0xD18 << 100)))
    write_log(env, b"".join(batches))


def snapshot_if_due(log: MetadataLog) -> bool:
    """Write a snapshot if one is due, and trim the log, as the housekeeping does; return True if written."""
    if log.is_snapshot_due:
        log.write_snapshot(log.prepare_snapshot())
        return True
    return False
