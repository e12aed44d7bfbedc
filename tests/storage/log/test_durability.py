"""Durability of a log when the machine loses power at any point.

Strategy: one random history of appends, rolls and flushes runs repeatedly on `MemoryEnv`. Each run loses power at another change
or sync, with a random part of the unsynced data reaching the disk, and is then recovered.

Invariants: recovery succeeds; every record below the last completed flush exists; all other records read are those written, in
order; appends continue and are readable. (As in Kafka there may be a gap above the last flush, if the end of a segment was lost
but the name of the next one was not.)
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch, iter_records
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.memory import Loss, MemoryEnv, PowerOff
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.storage.one_log import create_one, load_one

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=150)
PATH = "/data/t-0"


def payload(offset: int) -> bytes:
    return f"value-{offset}".encode() * 3


def start(env: MemoryEnv) -> Log:
    env.make_dirs("/data")
    env.sync_dir("/")
    log = create_one(env, CONFIG)
    env.sync_dir("/data")
    log.become_leader(1)
    return log


def append(log: Log, count: int, producer_id: int = -1, sequence: int = -1) -> None:
    first = log.log_end_offset
    records = [Record(number, START_MS + first + number, b"k", payload(first + number)) for number in range(count)]
    epoch = -1 if producer_id < 0 else 0
    batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    log.append_as_leader(memoryview(batch))


def run(env: MemoryEnv, seed: int, done: list[int]) -> None:
    """Run the history of `seed`; `done` gets the recovery point of every flush that was completed."""
    chance = random.Random(seed)
    log = start(env)
    done.append(0)
    sequence = 0
    for _ in range(25):
        count = chance.randint(1, 4)
        if chance.random() < 0.5:
            append(log, count, 7, sequence)
            sequence += count
        else:
            append(log, count)
        if chance.random() < 0.2:
            log.flush()
            done.append(log.recovery_point)


def recover(env: MemoryEnv, recovery_point: int, log_start_offset: int = 0) -> Log:
    return load_one(env, CONFIG, recovery_point=recovery_point, log_start_offset=log_start_offset)


def check(log: Log, at_least: int) -> None:
    assert log.log_end_offset >= at_least
    end = log.log_end_offset
    append(log, 2)
    assert log.log_end_offset == end + 2
    seen: list[int] = []
    offset = 0
    while offset < log.log_end_offset:
        result = log.read(offset, 10_000, isolation_level=0, min_one_message=True)
        assert result.size, f"nothing to read at {offset} of {log.log_end_offset}"
        for piece in result.slices:
            for record in _records(piece.read()):
                assert record.value == payload(record.offset)
                seen.append(record.offset)
        offset = seen[-1] + 1
    assert seen == sorted(set(seen))
    assert seen[:at_least] == list(range(at_least))
    assert seen[-2:] == [end, end + 1]


def _records(data: bytes) -> list[Record]:
    records = []
    position = 0
    while position < len(data):
        records += iter_records(data, position)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return records


@pytest.mark.parametrize("seed", range(6))
def test_power_lost_at_any_point(seed: int) -> None:
    """Flushed records are never lost, and unflushed ones never read wrong."""
    print(f"seed {seed}")
    whole = MemoryEnv(SettableClock(START_MS))
    run(whole, seed, [])
    for kind, total in (("changes", whole.change_count), ("syncs", whole.sync_count)):
        step = 1 if kind == "syncs" else 3
        for number in range(0, total, step):
            env = MemoryEnv(SettableClock(START_MS))
            env.power_off_after(**{kind: number})
            done: list[int] = []
            with suppress(PowerOff):
                run(env, seed, done)
            env.crash(random.Random(seed * 1000 + number) if number % 2 else None)
            if not env.exists(PATH) or not done:
                continue
            check(recover(env, done[-1]), done[-1])


def test_a_torn_tail_does_not_come_back() -> None:
    """A tail cut off at a start never returns: after a roll, no later start would examine the segment's end."""
    env = MemoryEnv()
    log = start(env)
    append(log, 3)
    log.flush()
    size, end = log.active.size, log.log_end_offset
    log.active.file.append(b"torn batch")
    log.active.file.sync()
    env.crash()
    log = recover(env, end)
    log.roll()
    env.crash(Loss(names=1, content=0))
    log = recover(env, end)
    assert [segment.base_offset for segment in log.segments] == [0, end]
    assert env.file_size(log.segments[0].path) == size


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
