"""A `.log` file damaged in its synced part: no start removes a byte of it, and the error states the remedy.

Kafka cuts such a log at the damage, whether its index was missing after an orderly stop or it was scanned after a crash.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.recovery.segment_recovery import MisplacedBatch, SyncedDamage, recover_segment
from diamant.storage.segments.txn_index import AbortedTxn
from tests.memory_env import Loss, MemoryEnv, PowerOff
from tests.storage.directory.test_log_directory import COUNT, filled, source, start
from tests.storage.log import test_aborted_transactions as transactions
from tests.storage.logs import batch, make_log, read_all
from tests.storage.one_log import load_one
from tests.storage.recovery import test_loader

LENGTH, BASE_OFFSET, CRC, RECORDS = 8, 2, 17, 70
"""Byte positions within a batch."""


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """A log of three closed segments of 20 batches and an active one of 40, with many index entries in each; stopped."""
    log = make_log(env, tmp_path, index_interval_bytes=300)
    for number in range(100):
        if number in (20, 40, 60):
            log.roll()
        log.append_as_leader(batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=number))
    log.close()
    return log


def contents(log: Log, suffix: str = "") -> dict[str, bytes]:
    """Return the contents of a log's files."""
    return {path.name: path.read_bytes() for path in Path(log.path).iterdir() if path.name.endswith(suffix)}


def flip(path: str | Path, position: int, bit: int = 0x40) -> None:
    """Change one bit of a file."""
    data = bytearray(Path(path).read_bytes())
    data[position] ^= bit
    Path(path).write_bytes(data)


def positions(path: str) -> list[int]:
    """Return the positions of the batches in a `.log` file."""
    return [position for position, _ in iter_headers(Path(path).read_bytes())]


load = partial(test_loader.load, is_clean=True, recovery_point=100)
"""Start after an orderly stop, if nothing else is said."""


def check_refused(log: Log, segment: int, position: int) -> None:
    """Check that starts after a stop and after a crash refuse the log, name file and position, and change no file.

    Then: with the recovery point that the error names the log is cut off at the damage, as it says.
    """
    before = contents(log)
    for is_clean in (True, False, False):
        with pytest.raises(SyncedDamage) as caught:
            load(log, is_clean=is_clean)
        assert (caught.value.path, caught.value.position) == (log.segments[segment].path, position)
        assert contents(log) == before
    named = re.search(rf"{names.RECOVERY_POINT_CHECKPOINT} to (\d+)", str(caught.value))
    assert named is not None
    loaded, _ = load(log, is_clean=False, recovery_point=int(named[1]))
    assert Path(log.segments[segment].path).stat().st_size == position
    assert loaded.log_end_offset == caught.value.next_offset
    assert read_all(loaded) == [b"%d" % number for number in range(loaded.log_end_offset)]


@pytest.mark.parametrize(
    ("segment", "batch", "byte", "index"),
    [
        # It is not mistaken for a damaged index.
        (3, "last indexed", LENGTH, "whole"),
        # Invalid framing hides the end of the log: appends behind it would never be found.
        (3, "behind the index", LENGTH + 2, "whole"),
        # The rebuild of an index scans the `.log` file, and reports its damage before any file changes.
        (3, "7", CRC, "damaged"),
        (3, "7", RECORDS, "damaged"),
        (3, "7", LENGTH, "damaged"),
        (0, "13", RECORDS, "missing"),
    ],
)
def test_a_damaged_batch_is_refused(log: Log, segment: int, batch: str, byte: int, index: str) -> None:
    """After an orderly stop damage that a start comes upon, in any segment, removes no batch."""
    damaged = log.segments[segment]
    indexed = damaged.offset_index.last_entry[1]
    found = positions(damaged.path)
    numbers = {"last indexed": found.index(indexed), "behind the index": found.index(indexed) + 1}
    position = found[numbers[batch] if batch in numbers else int(batch)]
    flip(damaged.path, position + byte)
    if index == "damaged":
        flip(damaged.offset_index.file.path, -1, 1)
    elif index == "missing":
        Path(damaged.offset_index.file.path).unlink()
    check_refused(log, segment, position)


