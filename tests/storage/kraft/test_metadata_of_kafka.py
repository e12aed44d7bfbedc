"""Directories that Kafka has used, or only formatted."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.kraft.records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from diamant.storage.checkpoints.meta_properties import read_meta_properties
from diamant.storage.checkpoints.quorum_state import QuorumState, read_quorum_state
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.format import format_directory
from diamant.storage.kraft.image import MetadataImage
from diamant.storage.kraft.incarnation import is_of_diamant, was_last_broker
from diamant.storage.kraft.replay import load_metadata
from diamant.storage.kraft.snapshot import Snapshot, decode_snapshot, encode_snapshot
from tests.memory_env import MemoryEnv
from tests.storage.kraft.metadata_directory import (
    DATA,
    FEATURE_25,
    FEATURES_OF_4_4,
    GOLDEN,
    GOLDEN_4_4,
    KAFKAS_FEATURES,
    METADATA,
    START_MS,
    batch,
    golden_directory,
    leader_change,
    make_static_log,
    open_log,
    partition,
)


class Release(NamedTuple):
    """A release of Kafka, and what it left in its golden directory."""

    golden: Path
    features: dict[str, int]
    end_offset: int
    second_epoch: int
    hosts: list[str]
    """Hosts of the ACLs."""


RELEASES = {
    "4.3.1": Release(GOLDEN, KAFKAS_FEATURES, 64, 47, ["*"]),
    "4.4.0": Release(GOLDEN_4_4, FEATURES_OF_4_4, 68, 51, ["*", "10.0.0.0/8", "2001:db8::/32"]),
}


@pytest.fixture(params=RELEASES.values(), ids=list(RELEASES))
def release(request: pytest.FixtureRequest) -> Release:
    """Each release in turn."""
    found: Release = request.param
    return found


def test_kafkas_log_and_snapshots_agree(env: RealEnv, tmp_path: Path, release: Release) -> None:
    """Replaying Kafka's log yields the image of its last snapshot, except for one config that Kafka should have dropped."""
    path = golden_directory(tmp_path, release.golden, with_snapshots=False)
    log_only = load_metadata(env, f"{path}/__cluster_metadata-0")
    last = decode_snapshot("last.checkpoint", (release.golden / "last.checkpoint").read_bytes())
    of_snapshot = MetadataImage()
    for record in last.records:
        of_snapshot.apply(record)
    assert of_snapshot.configs.pop((2, "gone")) == {"retention.ms": "1000"}
    for image in (of_snapshot, log_only.image):
        # Kafka writes the ranges in the order of a hash table.
        image.brokers[1] = image.brokers[1].changed(features=tuple(sorted(image.brokers[1].features)))
    assert of_snapshot == log_only.image
    assert (log_only.end_offset, log_only.last_epoch) == (release.end_offset, 2)
    assert log_only.epochs == [(1, 0), (2, release.second_epoch)]
    # In the log of 4.4.0 controller 2 was registered, and unregistered.
    assert list(log_only.image.controllers) == [1]
    assert log_only.voters == last.voters
    registration = next(record for record in last.records if isinstance(record, RegisterBrokerRecord))
    assert registration.cordoned_log_dirs == registration.log_dirs


def test_our_snapshot_of_kafkas_image_is_its_own(release: Release) -> None:
    """Written by us, Kafka's image has the same records in the same versions as in Kafka's snapshot."""
    content = (release.golden / "last.checkpoint").read_bytes()
    last = decode_snapshot("last.checkpoint", content)
    image = MetadataImage()
    for record in last.records:
        image.apply(record)
    assert sorted(map(repr, image.to_records())) == sorted(map(repr, last.records))
    ours = encode_snapshot(last, epoch=2, metadata_version=image.metadata_version, timestamp_ms=START_MS)
    assert len(ours) == len(content)
    assert ours[61:154] == content[61:154]


def test_a_directory_of_a_stopped_kafka_is_taken_over(env: RealEnv, tmp_path: Path, release: Release) -> None:
    """Kafka stops with partitions without leaders; we lead all of them in a higher epoch, and keep everything else."""
    path = golden_directory(tmp_path, release.golden)
    before = load_metadata(env, f"{path}/__cluster_metadata-0").image
    assert {image.leader for found in before.topics.values() for image in found.partitions.values()} == {-1}
    log = open_log(env, path)
    assert log.epoch == 3
    assert sorted(log.image.topics) == ["bar", "foo"]
    for name, found in log.image.topics.items():
        for number, image in found.partitions.items():
            assert (image.leader, image.isr, image.eligible_leader_replicas) == (1, (1,), ())
            assert image.leader_epoch == before.topics[name].partitions[number].leader_epoch + 1
            assert image.directories == (log.directory_id,)
    properties = read_meta_properties(env, path)
    assert properties is not None
    assert log.directory_id == properties.directory_id
    assert log.image.features == before.features == release.features
    assert log.image.next_producer_id == 1000
    assert list(log.image.scram_credentials) == [(1, "alice")]
    assert [acl.host for acl in log.image.acls.values()] == release.hosts
    registered = {found.name for found in log.image.brokers[1].features}
    assert set(log.image.features) <= registered
    log.close()
    again = open_log(env, path)
    assert again.image.topics == log.image.topics
    again.close()


def test_configs_of_a_topic_that_is_gone_are_dropped(env: RealEnv, tmp_path: Path) -> None:
    """Kafka's snapshot has restored a config of a deleted topic; a new topic of that name must not inherit it."""
    path = golden_directory(tmp_path)
    assert (2, "gone") in load_metadata(env, f"{path}/__cluster_metadata-0").image.configs
    log = open_log(env, path)
    assert (2, "gone") not in log.image.configs
    log.close()
    assert (2, "gone") not in load_metadata(env, f"{path}/__cluster_metadata-0").image.configs


