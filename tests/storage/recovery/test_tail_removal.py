"""The removal of a log's newest records: the log is then as if they had never been written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.recovery.tail_removal import remove_tail
from tests.builder import make_marker
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, read_all, reopen


def append(log: Log, step: int) -> None:
    """Append the step's batch: plain, of an idempotent producer, or of a transaction, which every fifth step ends."""
    choice = random.Random(step)
    kind, producer_id = choice.randrange(5), choice.randrange(3)
    timestamp = START_MS + choice.randrange(1000)
    if step % 11 == 10:
        log.become_leader(log.leader_epoch + 1)
    if kind < 2:
        log.append_as_leader(batch(*[b"v%d" % step] * choice.randrange(1, 4), timestamp=timestamp))
        return
    entries = {entry.producer_id: entry for entry in log.producers.active_producers}
    entry = entries.get(producer_id)
    sequence = 0 if entry is None else entry.last_sequence + 1
    is_open = entry is not None and entry.current_txn_first_offset >= 0
    is_transactional = kind > 3 or is_open
    if kind == 3 and is_open:
        log.append_internal(make_marker(producer_id, is_commit=bool(step % 2), producer_epoch=0))
        return
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    log.append_as_leader(batch(b"p%d" % step, timestamp=timestamp, is_transactional=is_transactional, **fields))


def state(log: Log) -> dict[str, object]:
    """Everything that later appends, reads and restarts depend on."""
    active = log.active
    return {
        "end": (log.log_end_offset, log.last_stable_offset, active.size),
        "records": (read_all(log), read_all(log, isolation_level=1)),
        "time": (active.max_timestamp, active.offset_of_max_timestamp, active.bytes_since_index_entry),
        "indexes": (active.offset_index.file.entries, list(active.txn_index.all())),
        "epochs": log.epochs.entries,
        "producers": sorted(log.producers.active_producers),
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_shortened_log_equals_one_that_was_never_longer(env: RealEnv, tmp_path: Path, seed: int) -> None:
    """The log is equal in its files, indexes, producers, transactions and epochs; also for later appends, and after a restart."""
    choice = random.Random(seed)
    options = {"index_interval_bytes": choice.choice((64, 400, 4096))}
    kept, removed = choice.randrange(30), choice.randrange(1, 30)
    (tmp_path / "shorter").mkdir()
    log, twin = make_log(env, tmp_path, **options), make_log(env, tmp_path / "shorter", **options)
    rolled_at = choice.randrange(kept + 1)
    for step in range(kept):
        for one in (log, twin):
            if step == rolled_at:
                one.roll()
            append(one, seed * 1000 + step)
    end = log.log_end_offset
    for step in range(kept, kept + removed):
        append(log, seed * 1000 + step)
        log.read(choice.randrange(log.log_end_offset), 1 << 20, isolation_level=0, min_one_message=True)
    assert remove_tail(log, end) == end
    assert state(log) == state(twin)
    log.become_leader(99)
    twin.become_leader(99)
    for step in range(kept + 100, kept + 110):
        append(log, seed * 1000 + step)
        append(twin, seed * 1000 + step)
    assert state(log) == state(twin)
    assert read_all(reopen(log, is_clean=False)) == read_all(twin)


def test_whole_batches_are_removed(env: RealEnv, tmp_path: Path) -> None:
    """An offset within a batch removes that batch."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a"))
    log.append_as_leader(batch(b"b", b"c"))
    assert remove_tail(log, 2) == 1
    assert read_all(log) == [b"a"]


@pytest.mark.parametrize("offset", [1, 4])
def test_only_the_active_segment_is_shortened(env: RealEnv, tmp_path: Path, offset: int) -> None:
    """An offset before it, or beyond the end, is refused, and nothing is removed."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a", b"b"))
    log.roll()
    log.append_as_leader(batch(b"c"))
    with pytest.raises(KafkaError, match="expected an offset from 2, where its active segment begins, to 3") as caught:
        remove_tail(log, offset)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert read_all(log) == [b"a", b"b", b"c"]


def test_nothing_is_removed_at_the_end(env: RealEnv, tmp_path: Path) -> None:
    """The log end offset itself removes nothing."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a"))
    assert remove_tail(log, 1) == 1
    assert remove_tail(log, 0) == 0
    assert read_all(log) == []
