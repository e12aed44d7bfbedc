"""Snapshots of the metadata log: when they are due, what they trim, and the fallback for a damaged one."""

from __future__ import annotations

import pytest

from diamant.protocol.kraft.records import ProducerIdsRecord, RemoveTopicRecord
from diamant.storage.env.clocks import SettableClock
from diamant.storage.errors import CorruptLog
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.kraft.replay import load_metadata
from diamant.storage.kraft.snapshot import SnapshotId, list_snapshots
from tests.memory_env import MemoryEnv
from tests.storage.kraft.metadata_directory import (
    FIRST_SEGMENT,
    METADATA,
    config,
    leader_change,
    make_static_log,
    open_log,
    snapshot_if_due,
    topic,
    write_log,
)


def test_a_snapshot_is_the_same_as_the_log(memory: MemoryEnv) -> None:
    """A snapshot with the rest of the log yields the same image as the log alone."""
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
    """A snapshot is due after a number of bytes, or after an interval with at least one record."""
    clock = memory.clock
    assert isinstance(clock, SettableClock)
    log = open_log(memory, snapshot_bytes=5_000, snapshot_interval_ms=1000)
    clock.advance_ms(999)
    assert not snapshot_if_due(log)
    clock.advance_ms(1)
    assert snapshot_if_due(log)
    clock.advance_ms(5000)
    assert not snapshot_if_due(log)
    log.append([config("foo", "x", "v" * 6000)])
    assert snapshot_if_due(log)
    assert not snapshot_if_due(log)
    assert len(list_snapshots(memory, METADATA)) == 3


def test_the_log_is_trimmed_to_the_snapshots_kept(memory: MemoryEnv) -> None:
    """Only the newest two snapshots stay, with the segments from the older of them on; a new start finds everything."""
    log = open_log(memory, snapshot_bytes=500)
    for number in range(20):
        log.append(topic(log, f"topic-{number}"))
        snapshot_if_due(log)
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


def test_a_damaged_snapshot_gives_way_to_the_one_before(memory: MemoryEnv, log: MetadataLog) -> None:
    """If the newest snapshot is damaged, the previous one and the log are used, with a warning to the operator."""
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
    assert any("not used" in message for message in loaded.messages)


def test_a_log_that_ends_below_the_snapshot_is_begun_again(memory: MemoryEnv, log: MetadataLog) -> None:
    """If the log ends below the snapshot, the snapshot is used, as in Kafka."""
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
    """A log that begins above 0 needs a snapshot up to its start."""
    make_static_log(memory)
    memory.remove(FIRST_SEGMENT)
    write_log(memory, leader_change(7), f"{METADATA}/{7:020d}.log")
    with pytest.raises(CorruptLog, match="expected a snapshot up to that offset"):
        load_metadata(memory, METADATA)


def test_leftovers_are_removed(memory: MemoryEnv) -> None:
    """The next start removes unfinished snapshots, deleted segments and stale caches; unknown files stay."""
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
