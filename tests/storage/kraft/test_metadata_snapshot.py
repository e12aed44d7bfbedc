"""Snapshots of the metadata log equal files that Kafka's own classes wrote."""

from __future__ import annotations

from uuid import UUID

import pytest

from diamant.protocol.batches.batch import iter_headers, update_crc
from diamant.protocol.batches.header import parse_header
from diamant.protocol.kraft.batch import encode_control_batch
from diamant.protocol.kraft.control_records import KRaftVoters, SnapshotFooter, Voter, VoterEndpoint
from diamant.protocol.kraft.records import ConfigRecord, FeatureLevelRecord, MetadataRecord
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.env.memory import MemoryEnv, PowerOff
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
from tests.storage.conftest import START_MS

DIRECTORY_ID = UUID(bytes=bytes(range(0x11, 0x21)))
VOTERS = KRaftVoters((Voter(1, DIRECTORY_ID, (VoterEndpoint("CONTROLLER", "localhost", 9093),)),))
FEATURES: list[MetadataRecord] = [
    FeatureLevelRecord(name="metadata.version", feature_level=25),
    FeatureLevelRecord(name="group.version", feature_level=1),
    FeatureLevelRecord(name="transaction.version", feature_level=2),
]

# Written by Kafka's RecordsSnapshotWriter (4.0 sources); each batch has the time of its writing.
BOOTSTRAP_CHECKPOINT = bytes.fromhex(
    "0000000000000000000000470000000002b5236422002000000000000001a1fbb57957000001a1fbb57957ffffffffffffffffff"
    "ffffffffff000000012a00000008000000031600000000000000000000000000000000000000010000008b000000000252dc4694"
    "000000000002000001a1fbb57963000001a1fbb57963ffffffffffffffffffffffffffff000000033a000000012e010c00116d65"
    "7461646174612e76657273696f6e00190000340000020128010c000e67726f75702e76657273696f6e0001000040000004013401"
    "0c00147472616e73616374696f6e2e76657273696f6e0002000000000000000000040000003f0000000002e3e8dbb80020000000"
    "00000001a1fbb57967000001a1fbb57967ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)
VOTERS_CHECKPOINT = bytes.fromhex(
    "00000000000000000000009a00000000021bdba70b002000000002000001a1fbb5798b000001a1fbb5798bffffffffffffffffff"
    "ffffffffff000000032a00000008000000031600000000018bcfe5680000001e00000208000000050a0000000100008201000004"
    "08000000066e000002000000011112131415161718191a1b1c1d1e1f20020b434f4e54524f4c4c45520a6c6f63616c686f737423"
    "8500000000010000000000000000000000030000003f0000000002faf2f7f2002000000000000001a1fbb57991000001a1fbb579"
    "91ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)


def without_times(data: bytes) -> bytes:
    """Return a snapshot with checksums and timestamps of its batches set to zero."""
    out = bytearray(data)
    for position, _ in iter_headers(data):
        out[position + 17 : position + 21] = bytes(4)
        out[position + 27 : position + 43] = bytes(16)
    return bytes(out)


def test_bootstrap_checkpoint_is_kafkas() -> None:
    """A snapshot of features equals the file of Kafka's formatter, except for the times of its batches."""
    snapshot = Snapshot(0, 0, None, FEATURES)
    assert decode_snapshot("bootstrap.checkpoint", BOOTSTRAP_CHECKPOINT) == snapshot
    ours = encode_snapshot(snapshot, epoch=0, metadata_version=25, timestamp_ms=START_MS)
    assert len(ours) == 309
    assert without_times(ours) == without_times(BOOTSTRAP_CHECKPOINT)


def test_voters_checkpoint_is_kafkas() -> None:
    """The voters are in the header's batch, as in the file of `format --standalone`."""
    snapshot = Snapshot(START_MS, 1, VOTERS, [])
    assert decode_snapshot("0-0.checkpoint", VOTERS_CHECKPOINT) == snapshot
    ours = encode_snapshot(snapshot, epoch=0, metadata_version=25, timestamp_ms=START_MS)
    assert len(ours) == 241
    assert without_times(ours) == without_times(VOTERS_CHECKPOINT)


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
    data = bytearray(encode_snapshot(Snapshot(0, 0, None, FEATURES), epoch=0, metadata_version=25, timestamp_ms=1))
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


def test_snapshots_are_listed_by_age(env: RealEnv, tmp_path: str) -> None:
    """Finished snapshots are listed, oldest first; other files are ignored."""
    directory = str(tmp_path)
    for snapshot_id in (SnapshotId(100, 2), SnapshotId(20, 3), SnapshotId(0, 0)):
        write_snapshot(env, directory, snapshot_id, BOOTSTRAP_CHECKPOINT)
    env.write_atomically(f"{directory}/00000000000000000200-0000000002.checkpoint.deleted", b"")
    env.write_atomically(f"{directory}/00000000000000000300-0000000002-abc.checkpoint.part", b"")
    assert list_snapshots(env, directory) == [SnapshotId(0, 0), SnapshotId(20, 3), SnapshotId(100, 2)]
