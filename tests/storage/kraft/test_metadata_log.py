"""The metadata log: a new directory, and what is appended."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import (
    BeginTransactionRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
)
from diamant.storage.checkpoints.checkpoints import read_partition_metadata
from diamant.storage.checkpoints.meta_properties import read_meta_properties
from diamant.storage.checkpoints.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import RELEASES
from diamant.storage.kraft.format import format_directory
from diamant.storage.kraft.image import InconsistentMetadata
from diamant.storage.kraft.metadata_log import MAX_RECORDS_PER_BATCH, MetadataLog
from diamant.storage.kraft.replay import load_metadata
from diamant.storage.kraft.snapshot import decode_snapshot
from diamant.storage.uuid_text import METADATA_TOPIC_ID
from tests.memory_env import MemoryEnv
from tests.storage.kraft.metadata_directory import (
    DATA,
    ENDPOINT,
    FEATURES_OF_4_4,
    FIRST_SEGMENT,
    GOLDEN,
    GOLDEN_4_4,
    KAFKAS_FEATURES,
    METADATA,
    config,
    golden_directory,
    open_log,
    topic,
)
from tests.storage.kraft.test_metadata_snapshot import without_times

# -- a new directory ---------------------------------------------------------------------------------------------------


def test_a_new_directory_is_formatted(memory: MemoryEnv, log: MetadataLog) -> None:
    """Opening an empty directory creates the files of `kafka-storage format --standalone`, and a log with a leader."""
    assert (log.epoch, log.cluster_id, log.node_id) == (1, read_meta_properties(memory, DATA).cluster_id, 1)  # type: ignore[union-attr]
    assert memory.list_dir(DATA) == ["__cluster_metadata-0", "bootstrap.checkpoint", "meta.properties"]
    assert log.image.features == KAFKAS_FEATURES
    broker = log.image.brokers[1]
    assert (broker.broker_epoch, broker.fenced, broker.end_points) == (log.broker_epoch, False, (ENDPOINT,))
    assert broker.log_dirs == (log.directory_id,)
    assert {found.name for found in broker.features} == {*KAFKAS_FEATURES, "kraft.version"}
    assert read_quorum_state(memory, METADATA) == QuorumState(1, 1)
    assert read_partition_metadata(memory, METADATA) == METADATA_TOPIC_ID
    voters = decode_snapshot("0-0", memory.read_bytes(f"{METADATA}/00000000000000000000-0000000000.checkpoint")).voters
    assert voters is not None
    assert [(voter.id, voter.directory_id) for voter in voters.voters] == [(1, log.directory_id)]


def test_bootstrap_checkpoint_is_kafkas(memory: MemoryEnv) -> None:
    """A new directory has the features of `kafka-storage format` of 4.3.1: apart from the times of its batches, the file is
    equal byte for byte.
    """
    format_directory(memory, DATA)
    kafkas = (GOLDEN / "bootstrap.checkpoint").read_bytes()
    assert without_times(memory.read_bytes(f"{DATA}/bootstrap.checkpoint")) == without_times(kafkas)


def test_a_directory_for_kafka_4_4_is_kafkas(memory: MemoryEnv, tmp_path: Path) -> None:
    """It has no bootstrap.checkpoint: as `kafka-storage format` of 4.4.0 does, the features are written beside the voters."""
    directory = golden_directory(tmp_path, GOLDEN_4_4)
    properties = read_meta_properties(RealEnv(), directory)
    assert properties is not None
    name = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    kafkas = (GOLDEN_4_4 / name).read_bytes()
    memory.clock = SettableClock(decode_snapshot(name, kafkas).last_contained_log_timestamp_ms)
    format_directory(
        memory,
        DATA,
        directory_id=properties.directory_id,
        controller_endpoint=Endpoint("CONTROLLER", "127.0.0.1", 21193),
        features=RELEASES["4.4"],
    )
    assert memory.list_dir(DATA) == ["__cluster_metadata-0", "meta.properties"]
    assert without_times(memory.read_bytes(f"{DATA}/{name}")) == without_times(kafkas)
    log = open_log(memory)
    assert log.image.features == FEATURES_OF_4_4
    log.close()


@pytest.mark.parametrize(("interrupted", "release"), [("4.3", "4.4"), ("4.4", "4.3")])
def test_a_formatting_that_was_interrupted_leaves_no_features(
    memory: MemoryEnv, interrupted: str, release: str
) -> None:
    """Until `meta.properties` is there, a directory is formatted from the start, if need be for another release."""
    format_directory(memory, DATA, features=RELEASES[interrupted])
    memory.remove(f"{DATA}/meta.properties")
    format_directory(memory, DATA, features=RELEASES[release])
    log = open_log(memory)
    assert log.image.features == RELEASES[release]
    log.close()


def test_the_first_batches_are_kafkas(memory: MemoryEnv) -> None:
    """The first batches are the quorum (leader, kraft.version, voters), then the features, the registration and the unfencing."""
    open_log(memory).close()
    headers = [header for _, header in iter_headers(memory.read_bytes(FIRST_SEGMENT))]
    assert [(header.base_offset, header.record_count, header.is_control) for header in headers] == [
        (0, 3, True), (3, 9, False), (12, 1, False), (13, 1, False), (14, 1, False),
    ]  # fmt: skip
    loaded = load_metadata(memory, METADATA)
    assert loaded.image.brokers[1].broker_epoch == 12
    assert loaded.image.brokers[1].fenced
    assert loaded.epochs == [(1, 0)]


def test_a_formatted_directory_is_not_formatted_again(memory: MemoryEnv) -> None:
    """Formatting refuses a formatted directory."""
    format_directory(memory, DATA, "cluster", 5)
    with pytest.raises(StorageError, match="already formatted"):
        format_directory(memory, DATA)
    log = open_log(memory, node_id=5)
    assert (log.cluster_id, log.node_id) == ("cluster", 5)
    log.close()
    memory.remove(f"{DATA}/meta.properties")
    with pytest.raises(StorageError, match=r"no meta\.properties"):
        open_log(memory, node_id=5)


def test_every_start_is_a_new_epoch(memory: MemoryEnv, log: MetadataLog) -> None:
    """Each start leads in the next epoch and registers again; earlier records exist."""
    log.append(topic(log, "foo", 2, cleanup_policy="compact"))
    image = log.image
    log.close()
    again = open_log(memory)
    assert (again.epoch, again.directory_id) == (2, log.directory_id)
    assert again.image.topics == image.topics
    assert again.image.configs[2, "foo"] == {"cleanup.policy": "compact"}
    assert again.broker_epoch > log.broker_epoch
    again.close()
    assert [epoch for epoch, _ in load_metadata(memory, METADATA).epochs] == [1, 2]
    assert memory.read_bytes(f"{METADATA}/leader-epoch-checkpoint").startswith(b"0\n2\n1 0\n2 ")


def test_an_epoch_of_the_quorum_state_is_not_used_again(memory: MemoryEnv) -> None:
    """The epoch of a run that crashed after writing quorum-state is not reused, whatever remains of its log."""
    open_log(memory).close()
    write_quorum_state(memory, METADATA, QuorumState(1, 41))
    log = open_log(memory)
    assert log.epoch == 42


# -- appending -------------------------------------------------------------------------------------------------------


def test_a_batch_is_applied_whole_or_not_at_all(memory: MemoryEnv, log: MetadataLog) -> None:
    """A record that contradicts the image makes its whole batch fail: image and file do not change."""
    size, end_offset = memory.file_size(FIRST_SEGMENT), log.end_offset
    records = topic(log, "foo")
    with pytest.raises(InconsistentMetadata, match="topic already exists"):
        log.append([*records, records[0]])
    assert log.image.topics == {}
    assert (memory.file_size(FIRST_SEGMENT), log.end_offset) == (size, end_offset)
    assert log.append(records) == end_offset + len(records) - 1


def test_a_batch_that_the_disk_refuses_leaves_nothing(memory: MemoryEnv, log: MetadataLog) -> None:
    """With a full disk the caller gets an error, nothing is applied, and the next append works once there is room."""
    fault = memory.fail("append", "*.log", errno.ENOSPC, partial_bytes=40)
    with pytest.raises(OSError, match="No space"):
        log.append(topic(log, "foo"))
    assert log.image.topics == {}
    fault.clear()
    log.append(topic(log, "foo"))
    log.close()
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo"]


def test_after_a_failed_fsync_nothing_more_is_taken(memory: MemoryEnv, log: MetadataLog) -> None:
    """The data lost by a failed fsync are unknown, so the log refuses further records."""
    log.append(topic(log, "foo"))
    memory.fail("sync", "*.log", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    with pytest.raises(StorageError, match="earlier failure"):
        log.append(topic(log, "bar"))
    with pytest.raises(StorageError, match="earlier failure"):
        log.sync()


@pytest.mark.parametrize(
    ("name", "level", "complaint"),
    [
        ("metadata.version", 34, r"34 \(4\.5-IV0\), supported are 7 \(3\.3-IV3\) to 33 \(4\.4-IV2\)"),
        ("metadata.version", 99, r"level 99, supported are"),
        ("group.version", 2, "supported are 0 to 1"),
        ("quantum.version", 1, "no feature of that name"),
    ],
)
def test_a_feature_beyond_us_is_refused(log: MetadataLog, name: str, level: int, complaint: str) -> None:
    """A feature level that the next start could not read is refused."""
    with pytest.raises(InconsistentMetadata, match=complaint):
        log.append([FeatureLevelRecord(name=name, feature_level=level)])


def test_too_much_for_one_batch_is_refused(log: MetadataLog) -> None:
    """One change has at most 10,000 records and 8 MiB, as in Kafka, which could not read more."""
    with pytest.raises(KafkaError, match="at most 10000") as caught:
        log.append([NoOpRecord()] * (MAX_RECORDS_PER_BATCH + 1))
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    with pytest.raises(KafkaError, match="at most 8388608"):
        log.append([config("foo", "x", "v" * (9 * 1024 * 1024))])
    assert (2, "foo") not in log.image.configs
    with pytest.raises(ValueError, match="at least one record"):
        log.append([])


def test_a_transaction_ends_in_its_batch(memory: MemoryEnv, log: MetadataLog) -> None:
    """Begin and End may enclose the records of one batch, but not extend beyond it."""
    log.append([BeginTransactionRecord(name="x"), *topic(log, "foo"), EndTransactionRecord()])
    assert list(log.image.topics) == ["foo"]
    for records in ([BeginTransactionRecord()], [EndTransactionRecord()], [BeginTransactionRecord()] * 2):
        with pytest.raises(InconsistentMetadata):
            log.append(list(records))
    log.close()
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo"]


def test_sync_may_run_beside_appends(memory: MemoryEnv, log: MetadataLog) -> None:
    """Threads that sync while the owner appends each return with their own records durable, sharing fsyncs."""
    failures: list[str] = []

    def sync_all() -> None:
        while not done.is_set():
            target = log.end_offset
            log.sync()
            if log.synced_offset < target:
                failures.append(f"{log.synced_offset} < {target}")

    done = threading.Event()
    threads = [threading.Thread(target=sync_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        log.append(topic(log, f"topic-{number}"))
    done.set()
    for thread in threads:
        thread.join()
    log.sync()
    assert failures == []
    memory.crash()
    assert len(load_metadata(memory, METADATA).image.topics) == 200


def test_a_clean_close_fences_the_registration(memory: MemoryEnv, log: MetadataLog) -> None:
    """A clean close fences the registration; after it nothing works, and closing again is harmless."""
    log.close()
    log.close()
    assert load_metadata(memory, METADATA).image.brokers[1].fenced
    with pytest.raises(StorageError, match="closed"):
        log.append([NoOpRecord()])
    other = open_log(memory)
    other.close(clean=False)
    assert not load_metadata(memory, METADATA).image.brokers[1].fenced