def test_a_directory_that_kafka_has_formatted_and_not_started(env: RealEnv, tmp_path: Path, release: Release) -> None:
    """Features and voters come from Kafka's formatter: its metadata.version, the ELR default with it."""
    path = golden_directory(tmp_path, release.golden, with_snapshots=False)
    for name in ("00000000000000000000.log", "quorum-state", "leader-epoch-checkpoint"):
        env.remove(f"{path}/__cluster_metadata-0/{name}")
    log = open_log(env, path)
    assert (log.epoch, log.image.features) == (1, release.features)
    assert log.image.configs == {(4, ""): {"min.insync.replicas": "1"}}
    log.close()
    ours = (tmp_path / "kafka" / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    kafkas = (release.golden / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    ours_records, kafkas_records = (
        [data[position + 61 : position + header.size] for position, header in iter_headers(data)][:2]
        for data in (ours, kafkas)
    )
    assert ours_records == kafkas_records


def test_a_directory_that_a_newer_kafka_has_formatted(memory: MemoryEnv) -> None:
    """The error names the level; nothing is written to the directory."""
    format_directory(memory, DATA, features={**FEATURES_OF_4_4, "metadata.version": 34})
    before = memory.list_dir(METADATA)
    with pytest.raises(
        StorageError, match=r"is at level 34 \(4\.5-IV0\), supported are 7 \(3\.3-IV3\) to 33 \(4\.4-IV2\)"
    ):
        open_log(memory)
    assert memory.list_dir(METADATA) == before


def test_bootstrap_records_of_a_newer_formatter(memory: MemoryEnv) -> None:
    """A first start writes the data in the voters' snapshot; with an existing log they are ignored."""
    properties = format_directory(memory, DATA, "cluster")
    memory.remove(f"{DATA}/bootstrap.checkpoint")
    path = f"{METADATA}/00000000000000000000-0000000000.checkpoint"
    voters = decode_snapshot(path, memory.read_bytes(path)).voters
    records = [FeatureLevelRecord(name="metadata.version", feature_level=24)]
    memory.remove(path)
    memory.write_atomically(
        path, encode_snapshot(Snapshot(0, 1, voters, records), epoch=0, metadata_version=24, timestamp_ms=START_MS)
    )
    log = open_log(memory)
    assert log.directory_id == properties.directory_id
    assert log.image.features == {"metadata.version": 24}
    log.append([FeatureLevelRecord(name="metadata.version", feature_level=25)])
    log.close()
    assert load_metadata(memory, METADATA).image.features == {"metadata.version": 25}


def test_voters_from_the_configuration(memory: MemoryEnv) -> None:
    """A log without voters is continued without them: quorum-state version 0, and no voters in log or snapshots."""
    make_static_log(memory, leader_change(), batch([FEATURE_25], 1))
    log = open_log(memory)
    assert read_quorum_state(memory, METADATA) == QuorumState(1, 2, voters=(1,))
    log.write_snapshot(log.prepare_snapshot())
    log.close()
    loaded = load_metadata(memory, METADATA)
    assert (loaded.kraft_version, loaded.voters, loaded.quorum) == (0, None, (1,))
    assert loaded.snapshot_id is not None


def test_partitions_in_no_or_another_directory_are_ours(memory: MemoryEnv) -> None:
    """A real controller elects no leader for a partition with an unassigned or lost directory; we assign ours."""
    records: list[MetadataRecord] = [
        FEATURE_25,
        TopicRecord(name="foo", topic_id=UUID(int=5)),
        partition(UUID(int=5), 0, UUID(int=1)),
        partition(UUID(int=5), 1, UUID(int=0xDEAD << 90)),
        PartitionChangeRecord(partition_id=1, topic_id=UUID(int=5), leader=-1),
    ]
    make_static_log(memory, leader_change(), batch(records, 1))
    log = open_log(memory)
    found = log.image.topics["foo"].partitions
    assert [(image.leader, image.leader_epoch, image.directories) for image in found.values()] == [
        (1, 0, (log.directory_id,)),
        (1, 2, (log.directory_id,)),
    ]


def test_the_last_registration_tells_which_broker_ran_last(env: RealEnv, tmp_path: Path) -> None:
    """The last registration tells, on a directory that both have run on, too; and after a snapshot of the metadata."""
    path = golden_directory(tmp_path)
    assert not was_last_broker(env, str(tmp_path))
    assert not was_last_broker(env, path)
    for _ in range(2):
        log = open_log(env, path)
        before = log.image.brokers[log.node_id]
        log.close()
        assert was_last_broker(env, path)
        # Kafka's start: the same record with an id of its own.
        log = open_log(env, path)
        [ours] = [record for record in log.image.to_records() if isinstance(record, RegisterBrokerRecord)]
        log.broker_epoch = log.end_offset
        log.append(
            [
                RegisterBrokerRecord(
                    broker_id=ours.broker_id,
                    incarnation_id=uuid4(),
                    broker_epoch=log.broker_epoch,
                    end_points=ours.end_points,
                    features=ours.features,
                    rack=None,
                    log_dirs=ours.log_dirs,
                )
            ]
        )
        log.close()
        assert not was_last_broker(env, path)
        assert before.incarnation_id != ours.incarnation_id
    log = open_log(env, path, snapshot_bytes=1)
    log.close()
    assert was_last_broker(env, path)
    assert not any(is_of_diamant(uuid4()) for _ in range(1000))
