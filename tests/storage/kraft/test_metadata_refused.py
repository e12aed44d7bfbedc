"""Metadata logs that this broker must not continue: of another owner, of several voters, of a newer Kafka."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from diamant.protocol.kraft.batch import encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import KRaftVersion, KRaftVoters, LeaderChange, Voter
from diamant.protocol.kraft.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from diamant.storage.checkpoints.quorum_state import QuorumState, write_quorum_state
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.snapshot import Snapshot, encode_snapshot
from tests.storage.kraft.metadata_directory import (
    FEATURE_25,
    METADATA,
    START_MS,
    batch,
    leader_change,
    make_static_log,
    open_log,
    partition,
)


def test_another_owner_is_refused(memory: MemoryEnv) -> None:
    """node.id and directory.id are part of the log; a directory of another node is refused."""
    open_log(memory, directory_id=UUID(int=7 << 64)).close()
    with pytest.raises(StorageError, match=r"belongs to node\.id 1, the configuration says 2"):
        open_log(memory, node_id=2)
    with pytest.raises(StorageError, match=r"directory\.id is"):
        open_log(memory, directory_id=UUID(int=8 << 64))


def replica_elsewhere(env: MemoryEnv) -> None:
    """Make a log with a partition of broker 2."""
    records: list[MetadataRecord] = [
        FEATURE_25,
        TopicRecord(name="foo", topic_id=UUID(int=5)),
        partition(UUID(int=5), 0, UUID(int=6), node_id=2),
    ]
    make_static_log(env, leader_change(), batch(records, 1))


def three_voters(env: MemoryEnv) -> None:
    """Make a log of a quorum of three."""
    make_static_log(env, leader_change(voters=(1, 2, 3)), batch([FEATURE_25], 1))


def three_voters_below_a_snapshot(env: MemoryEnv) -> None:
    """Make a log of a quorum of three, completely covered by a snapshot."""
    make_static_log(env, leader_change(voters=(1, 2, 3)), batch([FEATURE_25], 1))
    content = encode_snapshot(Snapshot(0, 0, None, [FEATURE_25]), epoch=1, metadata_version=25, timestamp_ms=START_MS)
    env.write_atomically(f"{METADATA}/00000000000000000002-0000000001.checkpoint", content)


def three_voters_never_started(env: MemoryEnv) -> None:
    """Make a directory with only the record of an election among three."""
    make_static_log(env)
    write_quorum_state(env, METADATA, QuorumState(2, 1, voters=(1, 2, 3)))


def two_voters_in_log(env: MemoryEnv) -> None:
    """Make a log that holds two voters."""
    voters = KRaftVoters((Voter(1, UUID(int=0xD18 << 100), ()), Voter(2, UUID(int=9 << 100), ())))
    controls = [LeaderChange(1, (1, 2), (1, 2)), KRaftVersion(1), voters]
    make_static_log(env, encode_control_batch(controls, base_offset=0, leader_epoch=1, timestamp_ms=START_MS))


def newer_features(env: MemoryEnv) -> None:
    """Make a log of a newer Kafka."""
    newer = FeatureLevelRecord(name="metadata.version", feature_level=31)
    make_static_log(env, leader_change(), batch([newer], 1))


def newer_record(env: MemoryEnv) -> None:
    """Make a log with a record that no known Kafka writes."""
    value = bytes((1, 29, 0, 0))
    made = encode_metadata_batch([value], base_offset=1, leader_epoch=1, timestamp_ms=START_MS)
    make_static_log(env, leader_change(), made)


def other_topic_id(env: MemoryEnv) -> None:
    """Make a directory whose metadata log belongs to another topic."""
    make_static_log(env)
    env.write_atomically(f"{METADATA}/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (replica_elsewhere, r"foo-0 has replicas \(2,\), expected only this node: 1"),
        (three_voters, r"voters are \(1, 2, 3\)"),
        (three_voters_below_a_snapshot, r"voters are \(1, 2, 3\)"),
        (three_voters_never_started, r"voters are \(1, 2, 3\)"),
        (two_voters_in_log, "expected only this node and directory"),
        (newer_features, r"metadata\.version is at level 31, supported are 7 to 30"),
        (newer_record, "api key 29 .* a newer Kafka wrote it"),
        (other_topic_id, "topic id is"),
    ],
)
def test_what_we_cannot_carry_on_alone_is_refused(
    memory: MemoryEnv, make: Callable[[MemoryEnv], None], complaint: str
) -> None:
    """A log of a larger cluster or of a newer Kafka is refused with the reason, before anything is written."""
    make(memory)
    before = {name: memory.read_bytes(f"{METADATA}/{name}") for name in memory.list_dir(METADATA)}
    with pytest.raises(StorageError, match=complaint):
        open_log(memory)
    before.setdefault("partition.metadata", memory.read_bytes(f"{METADATA}/partition.metadata"))
    assert {name: memory.read_bytes(f"{METADATA}/{name}") for name in memory.list_dir(METADATA)} == before