def test_a_damage_that_nothing_has_to_look_at(log: Log) -> None:
    """With whole indexes an orderly start opens the log, and so does a recovery that does not scan the segment."""
    flip(log.segments[0].path, positions(log.segments[0].path)[13] + RECORDS)
    before = contents(log, ".log")
    for is_clean in (True, False):
        loaded, messages = load(log, is_clean=is_clean)
        assert (loaded.log_end_offset, messages) == (100, [])
        assert read_all(loaded, 14) == [b"%d" % number for number in range(14, 100)]
    assert contents(log, ".log") == before


@pytest.mark.parametrize(
    "byte",
    [CRC, RECORDS, LENGTH, LENGTH + 3],
    ids=["CRC", "records", "length", "short length"],
)
def test_after_a_crash_the_recovery_point_decides(log: Log, byte: int) -> None:
    """A damaged batch above the recovery point is cut off with all that follows; below it, or without one, nothing is."""
    position = positions(log.active.path)[10]
    flip(log.active.path, position + byte)
    before = contents(log, ".log")
    for recovery_point in (71, 99, None):
        with pytest.raises(SyncedDamage) as caught:
            load(log, is_clean=False, recovery_point=recovery_point)
        assert (caught.value.position, caught.value.next_offset) == (position, 70)
        assert contents(log, ".log") == before
    loaded, messages = load(log, is_clean=False, recovery_point=70)
    assert loaded.log_end_offset == 70
    assert len(messages) == 1


@pytest.mark.parametrize("recovery_point", [0, 70, 71, 99, None])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_changed_base_offset_is_refused(log: Log, is_clean: bool, recovery_point: int | None) -> None:
    """No checksum covers base offsets. A batch with a wrong one is whole, so nothing is cut off at it or behind it."""
    position = positions(log.active.path)[10]
    flip(log.active.path, position + BASE_OFFSET)
    if is_clean:
        Path(log.active.offset_index.file.path).unlink()
    before = contents(log, ".log")
    for _ in range(2):
        with pytest.raises(MisplacedBatch) as caught:
            load(log, is_clean=is_clean, recovery_point=recovery_point)
        assert caught.value.position == positions(log.active.path)[11]
        assert contents(log, ".log") == before


@pytest.mark.parametrize("seed", range(20))
def test_an_orderly_start_never_shortens_a_log(log: Log, seed: int) -> None:
    """Strategy: some bits of `.log` files flipped, some index files gone, some overwritten, then two starts. Invariant: the
    `.log` files stay as they are, and a log that is served has its end where it was; but the last batch may be set aside by the
    start that follows no orderly stop.
    """
    rng = random.Random(seed)
    for path in sorted(Path(log.path).iterdir()):
        if path.suffix == ".log":
            for _ in range(rng.choice([0, 0, 1, 3])):
                flip(path, rng.randrange(path.stat().st_size), 1 << rng.randrange(8))
        elif path.suffix in {".index", ".timeindex", ".txnindex", ".snapshot"} and rng.random() < 0.4:
            path.unlink()
        elif path.suffix == ".index" and rng.random() < 0.3:
            path.write_bytes(rng.randbytes(path.stat().st_size))
    before = contents(log, ".log")
    with suppress(CorruptLog):
        assert load(log, is_clean=True)[0].log_end_offset == 100
    assert contents(log, ".log") == before
    with suppress(CorruptLog):
        loaded, _ = load(log, is_clean=False)
        assert loaded.log_end_offset >= 99
    after = contents(log, ".log")
    after[Path(log.active.path).name] += b"".join(contents(log, names.ASIDE_SUFFIX).values())
    assert after == before


