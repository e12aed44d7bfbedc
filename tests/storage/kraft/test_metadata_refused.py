"""Metadata logs that this broker must not continue: of another owner, of several voters, of a newer Kafka."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from diamant.protocol.kraft.batch import encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import KRaftVersion, KRaftVoters, LeaderChange, Voter
from diamant.protocol.kraft.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from diamant.storage.checkpoints.quorum_state import QuorumState, format_quorum_state
from diamant.storage.errors import StorageError
from diamant.storage.kraft.snapshot import Snapshot, encode_snapshot
from tests.memory_env import MemoryEnv
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
    with pytest.raises(StorageError, match=r"belongs to node\.id 1, but the configuration says 2"):
        open_log(memory, node_id=2)
    with pytest.raises(StorageError, match=r"directory\.id is"):
        open_log(memory, directory_id=UUID(int=8 << 64))


def log_of(*batches: bytes, beside: tuple[str, bytes] | None = None) -> Callable[[MemoryEnv], None]:
    """Return what makes a directory with a log of these batches, and perhaps another file in it."""

    def make(env: MemoryEnv) -> None:
        make_static_log(env, *batches)
        if beside is not None:
            env.write_atomically(f"{METADATA}/{beside[0]}", beside[1])

    return make


FOREIGN: list[MetadataRecord] = [
    FEATURE_25,
    TopicRecord(name="foo", topic_id=UUID(int=5)),
    partition(UUID(int=5), 0, UUID(int=6), node_id=2),
]
OF_THREE = (leader_change(voters=(1, 2, 3)), batch([FEATURE_25], 1))
SNAPSHOT = encode_snapshot(Snapshot(0, 0, None, [FEATURE_25]), epoch=1, metadata_version=25, timestamp_ms=START_MS)
ELECTION = format_quorum_state(QuorumState(2, 1, voters=(1, 2, 3)))
TWO_VOTERS = KRaftVoters((Voter(1, UUID(int=0xD18 << 100), ()), Voter(2, UUID(int=9 << 100), ())))
CONTROLS = [LeaderChange(1, (1, 2), (1, 2)), KRaftVersion(1), TWO_VOTERS]
NEWER = FeatureLevelRecord(name="metadata.version", feature_level=34)
UNFIT = {
    "a replica elsewhere": (
        log_of(leader_change(), batch(FOREIGN, 1)),
        r"foo-0 has replicas \(2,\), expected only this node: 1",
    ),
    "three voters": (log_of(*OF_THREE), r"voters are \(1, 2, 3\)"),
    "three voters, below a snapshot": (
        log_of(*OF_THREE, beside=("00000000000000000002-0000000001.checkpoint", SNAPSHOT)),
        r"voters are \(1, 2, 3\)",
    ),
    "three voters, never started": (log_of(beside=("quorum-state", ELECTION)), r"voters are \(1, 2, 3\)"),
    "two voters in the log": (
        log_of(encode_control_batch(CONTROLS, base_offset=0, leader_epoch=1, timestamp_ms=START_MS)),
        "expected only this node and directory",
    ),
    "newer features": (
        log_of(leader_change(), batch([NEWER], 1)),
        r"metadata\.version is at level 34 \(4\.5-IV0\), supported are 7 \(3\.3-IV3\) to 33 \(4\.4-IV2\)",
    ),
    "a newer record": (
        log_of(
            leader_change(),
            encode_metadata_batch([bytes((1, 30, 0, 0))], base_offset=1, leader_epoch=1, timestamp_ms=START_MS),
        ),
        "api key 30 .* a newer Kafka wrote it",
    ),
    "another topic id": (
        log_of(beside=("partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")),
        "topic id is",
    ),
}


@pytest.mark.parametrize(("make", "complaint"), UNFIT.values(), ids=list(UNFIT))
def test_a_metadata_log_of_a_larger_cluster_is_refused(
    memory: MemoryEnv, make: Callable[[MemoryEnv], None], complaint: str
) -> None:
    """A log of a larger cluster or of a newer Kafka is refused with the reason, before anything is written."""
    make(memory)
    before = {name: memory.read_bytes(f"{METADATA}/{name}") for name in memory.list_dir(METADATA)}
    with pytest.raises(StorageError, match=complaint):
        open_log(memory)
    before.setdefault("partition.metadata", memory.read_bytes(f"{METADATA}/partition.metadata"))
    assert {name: memory.read_bytes(f"{METADATA}/{name}") for name in memory.list_dir(METADATA)} == before
