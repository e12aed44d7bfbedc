"""Losses of power that once left a log with damage, holes or wrong times. `recovery/test_power_loss.py` has all moments."""

from __future__ import annotations

import pytest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.memory_env import Loss, MemoryEnv
from tests.storage.one_log import create_one, load_one

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=150)
PATH = "/data/t-0"


def start(env: MemoryEnv) -> Log:
    env.make_dirs("/data")
    env.sync_dir("/")
    log = create_one(env, CONFIG)
    env.sync_dir("/data")
    log.become_leader(1)
    return log


def append(log: Log, count: int, producer_id: int = -1, sequence: int = -1) -> None:
    first = log.log_end_offset
    records = [Record(number, START_MS + first + number, b"k", b"value") for number in range(count)]
    epoch = -1 if producer_id < 0 else 0
    batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    log.append_as_leader(memoryview(batch))


def recover(env: MemoryEnv, recovery_point: int, log_start_offset: int = 0) -> Log:
    return load_one(env, CONFIG, recovery_point=recovery_point, log_start_offset=log_start_offset)


def test_a_torn_tail_does_not_come_back(memory: MemoryEnv) -> None:
    """A tail cut off at a start never returns: after a roll, no later start would examine the segment's end."""
    log = start(memory)
    append(log, 3)
    log.flush()
    size, end = log.active.size, log.log_end_offset
    log.active.file.append(b"torn batch")
    log.active.file.sync()
    memory.crash()
    log = recover(memory, end)
    log.roll()
    memory.crash(Loss(names=1, content=0))
    log = recover(memory, end)
    assert [segment.base_offset for segment in log.segments] == [0, end]
    assert memory.file_size(log.segments[0].path) == size


def test_records_appended_during_a_flush_are_not_durable(memory: MemoryEnv) -> None:
    """The recovery point stays at the end that the flush began with: a start examines what was written since."""
    log = start(memory)
    append(log, 3)
    plan = log.begin_flush()
    assert plan is not None
    plan.run()
    append(log, 2)
    log.complete_flush(plan)
    assert (log.recovery_point, log.log_end_offset) == (3, 5)


@pytest.mark.parametrize("recovery_point", [0, 6])
def test_deleted_segments_that_come_back_with_holes(recovery_point: int) -> None:
    """Segments below the log start may return after a loss of power; damage in them does not affect the others."""
    env = MemoryEnv(SettableClock(START_MS))
    log = start(env)
    for _ in range(3):
        append(log, 3, producer_id=7, sequence=log.log_end_offset)
        log.roll()
    append(log, 3)
    data = bytearray(env.read_bytes(log.segments[0].path))
    data[-30:] = bytes(30)
    env.write_atomically(log.segments[0].path, bytes(data))
    log = recover(env, recovery_point, log_start_offset=6)
    assert (log.log_start_offset, log.log_end_offset) == (6, 12)
    assert [segment.base_offset for segment in log.segments] == [6, 9]
    assert [name for name in env.list_dir(PATH) if name.endswith(".log")] == [f"{base:020d}.log" for base in (6, 9)]
    assert log.producers.state_of(7).last_sequence == 8  # type: ignore[union-attr]


def test_a_roll_that_a_loss_of_power_left_half_done() -> None:
    """The segment's data were synced; the next start rebuilds the time index entries that the roll added."""
    env = MemoryEnv(SettableClock(START_MS))
    log = start(env)
    for _ in range(6):
        append(log, 1)
    log.flush()
    end, latest = log.log_end_offset, log.active.max_timestamp
    assert log.active.time_index.last_entry[0] < latest
    log.roll()
    env.crash(Loss(names=1, content=0))
    log = recover(env, end)
    assert [segment.base_offset for segment in log.segments] == [0, end]
    assert log.segments[0].max_timestamp == latest
    env.crash()
    assert recover(env, end).segments[0].max_timestamp == latest
