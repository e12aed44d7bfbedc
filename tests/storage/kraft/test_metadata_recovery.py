"""Recovery of the metadata log after a crash: torn ends, open transactions, and other damage."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from diamant.protocol.kraft.records import BeginTransactionRecord, EndTransactionRecord, RemoveTopicRecord, TopicRecord
from diamant.storage.env.clocks import SettableClock
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.kraft.replay import load_metadata
from tests.memory_env import MemoryEnv, PowerOff
from tests.storage.kraft.metadata_directory import (
    FEATURE_25,
    FIRST_SEGMENT,
    KAFKAS_FEATURES,
    METADATA,
    START_MS,
    batch,
    leader_change,
    make_static_log,
    open_log,
    snapshot_if_due,
    topic,
    write_log,
)

# -- crashes -----------------------------------------------------------------------------------------------------------


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
            snapshot_if_due(log)
        log.close()
    except (PowerOff, StorageError):
        pass
    return acknowledged


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_acknowledged_topics_survive_a_crash_anywhere(seed: int | None) -> None:
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


def test_after_a_crash_leader_epochs_grow(memory: MemoryEnv, log: MetadataLog) -> None:
    """A start after a crash increments every partition's leader epoch; one after a clean stop does not."""
    log.append(topic(log, "foo", 2))
    log.close()
    log = open_log(memory)
    assert [image.leader_epoch for image in log.image.topics["foo"].partitions.values()] == [0, 0]
    log.close(clean=False)
    log = open_log(memory)
    assert [image.leader_epoch for image in log.image.topics["foo"].partitions.values()] == [1, 1]
    assert [image.leader for image in log.image.topics["foo"].partitions.values()] == [1, 1]


def test_a_torn_end_is_cut_off(memory: MemoryEnv, log: MetadataLog) -> None:
    """Any incomplete last batch is removed with a warning to the operator, and the rest is kept."""
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


@pytest.mark.parametrize("damage", [bytes(500), b"\xff" * 100, bytes(30), None])
def test_damage_at_the_end_is_cut_off(memory: MemoryEnv, log: MetadataLog, damage: bytes | None) -> None:
    """Zeros or garbage that a crash left after the last batch, and a last batch with a bad checksum, are cut off."""
    log.append(topic(log, "foo"))
    log.append(topic(log, "bar"))
    log.close(clean=False)
    data = memory.read_bytes(FIRST_SEGMENT)
    flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    write_log(memory, flipped if damage is None else data + damage)
    reopened = open_log(memory)
    assert list(reopened.image.topics) == (["foo"] if damage is None else ["foo", "bar"])


def test_damage_in_the_middle_is_not_skipped(memory: MemoryEnv, log: MetadataLog) -> None:
    """A bad batch before sound ones is not a torn end: nothing is cut off, and the error names the position."""
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
    """A gap in offsets or a decreasing epoch is damage."""
    make_static_log(memory, leader_change(), batch([FEATURE_25], 2))
    with pytest.raises(CorruptLog, match="begins at offset 2, expected 1"):
        load_metadata(memory, METADATA)
    write_log(memory, leader_change(epoch=3) + batch([FEATURE_25], 1, epoch=2))
    with pytest.raises(CorruptLog, match="epoch 2 after epoch 3"):
        load_metadata(memory, METADATA)


def test_an_inconsistent_log_is_damage(memory: MemoryEnv) -> None:
    """The error for a record that contradicts earlier ones names its position."""
    make_static_log(memory, leader_change(), batch([RemoveTopicRecord(topic_id=UUID(int=5))], 1))
    with pytest.raises(CorruptLog, match="no topic has this id") as caught:
        load_metadata(memory, METADATA)
    assert caught.value.position == len(leader_change())


# -- transactions ------------------------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted(memory: MemoryEnv) -> None:
    """Records of a transaction open at the log's end are dropped, and the next start aborts it in the log."""
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


def test_a_transaction_over_several_batches(memory: MemoryEnv) -> None:
    """Records take effect at the end of their transaction, whichever batch that is in."""
    make_static_log(
        memory,
        leader_change(),
        batch([BeginTransactionRecord(), FEATURE_25], 1),
        batch([TopicRecord(name="foo", topic_id=UUID(int=5))], 3),
        batch([EndTransactionRecord(), TopicRecord(name="bar", topic_id=UUID(int=6))], 4),
    )
    assert list(load_metadata(memory, METADATA).image.topics) == ["foo", "bar"]
