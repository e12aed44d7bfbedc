"""Opening a partition directory after clean and unclean stops (Kafka's LogLoader)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from diamant.storage.checkpoints.producer_snapshot import write_snapshot
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, read_all
from tests.storage.one_log import load_one


def files(log: Log, suffix: str) -> list[Path]:
    return sorted(path for path in Path(log.path).iterdir() if path.name.endswith(suffix))


def fill(log: Log, count: int = 60) -> list[bytes | None]:
    for number in range(count):
        log.append_as_leader(batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=number))
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """A log of several segments with index entries in each."""
    return make_log(env, tmp_path, segment_bytes=2000, index_interval_bytes=200)


def load(log: Log, **fields: Any) -> tuple[Log, list[str]]:
    """Open the log without any cached state, after a crash unless `is_clean`; return it, and what the operator is told."""
    if isinstance(log.env, RealEnv):
        log.env = RealEnv(log.env.clock)
    messages: list[str] = []
    return load_one(log.env, log.config, path=log.path, messages=messages, **fields), messages


def test_recovery_rebuilds_indexes_byte_for_byte(log: Log) -> None:
    """Indexes built while recovering equal those built while appending."""
    expected = fill(log)
    log.close()
    before = {path.name: path.read_bytes() for suffix in ("index",) for path in files(log, suffix)}
    for path in files(log, "index"):
        path.unlink()
    loaded, messages = load(log)
    assert not messages
    assert read_all(loaded) == expected
    loaded.close()
    after = {path.name: path.read_bytes() for path in files(log, "index")}
    assert after == before


def test_clean_load_rebuilds_a_missing_offset_index(log: Log) -> None:
    """Even after a clean stop a segment without its offset index is recovered."""
    expected = fill(log)
    log.close()
    files(log, ".index")[1].unlink()
    loaded, _ = load(log, is_clean=True)
    assert read_all(loaded) == expected


def test_everything_but_the_log_files_may_be_gone(log: Log) -> None:
    """Indexes, snapshots and epochs are caches: records and producer state come back from the batches."""
    expected = fill(log)
    log.close()
    for path in Path(log.path).iterdir():
        if path.suffix != ".log" and path.name != "partition.metadata":
            path.unlink()
    loaded, _ = load(log)
    assert read_all(loaded) == expected
    duplicate = loaded.append_as_leader(batch(b"59", producer_id=1, producer_epoch=0, base_sequence=59))
    assert duplicate.is_duplicate
    assert duplicate.base_offset == 59


@pytest.mark.parametrize("tail", [b"\x00" * 100, b"\x07" * 9, bytes(range(200))])
def test_torn_and_garbage_tails_are_cut_off(log: Log, tail: bytes) -> None:
    """After a crash all bytes after the last whole valid batch are cut off, and all records before stay."""
    expected = fill(log)
    log.close(is_clean=False)
    last = files(log, ".log")[-1]
    size = last.stat().st_size
    whole = last.read_bytes()
    last.write_bytes(whole + tail)
    loaded, messages = load(log, recovery_point=30)
    assert last.stat().st_size == size
    assert str(last) in messages[0]
    assert read_all(loaded) == expected
    assert loaded.append_as_leader(batch(b"next")).base_offset == len(expected)


@pytest.mark.parametrize("seed", range(12))
def test_corruption_anywhere_leaves_a_prefix(log: Log, seed: int) -> None:
    """Strategy: flip one byte at a random place of a random segment. Invariant: what remains is a prefix of what was written."""
    expected = fill(log)
    log.close(is_clean=False)
    chosen = random.Random(seed)
    path = chosen.choice(files(log, ".log"))
    data = bytearray(path.read_bytes())
    position = chosen.randrange(len(data))
    data[position] ^= 1 << chosen.randrange(8)
    path.write_bytes(data)
    loaded, _ = load(log)
    found = read_all(loaded)
    assert found == expected[: len(found)]
    assert loaded.log_end_offset == len(found)


def test_leftovers_of_crashes_are_removed(log: Log) -> None:
    """`.deleted`, `.cleaned` and orphaned index files are removed; unknown files stay."""
    fill(log)
    log.close()
    directory = Path(log.path)
    for name in ("00000000000000000000.log.deleted", "00000000000000000003.log.cleaned", "00000000000000009999.index"):
        (directory / name).write_bytes(b"x")
    (directory / "note.txt").write_bytes(b"x")
    load(log, is_clean=True)
    left = {path.name for path in directory.iterdir()}
    assert "note.txt" in left
    assert not [name for name in left if name.endswith((".deleted", ".cleaned")) or "9999" in name]


def test_a_complete_swap_is_finished(log: Log) -> None:
    """A `.swap` set without `.cleaned` files replaces the segments that it covers."""
    expected = fill(log)
    log.close()
    first, second = files(log, ".log")[:2]
    merged = first.read_bytes() + second.read_bytes()
    first.with_suffix(".log.swap").write_bytes(merged)
    loaded, _ = load(log, is_clean=True)
    assert not second.exists()
    assert first.read_bytes() == merged
    assert read_all(loaded) == expected


def test_an_incomplete_swap_is_dropped(log: Log) -> None:
    """A `.cleaned` file below a `.swap` means that the renames were incomplete: the old segments stay."""
    expected = fill(log)
    log.close()
    first, second = files(log, ".log")[:2]
    first.with_suffix(".log.cleaned").write_bytes(b"")
    second.with_suffix(".log.swap").write_bytes(b"")
    loaded, _ = load(log, is_clean=True)
    assert read_all(loaded) == expected
    assert not list(Path(log.path).glob("*.swap"))


def test_log_end_below_log_start_starts_empty_at_the_log_start(log: Log) -> None:
    """If the log ends below its start offset, it is emptied and begins there."""
    fill(log)
    log.close(is_clean=False)
    loaded, messages = load(log, log_start_offset=100)
    assert (loaded.log_start_offset, loaded.log_end_offset, loaded.size) == (100, 100, 0)
    assert messages
    assert loaded.append_as_leader(batch(b"a")).base_offset == 100


def test_recovery_forgets_producers_that_expired(log: Log) -> None:
    """Like a load from a snapshot, recovery forgets expired producers, whose last batches the cleaner would otherwise keep."""
    log.append_as_leader(batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))
    log.append_as_leader(batch(b"b", producer_id=2, producer_epoch=0, base_sequence=0, timestamp=START_MS + 1))
    log.close(is_clean=False)
    assert isinstance(log.env.clock, SettableClock)
    log.env.clock.set_ms(START_MS + 86_400_000)
    loaded, _ = load(log)
    assert [entry.producer_id for entry in loaded.producers.active_producers] == [2]


def test_recovery_trusts_no_snapshot_of_before(log: Log) -> None:
    """State above the recovery point is rebuilt from batches: a snapshot may describe batches that no longer exist."""
    fill(log)
    log.close(is_clean=False)
    snapshots = files(log, ".snapshot")
    contents = {path: path.read_bytes() for path in snapshots}
    other = write_snapshot([])
    for path in snapshots:
        path.write_bytes(other)
    loaded, _ = load(log)
    loaded.close()
    assert {path: path.read_bytes() for path in snapshots} == contents


def test_recovery_continues_across_a_gap_between_segments(log: Log) -> None:
    """If a segment's end was compacted away, all last batches of a producer stay known, and a snapshot is taken."""
    log.append_as_leader(batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))
    log.append_as_leader(batch(b"b", producer_id=1, producer_epoch=0, base_sequence=1))
    size = log.active.size
    log.append_as_leader(batch(b"c"))
    log.roll()
    log.append_as_leader(batch(b"d", producer_id=1, producer_epoch=0, base_sequence=2))
    log.close(is_clean=False)
    first = files(log, ".log")[0]
    first.write_bytes(first.read_bytes()[:size])
    loaded, _ = load(log)
    assert (Path(log.path) / "00000000000000000003.snapshot").exists()
    for sequence in range(3):
        again = batch(b"%d" % sequence, producer_id=1, producer_epoch=0, base_sequence=sequence)
        assert loaded.append_as_leader(again).is_duplicate