@pytest.mark.parametrize("loss", ["nothing", "mark of a stop", "recovery points", "content of recovery points"])
def test_a_refused_log_is_refused_until_somebody_decides(loss: str) -> None:
    """Other logs are served; a refused log stays as it is, and the remedy of the error text works.

    This holds even if the broker that refused it was killed before it wrote any checkpoints. Without those of before, damage in
    the middle is no leave to cut, although later starts find a checkpoint file.
    """
    env, expected = filled(bad=source(1, index_interval_bytes=0), good=source(2))
    is_lost = loss.endswith("recovery points")
    checkpoint = f"/data/{names.RECOVERY_POINT_CHECKPOINT}"
    if not is_lost:
        start(env, expected).close()
    elif loss == "recovery points":
        env.remove(checkpoint, missing_ok=True)
    else:
        env.write_atomically(checkpoint, b"0\n7\n")
    path = "/data/bad-0/00000000000000000000.log"
    data = bytearray(env.read_bytes(path))
    number = COUNT // 2 if is_lost else COUNT - 1
    position = [at for at, _ in iter_headers(data)][number]
    data[position + LENGTH] = 0x7F
    env.write_atomically(path, bytes(data))
    for _ in range(3):
        directory = start(env, expected)
        (error,) = [failure.error for failure in directory.failures]
        assert isinstance(error, SyncedDamage)
        assert f"{path} at {position}" in str(error)
        assert read_all(directory.logs["good", 0]) == [b"%d" % number for number in range(COUNT)]
        directory.close(is_clean=loss != "mark of a stop")
        assert env.read_bytes(path) == bytes(data)
    found = checkpoints.read_offset_checkpoint(env, checkpoint)
    checkpoints.write_offset_checkpoint(env, checkpoint, {**found, ("bad", 0): error.next_offset})
    directory = start(env, expected)
    assert directory.failures == []
    assert read_all(directory.logs["bad", 0]) == [b"%d" % number for number in range(number)]


@pytest.mark.parametrize("what", ["no offset index", "a damaged index of aborted transactions"])
@pytest.mark.parametrize("loss", [None, Loss(0, 1), Loss(1, 0), Loss(1, 0.5)])
def test_a_loss_of_power_while_indexes_are_recreated(what: str, loss: Loss | None) -> None:
    """A start rebuilds the indexes of an old segment; whenever the power fails, the next start has all of them.

    The index of aborted transactions matters most: without it aborted records would be served as committed ones.
    """
    env = MemoryEnv()
    log = transactions.new_log(env)
    workload = transactions.Workload(log)
    for producer_id, commit in transactions.OUTCOMES * 3:
        workload.write(producer_id)
        workload.end(producer_id, commit=commit)
    log.close()
    expected = [segment.txn_index.all() for segment in log.segments]
    assert len(expected) > 2
    assert expected[1]
    if what == "no offset index":
        env.remove(log.segments[1].offset_index.file.path)
    else:
        path = log.segments[1].txn_index.path
        env.write_atomically(path, AbortedTxn(1, 0, 0, 0).to_bytes() + env.read_bytes(path))
    for directory in ("/", "/data", log.path):
        env.sync_dir(directory)
    for changes in count():
        machine = env.copy()
        machine.power_off_after(changes=changes)
        is_over = load_with(machine, log.log_end_offset, is_clean=True) is not None
        machine.crash(loss)
        again = load_with(machine, log.log_end_offset, is_clean=False)
        assert again is not None
        assert [segment.txn_index.all() for segment in again.segments] == expected
        # Unsynced parts of an offset index may be lost, as always: reads are right without them.
        assert again.segments[1].offset_index.file.entries > 0 or (loss is not None and loss.content < 1)
        if is_over:
            return


def load_with(env: MemoryEnv, recovery_point: int, *, is_clean: bool) -> Log | None:
    """Start; None if the power fails during the start."""
    fields = {"expiration_ms": transactions.EXPIRATION_MS, "recovery_point": recovery_point, "is_clean": is_clean}
    try:
        return load_one(env, transactions.CONFIG, **fields)
    except PowerOff:
        return None


def test_damage_that_only_the_recovery_finds_is_refused_all_the_same(env: RealEnv, tmp_path: Path) -> None:
    """A disk may fail after the first check; a scan on behalf of the indexes cuts off nothing that was synced."""
    log = make_log(env, tmp_path)
    for number in range(3):
        log.append_as_leader(batch(b"%d" % number))
    log.flush()
    segment = log.segments[0]
    flip(segment.path, positions(segment.path)[1] + CRC)
    before = contents(log, ".log")
    with pytest.raises(SyncedDamage) as caught:
        recover_segment(segment, log.config, log.epochs, log.producers, synced_end=3)
    assert (caught.value.next_offset, contents(log, ".log")) == (1, before)
