"""Snapshots of the metadata log equal files that Kafka's own classes wrote."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from diamant.protocol.batches.batch import iter_headers, update_crc
from diamant.protocol.batches.header import parse_header
from diamant.protocol.kraft.batch import encode_control_batch
from diamant.protocol.kraft.control_records import KRaftVoters, SnapshotFooter, Voter, VoterEndpoint
from diamant.protocol.kraft.records import ConfigRecord, MetadataRecord
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.kraft.snapshot import (
    RECORDS_PER_BATCH,
    Snapshot,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    list_snapshots,
    write_snapshot,
)
from tests.injected_faults import Operation
from tests.memory_env import MemoryEnv, PowerOff
from tests.storage.conftest import START_MS
from tests.storage.kraft.metadata_directory import FEATURE_25, GOLDEN, KAFKAS_FEATURES

DIRECTORY_ID = UUID(bytes=bytes(range(0x11, 0x21)))
VOTERS = KRaftVoters((Voter(1, DIRECTORY_ID, (VoterEndpoint("CONTROLLER", "localhost", 9093),)),))
BOOTSTRAP_CHECKPOINT = (GOLDEN / "bootstrap.checkpoint").read_bytes()
VOTERS_CHECKPOINT = (GOLDEN / "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint").read_bytes()


def without_times(data: bytes) -> bytes:
    """Return a snapshot with checksums and timestamps of its batches set to zero."""
    out = bytearray(data)
    for position, _ in iter_headers(data):
        out[position + 17 : position + 21] = bytes(4)
        out[position + 27 : position + 43] = bytes(16)
    return bytes(out)


def test_checkpoints_of_the_formatter_are_kafkas() -> None:
    """The features, and the voters in the header's batch, are read and written as Kafka does, but for the batches' times."""
    features, voters = (decode_snapshot("a.checkpoint", data) for data in (BOOTSTRAP_CHECKPOINT, VOTERS_CHECKPOINT))
    assert features.voters is None
    assert {record.name: record.feature_level for record in features.records} == KAFKAS_FEATURES  # type: ignore[union-attr]
    assert voters.records == []
    assert [voter.endpoints for voter in voters.voters.voters] == [(VoterEndpoint("CONTROLLER", "127.0.0.1", 31011),)]  # type: ignore[union-attr]
    for snapshot, kafkas in ((features, BOOTSTRAP_CHECKPOINT), (voters, VOTERS_CHECKPOINT)):
        ours = encode_snapshot(snapshot, epoch=0, metadata_version=30, timestamp_ms=START_MS)
        assert without_times(ours) == without_times(kafkas)


def test_every_cut_is_refused() -> None:
    """An incomplete snapshot is refused: without its footer other records could be missing as well."""
    for size in range(len(BOOTSTRAP_CHECKPOINT)):
        with pytest.raises(CorruptLog):
            decode_snapshot("cut.checkpoint", BOOTSTRAP_CHECKPOINT[:size])


def test_any_flipped_bit_is_refused() -> None:
    """Every significant byte is covered by a checksum or checked; inner offsets and epochs are not significant."""
    unchecked = {
        position + at for position, _ in iter_headers(BOOTSTRAP_CHECKPOINT) for at in (*range(8), *range(12, 16))
    }
    for position in range(len(BOOTSTRAP_CHECKPOINT)):
        if position in unchecked:
            continue
        damaged = bytearray(BOOTSTRAP_CHECKPOINT)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptLog):
            decode_snapshot("damaged.checkpoint", bytes(damaged))


def test_data_after_the_footer_are_refused() -> None:
    """The footer is the end; batches after it are refused."""
    more = encode_control_batch([SnapshotFooter()], base_offset=9, leader_epoch=0, timestamp_ms=START_MS)
    with pytest.raises(CorruptLog, match="follows the footer"):
        decode_snapshot("long.checkpoint", BOOTSTRAP_CHECKPOINT + more)


def test_many_records_are_split_over_batches() -> None:
    """Large snapshots consist of batches of bounded length with consecutive offsets."""
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=2, resource_name=f"topic-{number}", name="retention.ms", value=str(number))
        for number in range(2 * RECORDS_PER_BATCH + 1)
    ]
    data = encode_snapshot(Snapshot(5, 1, VOTERS, records), epoch=7, metadata_version=25, timestamp_ms=START_MS)
    headers = [header for _, header in iter_headers(data)]
    assert [header.record_count for header in headers] == [3, RECORDS_PER_BATCH, RECORDS_PER_BATCH, 1, 1]
    assert [header.base_offset for header in headers] == [0, 3, 1003, 2003, 2004]
    assert {header.partition_leader_epoch for header in headers} == {7}
    assert decode_snapshot("large.checkpoint", data) == Snapshot(5, 1, VOTERS, records)


def test_a_record_of_a_newer_kafka_is_named() -> None:
    """An unknown record version is not damage: the message says so and names the position."""
    data = bytearray(encode_snapshot(Snapshot(0, 0, None, [FEATURE_25]), epoch=0, metadata_version=25, timestamp_ms=1))
    position = data.index(bytes.fromhex("010c00116d65"))
    data[position + 2] = 1
    second = parse_header(data).size
    update_crc(data, second)
    with pytest.raises(StorageError, match="FeatureLevelRecord v1: versions 0 to 0 are known; a newer Kafka wrote it"):
        decode_snapshot("new.checkpoint", bytes(data))


def test_a_snapshot_is_written_whole_or_not_at_all() -> None:
    """Wherever a stop interrupts the write of a snapshot, a file with the final name is whole."""
    for changes in range(10):
        env = MemoryEnv(SettableClock(START_MS))
        env.make_dirs("/log")
        env.sync_dir("/")
        env.power_off_after(changes=changes)
        try:
            write_snapshot(env, "/log", SnapshotId(10, 2), BOOTSTRAP_CHECKPOINT)
            is_done = True
        except PowerOff:
            is_done = False
        env.crash()
        found = list_snapshots(env, "/log")
        assert found == ([SnapshotId(10, 2)] if found else [])
        if found:
            assert env.read_bytes("/log/00000000000000000010-0000000002.checkpoint") == BOOTSTRAP_CHECKPOINT
        if is_done:
            assert found
            return
    raise AssertionError("the snapshot was never written")


@pytest.mark.parametrize("operation", ["append", "sync", "rename"])
def test_a_snapshot_that_the_disk_refuses_leaves_no_file(operation: Operation) -> None:
    """Each attempt on a full disk would leave another partial file, until the next start."""
    env = MemoryEnv(SettableClock(START_MS))
    env.make_dirs("/log")
    fault = env.fail(operation, "*.part", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        write_snapshot(env, "/log", SnapshotId(10, 2), BOOTSTRAP_CHECKPOINT)
    assert (fault.hits, env.list_dir("/log")) == (1, [])


def test_snapshots_are_listed_by_age(env: RealEnv, tmp_path: str) -> None:
    """Finished snapshots are listed, oldest first; other files are ignored."""
    directory = str(tmp_path)
    for snapshot_id in (SnapshotId(100, 2), SnapshotId(20, 3), SnapshotId(0, 0)):
        write_snapshot(env, directory, snapshot_id, BOOTSTRAP_CHECKPOINT)
    env.write_atomically(f"{directory}/00000000000000000200-0000000002.checkpoint.deleted", b"")
    env.write_atomically(f"{directory}/00000000000000000300-0000000002-abc.checkpoint.part", b"")
    assert list_snapshots(env, directory) == [SnapshotId(0, 0), SnapshotId(20, 3), SnapshotId(100, 2)]
