"""The metadata log: opening, appending, crashing, snapshots, and directories that Kafka has left."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from diamant.protocol.batch import iter_headers
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.metadata_batch import encode_control_batch, encode_metadata_batch
from diamant.protocol.metadata_records import (
    TOPIC_RESOURCE,
    BeginTransactionRecord,
    ConfigRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from diamant.protocol.raft_control import KRaftVersion, KRaftVoters, LeaderChange, Voter
from diamant.storage.checkpoints import read_partition_metadata
from diamant.storage.clock import SettableClock
from diamant.storage.env import RealEnv
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.memory_env import MemoryEnv, PowerOff
from diamant.storage.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from diamant.storage.metadata_format import format_directory
from diamant.storage.metadata_image import InconsistentMetadata, MetadataImage
from diamant.storage.metadata_log import MAX_RECORDS_PER_BATCH, MetadataLog
from diamant.storage.metadata_replay import load_metadata
from diamant.storage.metadata_snapshot import Snapshot, SnapshotId, decode_snapshot, encode_snapshot, list_snapshots
from diamant.storage.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from diamant.storage.uuid_text import METADATA_TOPIC_ID, random_id, uuid_from_text
from tests.storage.test_metadata_snapshot import without_times

GOLDEN = Path(__file__).parent.parent / "golden" / "metadata-kafka-4.3.1"
DATA = "/data"
METADATA = f"{DATA}/__cluster_metadata-0"
FIRST_SEGMENT = f"{METADATA}/00000000000000000000.log"
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092)
START_MS = 1_700_000_000_000


@pytest.fixture
def memory() -> MemoryEnv:
    """A machine with an empty disk."""
    return MemoryEnv(SettableClock(START_MS))


def open_log(
    env: MemoryEnv | RealEnv,
    path: str = DATA,
    *,
    node_id: int = 1,
    directory_id: UUID | None = None,
    snapshot_bytes: int = 20 * 1024 * 1024,
    snapshot_interval_ms: int = 3_600_000,
) -> MetadataLog:
    """Open a metadata log as the broker does."""
    return MetadataLog.open(
        env,
        path,
        node_id=node_id,
        endpoints=[ENDPOINT],
        directory_id=directory_id,
        snapshot_bytes=snapshot_bytes,
        snapshot_interval_ms=snapshot_interval_ms,
    )


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


def golden_directory(tmp_path: Path, *, with_snapshots: bool = True) -> str:
    """Return a copy of the directory that Kafka has left."""
    target = tmp_path / "kafka"
    shutil.copytree(GOLDEN, target)
    if not with_snapshots:
        (target / "__cluster_metadata-0" / "00000000000000000057-0000000002.checkpoint").unlink()
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
"""What `kafka-storage format` of 4.3.1 finalizes."""


def make_static_log(env: MemoryEnv, *batches: bytes) -> None:
    """Make a directory whose voters stand in the configuration, with a log of these batches."""
    env.make_dirs(METADATA)
    write_meta_properties(env, DATA, MetaProperties("cluster", 1, UUID(int=0xD18 << 100)))
    write_log(env, b"".join(batches))


# -- a new directory -------------------------------------------------------------------------------------------------


def test_a_new_directory_is_formatted(memory: MemoryEnv) -> None:
    """Opening an empty directory leaves all that `kafka-storage format --standalone` would, and a log that is led."""
    log = open_log(memory)
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
    log.close()


def test_bootstrap_checkpoint_is_kafkas(memory: MemoryEnv) -> None:
    """A new directory begins with the features of one that `kafka-storage format` of 4.3.1 has made: but for the times of its
    batches the file is the same, byte by byte.
    """
    format_directory(memory, DATA)
    kafkas = (GOLDEN / "bootstrap.checkpoint").read_bytes()
    assert without_times(memory.read_bytes(f"{DATA}/bootstrap.checkpoint")) == without_times(kafkas)


def test_a_new_log_begins_with_the_features_in_one_transaction(memory: MemoryEnv) -> None:
    """After the quorum's records come the features and, as ELR is on, the cluster's minimum of in-sync replicas: as Kafka's."""
    open_log(memory).close()
    ours = memory.read_bytes(FIRST_SEGMENT)
    kafkas = (GOLDEN / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    ours_records, kafkas_records = (
        [data[position + 61 : position + header.size] for position, header in iter_headers(data)][1]
        for data in (ours, kafkas)
    )
    assert ours_records == kafkas_records
    assert b"min.insync.replicas" in ours_records


def test_the_first_batches_are_kafkas(memory: MemoryEnv) -> None:
    """First the quorum (leader, kraft.version, voters), then the features, the registration and the unfencing."""
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
    """Formatting refuses what it would destroy."""
    format_directory(memory, DATA, "cluster", 5)
    with pytest.raises(StorageError, match="formatted already"):
        format_directory(memory, DATA)
    log = open_log(memory, node_id=5)
    assert (log.cluster_id, log.node_id) == ("cluster", 5)
    log.close()
    memory.remove(f"{DATA}/meta.properties")
    with pytest.raises(StorageError, match=r"no meta\.properties"):
        open_log(memory, node_id=5)


def test_every_start_is_a_new_epoch(memory: MemoryEnv) -> None:
    """Each start leads in the next epoch and registers anew; what was written is there."""
    log = open_log(memory)
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
    """A run that crashed after its quorum-state has used its epoch up, whatever of its log is left."""
    open_log(memory).close()
    write_quorum_state(memory, METADATA, QuorumState(1, 41))
    log = open_log(memory)
    assert log.epoch == 42
    log.close()


# -- appending -------------------------------------------------------------------------------------------------------


def test_a_batch_is_applied_whole_or_not_at_all(memory: MemoryEnv) -> None:
    """A record that contradicts the image takes its whole batch with it: image and file stay as they were."""
    log = open_log(memory)
    size, end_offset = memory.file_size(FIRST_SEGMENT), log.end_offset
    records = topic(log, "foo")
    with pytest.raises(InconsistentMetadata, match="topic exists"):
        log.append([*records, records[0]])
    assert log.image.topics == {}
    assert (memory.file_size(FIRST_SEGMENT), log.end_offset) == (size, end_offset)
    assert log.append(records) == end_offset + len(records) - 1
    log.close()


def test_a_batch_that_the_disk_refuses_leaves_nothing(memory: MemoryEnv) -> None:
    """When the disk is full the caller hears of it, nothing is applied, and the next append works once there is room."""
    log = open_log(memory)
    fault = memory.fail("append", "*.log", errno.ENOSPC, partial_bytes=40)
    with pytest.raises(OSError, match="No space"):
        log.append(topic(log, "foo"))
    assert log.image.topics == {}
    fault.clear()
    log.append(topic(log, "foo"))
    log.close()
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo"]


def test_after_a_failed_fsync_nothing_more_is_taken(memory: MemoryEnv) -> None:
    """What a failed fsync has lost cannot be known, so the log does not pretend to go on."""
    log = open_log(memory)
    log.append(topic(log, "foo"))
    memory.fail("sync", "*.log", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    with pytest.raises(StorageError, match="failed before"):
        log.append(topic(log, "bar"))
    with pytest.raises(StorageError, match="failed before"):
        log.sync()
    log.close()


@pytest.mark.parametrize(
    ("name", "level", "complaint"),
    [
        ("metadata.version", 31, "supported are 7 to 30"),
        ("group.version", 2, "supported are 0 to 1"),
        ("quantum.version", 1, "no feature of that name"),
    ],
)
def test_a_feature_beyond_us_is_refused(memory: MemoryEnv, name: str, level: int, complaint: str) -> None:
    """A level that the next start could not read is not written."""
    log = open_log(memory)
    with pytest.raises(InconsistentMetadata, match=complaint):
        log.append([FeatureLevelRecord(name=name, feature_level=level)])
    log.close()


def test_too_much_for_one_batch_is_refused(memory: MemoryEnv) -> None:
    """One change has at most 10,000 records and 8 MiB, as in Kafka: more could not be read back by it."""
    log = open_log(memory)
    with pytest.raises(KafkaError, match="at most 10000") as caught:
        log.append([NoOpRecord()] * (MAX_RECORDS_PER_BATCH + 1))
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    with pytest.raises(KafkaError, match="at most 8388608"):
        log.append([config("foo", "x", "v" * (9 * 1024 * 1024))])
    assert (2, "foo") not in log.image.configs
    with pytest.raises(ValueError, match="at least one record"):
        log.append([])
    log.close()


def test_a_transaction_ends_in_its_batch(memory: MemoryEnv) -> None:
    """Begin and End may stand around the records of one batch and may not reach beyond it."""
    log = open_log(memory)
    log.append([BeginTransactionRecord(name="x"), *topic(log, "foo"), EndTransactionRecord()])
    assert list(log.image.topics) == ["foo"]
    for records in ([BeginTransactionRecord()], [EndTransactionRecord()], [BeginTransactionRecord()] * 2):
        with pytest.raises(InconsistentMetadata):
            log.append(list(records))
    log.close()
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo"]


def test_sync_may_run_beside_appends(memory: MemoryEnv) -> None:
    """Threads that sync while the owner appends each return with their own records durable, sharing fsyncs."""
    log = open_log(memory)
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


def test_closing(memory: MemoryEnv) -> None:
    """A clean close fences the registration; after it nothing works, and closing again is harmless."""
    log = open_log(memory)
    log.close()
    log.close()
    assert load_metadata(memory, METADATA).image.brokers[1].fenced
    with pytest.raises(StorageError, match="closed"):
        log.append([NoOpRecord()])
    other = open_log(memory)
    other.close(clean=False)
    assert not load_metadata(memory, METADATA).image.brokers[1].fenced


# -- crashes ---------------------------------------------------------------------------------------------------------


def run_until_power_off(env: MemoryEnv, log_to_close: list[MetadataLog]) -> list[str]:
    """Create topics one by one until the machine stops; return those that were acknowledged."""
    acknowledged: list[str] = []
    try:
        log = open_log(env, snapshot_bytes=600)
        log_to_close.append(log)
        for _ in range(6):
            name = f"topic-{len(log.image.topics)}"
            log.append(topic(log, name))
            log.sync()
            acknowledged.append(name)
            log.snapshot_if_due()
        log.close()
    except (PowerOff, StorageError):
        pass
    return acknowledged


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_what_was_acknowledged_survives_a_crash_anywhere(seed: int | None) -> None:
    """Wherever the machine stops, formatting and snapshots included, the next start finds every synced topic.

    With a seed some of what was not synced has reached the disk as well. Epochs rise with every start.
    """
    print(f"seed={seed}")
    chance = None if seed is None else random.Random(seed)
    for changes in range(0, 110, 1 if seed is None else 3):
        env = MemoryEnv(SettableClock(START_MS))
        env.power_off_after(changes=changes)
        logs: list[MetadataLog] = []
        acknowledged = run_until_power_off(env, logs)
        env.crash(chance)
        log = open_log(env)
        assert set(acknowledged) <= set(log.image.topics), f"stopped after {changes} changes"
        if logs:
            assert log.epoch > logs[0].epoch
            assert log.directory_id == logs[0].directory_id
        log.append(topic(log, "after"))
        log.close()
        assert "after" in load_metadata(env, METADATA).image.topics


def test_after_a_crash_leader_epochs_grow(memory: MemoryEnv) -> None:
    """A start after a crash is a new leader epoch for every partition, one after a clean stop is not."""
    log = open_log(memory)
    log.append(topic(log, "foo", 2))
    log.close()
    log = open_log(memory)
    assert [image.leader_epoch for image in log.image.topics["foo"].partitions.values()] == [0, 0]
    log.close(clean=False)
    log = open_log(memory)
    assert [image.leader_epoch for image in log.image.topics["foo"].partitions.values()] == [1, 1]
    assert [image.leader for image in log.image.topics["foo"].partitions.values()] == [1, 1]
    log.close()


def test_a_torn_end_is_cut_off(memory: MemoryEnv) -> None:
    """Whatever part of the last batch is there, it is removed, the operator is told, and the rest is kept."""
    log = open_log(memory)
    log.append(topic(log, "foo"))
    log.sync()
    sound = memory.read_bytes(FIRST_SEGMENT)
    log.append(topic(log, "bar"))
    log.close(clean=False)
    whole = memory.read_bytes(FIRST_SEGMENT)
    for size in (len(sound) + 1, len(sound) + 60, len(sound) + 61, len(whole) - 1):
        write_log(memory, whole[:size])
        loaded = load_metadata(memory, METADATA)
        assert loaded.torn is not None
        assert (loaded.torn.position, loaded.torn.size) == (len(sound), size - len(sound))
        reopened = open_log(memory)
        assert list(reopened.image.topics) == ["foo"]
        assert any(f"at {len(sound)}: " in message for message in reopened.messages)
        reopened.close()
        assert load_metadata(memory, METADATA).torn is None


@pytest.mark.parametrize("tail", [bytes(500), b"\xff" * 100, bytes(30)])
def test_rubbish_at_the_end_is_cut_off(memory: MemoryEnv, tail: bytes) -> None:
    """Zeros or rubbish that a crash has left behind the last batch are no batches."""
    log = open_log(memory)
    log.append(topic(log, "foo"))
    log.close()
    write_log(memory, memory.read_bytes(FIRST_SEGMENT) + tail)
    reopened = open_log(memory)
    assert list(reopened.image.topics) == ["foo"]
    reopened.close()


def test_a_damaged_last_batch_is_cut_off(memory: MemoryEnv) -> None:
    """A bad checksum in the last batch is the trace of a crash."""
    log = open_log(memory)
    log.append(topic(log, "foo"))
    log.append(topic(log, "bar"))
    log.close(clean=False)
    damaged = bytearray(memory.read_bytes(FIRST_SEGMENT))
    damaged[-3] ^= 1
    write_log(memory, bytes(damaged))
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo"]


def test_damage_in_the_middle_is_not_skipped(memory: MemoryEnv) -> None:
    """A bad batch with sound ones after it is no torn end: nothing is cut off, the position is named."""
    log = open_log(memory)
    position = memory.file_size(FIRST_SEGMENT)
    log.append(topic(log, "foo"))
    log.append(topic(log, "bar"))
    log.close()
    damaged = bytearray(memory.read_bytes(FIRST_SEGMENT))
    damaged[position + 80] ^= 1
    write_log(memory, bytes(damaged))
    with pytest.raises(CorruptLog, match="a sound batch follows") as caught:
        open_log(memory)
    assert (caught.value.path, caught.value.position) == (FIRST_SEGMENT, position)
    assert memory.read_bytes(FIRST_SEGMENT) == bytes(damaged)


def test_a_gap_or_a_falling_epoch_is_damage(memory: MemoryEnv) -> None:
    """Offsets go on without gaps and epochs do not fall."""
    make_static_log(memory, leader_change(), batch([FEATURE_25], 2))
    with pytest.raises(CorruptLog, match="begins at offset 2, expected 1"):
        load_metadata(memory, METADATA)
    write_log(memory, leader_change(epoch=3) + batch([FEATURE_25], 1, epoch=2))
    with pytest.raises(CorruptLog, match="epoch 2 after epoch 3"):
        load_metadata(memory, METADATA)


def test_an_inconsistent_log_is_damage(memory: MemoryEnv) -> None:
    """A record that contradicts the ones before names its place."""
    make_static_log(memory, leader_change(), batch([RemoveTopicRecord(topic_id=UUID(int=5))], 1))
    with pytest.raises(CorruptLog, match="no topic has this id") as caught:
        load_metadata(memory, METADATA)
    assert caught.value.position == len(leader_change())


# -- transactions ------------------------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted(memory: MemoryEnv) -> None:
    """A log that ends inside a transaction has none of it, and the next start says so in the log."""
    topic_id = UUID(int=5)
    make_static_log(
        memory,
        leader_change(),
        batch([BeginTransactionRecord(), FEATURE_25, EndTransactionRecord()], 1),
        batch([BeginTransactionRecord(name="big topic"), TopicRecord(name="foo", topic_id=topic_id)], 4),
        batch([TopicRecord(name="bar", topic_id=UUID(int=6))], 6),
    )
    loaded = load_metadata(memory, METADATA)
    assert loaded.has_open_transaction
    assert loaded.image.topics == {}
    log = open_log(memory)
    assert log.image.topics == {}
    log.append([TopicRecord(name="foo", topic_id=topic_id)])
    log.close()
    loaded = load_metadata(memory, METADATA)
    assert not loaded.has_open_transaction
    assert list(loaded.image.topics) == ["foo"]


def test_an_aborted_first_start_is_made_good(memory: MemoryEnv) -> None:
    """A node that stopped while it wrote its first features writes them again."""
    make_static_log(memory, leader_change(), batch([BeginTransactionRecord(name="Bootstrap records"), FEATURE_25], 1))
    log = open_log(memory)
    assert log.image.features == KAFKAS_FEATURES
    log.close()


def test_a_transaction_over_several_batches(memory: MemoryEnv) -> None:
    """Records count when the transaction ends, in whatever batch that is."""
    make_static_log(
        memory,
        leader_change(),
        batch([BeginTransactionRecord(), FEATURE_25], 1),
        batch([TopicRecord(name="foo", topic_id=UUID(int=5))], 3),
        batch([EndTransactionRecord(), TopicRecord(name="bar", topic_id=UUID(int=6))], 4),
    )
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo", "bar"]


# -- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_same_as_the_log(memory: MemoryEnv) -> None:
    """Loading from a snapshot and the rest of the log gives the image that the log alone gives."""
    log = open_log(memory, snapshot_bytes=1_000_000)
    log.append(topic(log, "foo", 3, cleanup_policy="compact"))
    log.append([ProducerIdsRecord(broker_id=1, broker_epoch=log.broker_epoch, next_producer_id=1000)])
    log.write_snapshot(log.prepare_snapshot())
    log.append(topic(log, "bar"))
    log.append([RemoveTopicRecord(topic_id=log.image.topics["foo"].topic_id)])
    log.close()
    with_snapshot = load_metadata(memory, METADATA)
    assert with_snapshot.snapshot_id is not None
    assert with_snapshot.image == log.image
    memory.remove(f"{METADATA}/{with_snapshot.snapshot_id.end_offset:020d}-0000000001.checkpoint")
    without = load_metadata(memory, METADATA)
    assert without.snapshot_id is None
    assert without.image == with_snapshot.image
    assert without.end_offset == with_snapshot.end_offset


def test_when_a_snapshot_is_due(memory: MemoryEnv) -> None:
    """A snapshot is due after so many bytes of records, or after so long if there was any record."""
    clock = memory.clock
    assert isinstance(clock, SettableClock)
    log = open_log(memory, snapshot_bytes=5_000, snapshot_interval_ms=1000)
    clock.advance_ms(999)
    assert not log.snapshot_if_due()
    clock.advance_ms(1)
    assert log.snapshot_if_due()
    clock.advance_ms(5000)
    assert not log.snapshot_if_due()
    log.append([config("foo", "x", "v" * 6000)])
    assert log.snapshot_if_due()
    assert not log.snapshot_if_due()
    assert len(list_snapshots(memory, METADATA)) == 3
    log.close()


def test_the_log_is_trimmed_to_the_snapshots_kept(memory: MemoryEnv) -> None:
    """Only the newest two snapshots stay, with the segments from the older of them on; a new start finds everything."""
    log = open_log(memory, snapshot_bytes=500)
    for number in range(20):
        log.append(topic(log, f"topic-{number}"))
        log.snapshot_if_due()
    kept = [found for found in list_snapshots(memory, METADATA) if found != SnapshotId(0, 0)]
    segments = [name for name in memory.list_dir(METADATA) if name.endswith(".log")]
    assert len(kept) == 2
    assert int(segments[0][:20]) == kept[0].end_offset
    assert len(segments) <= 3
    image = log.image
    log.close()
    reopened = open_log(memory)
    assert reopened.image.topics == image.topics
    assert len(reopened.image.topics) == 20
    reopened.close()


def test_a_damaged_snapshot_gives_way_to_the_one_before(memory: MemoryEnv) -> None:
    """If the newest snapshot cannot be read the one before and the log do, and the operator is told."""
    log = open_log(memory)
    for name in ("foo", "bar"):
        log.append(topic(log, name))
        log.write_snapshot(log.prepare_snapshot())
    log.append(topic(log, "baz"))
    log.close()
    newest = list_snapshots(memory, METADATA)[-1]
    path = f"{METADATA}/{newest.end_offset:020d}-{newest.epoch:010d}.checkpoint"
    memory.remove(path)
    memory.write_atomically(path, b"rubbish")
    loaded = load_metadata(memory, METADATA)
    assert list(loaded.image.topics) == ["foo", "bar", "baz"]
    assert any("left aside" in message for message in loaded.messages)


def test_a_log_that_ends_below_the_snapshot_is_begun_anew(memory: MemoryEnv) -> None:
    """When the log has lost more than the snapshot covers, the snapshot is the truth, as in Kafka."""
    log = open_log(memory)
    sound = memory.read_bytes(FIRST_SEGMENT)
    log.append(topic(log, "foo"))
    log.write_snapshot(log.prepare_snapshot())
    end_offset = log.end_offset
    log.close(clean=False)
    write_log(memory, sound)
    reopened = open_log(memory)
    assert list(reopened.image.topics) == ["foo"]
    assert [name for name in memory.list_dir(METADATA) if name.endswith(".log")] == [f"{end_offset:020d}.log"]
    reopened.append(topic(reopened, "bar"))
    reopened.close()
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo", "bar"]


def test_a_log_without_its_beginning_is_refused(memory: MemoryEnv) -> None:
    """A log that begins above 0 needs a snapshot that reaches there."""
    make_static_log(memory)
    memory.remove(FIRST_SEGMENT)
    write_log(memory, leader_change(7), f"{METADATA}/{7:020d}.log")
    with pytest.raises(CorruptLog, match="expected a snapshot that reaches there"):
        load_metadata(memory, METADATA)


def test_leftovers_are_removed(memory: MemoryEnv) -> None:
    """Unfinished snapshots, deleted segments and stale caches go at the next start; what is not ours stays."""
    open_log(memory).close()
    names = [
        "00000000000000000005-0000000001-abc.checkpoint.part",
        "00000000000000000000.log.deleted",
        "00000000000000000000.index",
        "00000000000000000003.snapshot",
        "notes.txt",
    ]
    for name in names:
        memory.write_atomically(f"{METADATA}/{name}", b"x")
    open_log(memory).close()
    assert [name for name in names if name in memory.list_dir(METADATA)] == ["notes.txt"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_another_owner_is_refused(memory: MemoryEnv) -> None:
    """node.id and directory.id are part of the log; a directory of another node is not taken over."""
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
    """Make a log of a quorum of three of which a snapshot covers all."""
    make_static_log(env, leader_change(voters=(1, 2, 3)), batch([FEATURE_25], 1))
    content = encode_snapshot(Snapshot(0, 0, None, [FEATURE_25]), epoch=1, metadata_version=25, timestamp_ms=START_MS)
    env.write_atomically(f"{METADATA}/00000000000000000002-0000000001.checkpoint", content)


def three_voters_never_started(env: MemoryEnv) -> None:
    """Make a directory that only remembers an election among three."""
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


# -- what Kafka has left -------------------------------------------------------------------------------------------------


def test_kafkas_log_and_snapshots_agree(env: RealEnv, tmp_path: Path) -> None:
    """Replaying Kafka's log gives the image of its last snapshot, but for one config that Kafka should have dropped."""
    log_only = load_metadata(env, f"{golden_directory(tmp_path, with_snapshots=False)}/__cluster_metadata-0")
    last = decode_snapshot("last.checkpoint", (GOLDEN / "last.checkpoint").read_bytes())
    of_snapshot = MetadataImage()
    for record in last.records:
        of_snapshot.apply(record)
    assert of_snapshot.configs.pop((2, "gone")) == {"retention.ms": "1000"}
    for image in (of_snapshot, log_only.image):
        # Kafka writes the ranges in the order of a hash table.
        image.brokers[1] = replace(image.brokers[1], features=tuple(sorted(image.brokers[1].features)))
    assert of_snapshot == log_only.image
    assert (log_only.end_offset, log_only.last_epoch, log_only.epochs) == (64, 2, [(1, 0), (2, 47)])
    assert log_only.voters == last.voters
    registration = next(record for record in last.records if isinstance(record, RegisterBrokerRecord))
    assert registration.cordoned_log_dirs == registration.log_dirs


def test_our_snapshot_of_kafkas_image_is_its_own(env: RealEnv, tmp_path: Path) -> None:
    """Written by us, Kafka's image has the same records in the same versions as in Kafka's snapshot."""
    content = (GOLDEN / "last.checkpoint").read_bytes()
    last = decode_snapshot("last.checkpoint", content)
    image = MetadataImage()
    for record in last.records:
        image.apply(record)
    assert sorted(map(repr, image.to_records())) == sorted(map(repr, last.records))
    ours = encode_snapshot(last, epoch=2, metadata_version=30, timestamp_ms=START_MS)
    assert len(ours) == len(content)
    assert ours[61:154] == content[61:154]


def test_a_directory_of_a_stopped_kafka_is_taken_over(env: RealEnv, tmp_path: Path) -> None:
    """Kafka stops with no partition led; we lead them all again, in a higher epoch, and keep everything else."""
    path = golden_directory(tmp_path)
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
    assert log.directory_id == uuid_from_text("_u8IsgKsTmSHsgFe89V2NQ")
    assert log.image.features == before.features
    assert log.image.next_producer_id == 1000
    assert list(log.image.scram_credentials) == [(1, "alice")]
    assert len(log.image.acls) == 1
    registered = {found.name for found in log.image.brokers[1].features}
    assert set(log.image.features) <= registered
    log.close()
    again = open_log(env, path)
    assert again.image.topics == log.image.topics
    again.close()


def test_configs_of_a_topic_that_is_gone_are_dropped(env: RealEnv, tmp_path: Path) -> None:
    """Kafka's snapshot has brought a config of a deleted topic back; a new topic of that name must not have it."""
    path = golden_directory(tmp_path)
    assert (2, "gone") in load_metadata(env, f"{path}/__cluster_metadata-0").image.configs
    log = open_log(env, path)
    assert (2, "gone") not in log.image.configs
    log.close()
    assert (2, "gone") not in load_metadata(env, f"{path}/__cluster_metadata-0").image.configs


def test_a_directory_that_kafka_has_formatted_and_not_started(env: RealEnv, tmp_path: Path) -> None:
    """Features and voters come from Kafka's formatter: metadata.version 30, the ELR default with it."""
    path = golden_directory(tmp_path, with_snapshots=False)
    for name in ("00000000000000000000.log", "quorum-state", "leader-epoch-checkpoint"):
        env.remove(f"{path}/__cluster_metadata-0/{name}")
    log = open_log(env, path)
    assert (log.epoch, log.image.metadata_version) == (1, 30)
    assert log.image.features["eligible.leader.replicas.version"] == 1
    assert log.image.configs == {(4, ""): {"min.insync.replicas": "1"}}
    log.close()
    ours = (tmp_path / "kafka" / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    kafkas = (GOLDEN / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    ours_records, kafkas_records = (
        [data[position + 61 : position + header.size] for position, header in iter_headers(data)][:2]
        for data in (ours, kafkas)
    )
    assert ours_records == kafkas_records


def test_bootstrap_records_of_a_newer_formatter(memory: MemoryEnv) -> None:
    """Data in the voters' snapshot are what a first start writes; once there is a log they count for nothing."""
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
    """A log without voters is carried on as such: quorum-state version 0, and no voters in log or snapshots."""
    make_static_log(memory, leader_change(), batch([FEATURE_25], 1))
    log = open_log(memory)
    assert read_quorum_state(memory, METADATA) == QuorumState(1, 2, voters=(1,))
    log.write_snapshot(log.prepare_snapshot())
    log.close()
    loaded = load_metadata(memory, METADATA)
    assert (loaded.kraft_version, loaded.voters, loaded.quorum) == (0, None, (1,))
    assert loaded.snapshot_id is not None


def test_partitions_in_no_or_another_directory_are_ours(memory: MemoryEnv) -> None:
    """A partition whose directory is unassigned or gone would never get a leader from a real controller; we name ours."""
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
    log.close()


def test_a_thousand_topics(memory: MemoryEnv) -> None:
    """A thousand topics are appended, loaded from the log and loaded from a snapshot with the same result."""
    log = open_log(memory)
    for start in range(0, 1000, 250):
        log.append([record for number in range(start, start + 250) for record in topic(log, f"topic-{number}", 2)])
    log.write_snapshot(log.prepare_snapshot())
    image = log.image
    log.close()
    assert load_metadata(memory, METADATA).image == image
    reopened = open_log(memory)
    assert reopened.image.topics == image.topics
    reopened.close()
