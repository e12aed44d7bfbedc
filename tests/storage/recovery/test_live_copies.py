"""Copies of a log directory made while a broker ran: their files are of different moments.

Kafka opens most of them. So does Diamant, unless whole batches would have to be cut off; data taken out of such a log are kept.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from diamant.cleaner.offline.offline_clean import OfflineReport, PartitionSettings, clean_partition
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import BatchHeader
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.recovery.damaged_tail import WINDOW_BYTES
from diamant.storage.recovery.segment_recovery import SyncedDamage
from diamant.storage.segments.log_config import LogConfig
from tests.injected_faults import Operation
from tests.memory_env import Loss, MemoryEnv, PowerOff
from tests.storage.directory.test_log_directory import COUNT, filled, source, start
from tests.storage.logs import batch, make_log, read_all
from tests.storage.recovery import test_loader
from tests.storage.recovery.test_damaged_start import CRC, contents, flip, positions

END = 30
"""Numbers of the fixture's log; its active segment begins at 20."""


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """A log of two segments after a kill of its broker."""
    log = make_log(env, tmp_path, index_interval_bytes=300)
    for number in range(END):
        if number == 20:
            log.roll()
        log.append_as_leader(batch(b"%d" % number))
    log.close(is_clean=False)
    return log


def load(log: Log, recovery_point: int | None) -> tuple[Log, list[str]]:
    """Open the log as after a crash."""
    return test_loader.load(log, recovery_point=recovery_point)


def torn(path: str, damage: str) -> int:
    """Damage each of the last three batches; return the position of the damage."""
    data = Path(path).read_bytes()
    position = positions(path)[-3]
    pieces = {
        "short": data[: position + 40],
        "no header": data[: position + 7],
        "zeros": data[:position] + bytes(len(data) - position),
        "half zeros": data[: position + 50] + bytes(3 * WINDOW_BYTES),
        "noise": data[:position] + bytes(range(256)) * 5000,
        "boundary": data[:position],
    }
    Path(path).write_bytes(pieces[damage])
    return position


@pytest.mark.parametrize("recovery_point", [28, END, 5000, None])
@pytest.mark.parametrize("damage", ["short", "no header", "zeros", "half zeros", "noise", "boundary"])
def test_a_log_that_ends_below_its_recovery_point(log: Log, damage: str, recovery_point: int | None) -> None:
    """The log opens and reports the number of missing records; the cut-off bytes are kept, unless all are zero."""
    before = Path(log.active.path).read_bytes()
    position = torn(log.active.path, damage)
    cut = Path(log.active.path).read_bytes()[position:]
    loaded, messages = load(log, recovery_point)
    assert loaded.log_end_offset == END - 3
    assert read_all(loaded) == [b"%d" % number for number in range(END - 3)]
    assert Path(log.active.path).read_bytes() == before[:position]
    kept = {"00000000000000000027.log.aside": cut} if any(cut) else {}
    assert contents(log, names.ASIDE_SUFFIX) == kept
    told = [one for one in messages if f"up to {(recovery_point or 0) - (END - 3)} records are missing" in one]
    assert len(told) == (recovery_point is not None)
    assert sum("cut off" in one for one in messages) == (damage != "boundary")
    loaded.append_as_leader(batch(b"new"))
    loaded.close(is_clean=False)
    assert read_all(load(log, loaded.log_end_offset)[0])[-1] == b"new"


def test_a_file_of_cut_off_bytes_is_never_overwritten(log: Log) -> None:
    """A log that is torn twice at the same offset has two files of cut-off bytes."""
    for piece in (b"first", b"second"):
        with Path(log.active.path).open("ab") as file:
            file.write(piece)
        load(log, 1000)[0].close(is_clean=False)
    assert [kept for _, kept in sorted(contents(log, names.ASIDE_SUFFIX).items())] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("create", "*.aside"),
        ("append", "*.aside"),
        ("sync", "*.aside"),
        ("sync_dir", "/c/t-0"),
        ("truncate", f"*{20:020d}.log"),
    ],
)
def test_a_start_that_ends_while_it_sets_aside(memory: MemoryEnv, operation: Operation, path: str) -> None:
    """With a full disk or after a kill, bytes are cut off only once they are kept; the next start makes no second copy."""
    log = make_log(memory, Path("/c"), index_interval_bytes=300)  # type: ignore[arg-type]
    for number in range(END):
        if number == 20:
            log.roll()
        log.append_as_leader(batch(b"%d" % number))
    log.close(is_clean=False)
    whole = memory.read_bytes(log.active.path)
    position = [position for position, _ in iter_headers(whole)][-3]
    before = whole[: position + 40]
    memory.write_atomically(log.active.path, before)
    fault = memory.fail(operation, path, errno.ENOSPC, times=1, partial_bytes=7)

    def kept() -> list[bytes]:
        return [
            memory.read_bytes(f"{log.path}/{name}") for name in memory.list_dir(log.path) if name.endswith(".aside")
        ]

    with suppress(OSError):
        test_loader.load(log, recovery_point=END)[0].close(is_clean=False)
    assert fault.hits == 1
    assert memory.read_bytes(log.active.path) == before or before[position:] in kept()
    loaded, _ = test_loader.load(log, recovery_point=END)
    assert read_all(loaded) == [b"%d" % number for number in range(END - 3)]
    assert memory.read_bytes(log.active.path) == before[:position]
    assert kept() == [before[position:]]


def test_a_damage_in_an_old_segment_without_a_recovery_point(log: Log) -> None:
    """All segments are checked; damage at the end of one is not the end of the log."""
    with Path(log.segments[0].path).open("r+b") as file:
        file.truncate(positions(log.segments[0].path)[-1] + 30)
    before = contents(log)
    with pytest.raises(SyncedDamage, match="to 19"):
        load(log, None)
    assert contents(log) == before


def test_a_log_that_was_checked_without_a_recovery_point() -> None:
    """Data found whole are synced and count as synced from then on: later damage in them does not permit a cut."""
    env, expected = filled(t=source(1, segment_bytes=1000))
    env.remove(f"/data/{names.RECOVERY_POINT_CHECKPOINT}", missing_ok=True)
    env.sync_dir("/")
    start(env, expected).close(is_clean=False)
    env.crash()
    path = f"/data/t-0/{0:020d}.log"
    data = bytearray(env.read_bytes(path))
    data[CRC] ^= 1
    env.write_atomically(path, bytes(data))
    directory = start(env, expected)
    assert directory.failures == []
    assert directory.logs["t", 0].log_end_offset == COUNT
    assert env.read_bytes(path) == bytes(data)


def test_a_log_that_lost_its_end_and_then_the_power() -> None:
    """Unsynced appends after the loss may be torn anywhere, since the old recovery point no longer applies."""
    env, expected = filled(t=source(1))
    start(env, expected).close()
    env.remove(f"/data/{names.CLEAN_SHUTDOWN}")
    path = f"/data/t-0/{0:020d}.log"
    env.write_atomically(path, env.read_bytes(path)[:-30])
    directory = start(env, expected)
    for number in range(3):
        directory.logs["t", 0].append_as_leader(batch(b"%d" % number))
    directory.close(is_clean=False)
    data = bytearray(env.read_bytes(path))
    data[[at for at, _ in iter_headers(data)][-2] + CRC] ^= 1
    env.write_atomically(path, bytes(data))
    directory = start(env, expected)
    assert directory.failures == []
    assert directory.logs["t", 0].log_end_offset == COUNT


def test_a_broker_starts_on_a_full_disk() -> None:
    """The recovery points cannot be written at once; the broker starts nevertheless, so that data can be deleted."""
    env, expected = filled(t=source(1))
    env.remove(f"/data/{names.RECOVERY_POINT_CHECKPOINT}", missing_ok=True)
    env.fail("create", f"/data/{names.RECOVERY_POINT_CHECKPOINT}*", errno.ENOSPC)
    directory = start(env, expected)
    assert directory.failures == []
    (message,) = directory.messages
    assert "No space left" in message


# -- segments from before a cleaning round, beside the segments they were cleaned into ---------------------------------


@pytest.fixture
def compacted(env: RealEnv, tmp_path: Path) -> Log:
    """A compacted log of five closed segments of 20 batches, of 15 keys, and an active one of 10."""
    log = make_log(env, tmp_path, cleanup_policy=frozenset({"compact"}), index_interval_bytes=300)
    for number in range(110):
        if number and number % 20 == 0:
            log.roll()
        log.append_as_leader(batch(b"%d" % number, key=b"%d" % (number % 15)))
    log.close()
    return log


@pytest.fixture
def before(compacted: Log, tmp_path: Path) -> Path:
    """The files of `compacted` from before a cleaning round, which has run."""
    shutil.copytree(compacted.path, tmp_path / "before")
    clean(compacted, force=True)
    return tmp_path / "before"


def clean(log: Log, **fields: bool) -> OfflineReport:
    """Run a cleaning round on the files."""
    env = RealEnv(log.env.clock) if isinstance(log.env, RealEnv) else log.env
    return clean_partition(env, log.path, PartitionSettings(log.config, CleanerSettings(), 1), **fields)


def take(log: Log, before: Path, *bases: int) -> None:
    """Restore files from before the round, like a copy that read them earlier."""
    for base in bases:
        for path in before.glob(f"{base:020d}.*"):
            shutil.copy2(path, log.path)


@pytest.mark.parametrize("taken", [(20,), (40, 60), (20, 40, 60, 80), (80,)])
@pytest.mark.parametrize("has_active", [True, False])
def test_segments_that_were_cleaned_into_another(
    compacted: Log, before: Path, taken: tuple[int, ...], has_active: bool
) -> None:
    """Stale segments are set aside; reads from any offset get the cleaned segment, at which the log ends."""
    if not has_active:
        for path in Path(compacted.path).glob(f"{100:020d}.*"):
            path.unlink()
    expected = [load_values(compacted, offset) for offset in (0, 30, 70, 90)]
    take(compacted, before, *taken)
    loaded, messages = load(compacted, 100 if has_active else 0)
    assert loaded.log_end_offset == (110 if has_active else 100)
    assert [read_all(loaded, offset) for offset in (0, 30, 70, 90)] == expected
    assert contents(compacted, names.ASIDE_SUFFIX) == {
        f"{base:020d}.log.aside": (before / f"{base:020d}.log").read_bytes() for base in taken
    }
    assert sum("set aside" in one for one in messages) == len(taken)
    assert not list(Path(compacted.path).glob(f"{taken[0]:020d}.*index"))


@pytest.mark.parametrize("loss", [Loss(1, 1), Loss(0.5, 1), Loss(0, 0)])
def test_a_loss_of_power_while_old_segments_are_set_aside(memory: MemoryEnv, loss: Loss) -> None:
    """Whichever segments were set aside, the rest are found to be stale again."""
    config = {"cleanup_policy": frozenset({"compact"}), "index_interval_bytes": 300, "segment_bytes": 5500}
    log = make_log(memory, Path("/c"), **config)  # type: ignore[arg-type]
    for number in range(110):
        if number and number % 20 == 0:
            log.roll()
        log.append_as_leader(batch(b"%d" % number, key=b"%d" % (number if number in (5, 25, 45) else number % 3)))
    log.close()
    old = {name: memory.read_bytes(f"{log.path}/{name}") for name in memory.list_dir(log.path)}
    clean(log, force=True)
    expected = read_all(test_loader.load(make_like(log, memory.copy()), recovery_point=100)[0])
    for name in old:
        if name.startswith((f"{20:020d}", f"{40:020d}")):
            memory.write_atomically(f"{log.path}/{name}", old[name])
    for directory in ("/", "/c", log.path):
        memory.sync_dir(directory)
    for changes in count():
        machine = memory.copy()
        machine.power_off_after(changes=changes)
        is_over = False
        with suppress(PowerOff):
            test_loader.load(make_like(log, machine), recovery_point=100)
            is_over = True
        machine.crash(loss)
        loaded, messages = test_loader.load(make_like(log, machine), recovery_point=100)
        assert [segment.base_offset for segment in loaded.segments] == [0, 60, 100]
        assert read_all(loaded) == expected
        assert not any("records are missing" in one for one in messages)
        kept = {
            name: machine.read_bytes(f"{log.path}/{name}") for name in machine.list_dir(log.path) if "aside" in name
        }
        assert kept == {f"{base:020d}.log.aside": old[f"{base:020d}.log"] for base in (20, 40)}
        if is_over:
            return


@pytest.mark.parametrize("is_last", [False, True])
def test_an_old_segment_whose_last_records_are_not_in_the_cleaned_one(compacted: Log, is_last: bool) -> None:
    """A segment that was cleaned as a whole is set aside, unless the log would end earlier without it."""
    first, second = (Path(segment.path) for segment in compacted.segments[:2])
    whole, batches = second.read_bytes(), positions(str(second))
    first.write_bytes(first.read_bytes()[: positions(str(first))[2]] + whole[batches[3] : batches[-4]])
    if is_last:
        for segment in compacted.segments[2:]:
            Path(segment.path).unlink()
    loaded, _ = load(compacted, 0 if is_last else 100)
    assert second.exists() == is_last
    assert loaded.log_end_offset == (40 if is_last else 110)
    if not is_last:
        assert read_all(loaded)[:5] == [b"0", b"1", b"23", b"24", b"25"]
        assert read_all(loaded, 36)[0] == b"40"


def test_an_end_mark_without_the_segment_that_it_belongs_to(compacted: Log) -> None:
    """A copy may hold only the end mark. An empty segment within the offsets of another one would hide its records."""
    (Path(compacted.path) / f"{39:020d}.log.swap").touch()
    loaded, _ = load(compacted, 100)
    assert [segment.base_offset for segment in loaded.segments] == [0, 20, 40, 60, 80, 100]
    assert read_all(loaded, 39)[0] == b"39"
    assert contents(compacted, ".log").keys() == {f"{base:020d}.log" for base in (0, 20, 40, 60, 80, 100)}


def load_values(log: Log, offset: int) -> list[bytes | None]:
    """Return the records from an offset on; the files do not change."""
    copy = Path(log.path).parent / "read" / "t-0"
    shutil.copytree(log.path, copy)
    there = test_loader.load(make_like(log, RealEnv(log.env.clock), str(copy)), recovery_point=100)[0]
    found = read_all(there, offset)
    shutil.rmtree(copy)
    return found


def make_like(log: Log, env: RealEnv | MemoryEnv, path: str | None = None) -> Log:
    """Copy the log to another machine or path, for `load`."""
    other = object.__new__(type(log))
    other.env, other.path, other.config = env, path or log.path, log.config
    return other


def test_an_index_of_another_moment_than_its_segment(compacted: Log, before: Path) -> None:
    """If a cleaned segment has the old one's indexes, the start rebuilds all of them, instead of later reads entry by entry."""
    name = f"{0:020d}.index"
    expected = (Path(compacted.path) / name).read_bytes()
    shutil.copy2(before / name, compacted.path)
    loaded, messages = load(compacted, 100)
    assert any(name.removesuffix(".index") in one and "rebuilt" in one for one in messages)
    assert len(read_all(loaded)) == 25
    assert not any(segment.is_index_damaged for segment in loaded.segments)
    loaded.close()
    assert (Path(compacted.path) / name).read_bytes() == expected


def test_a_damaged_offset_makes_no_segment_stale(compacted: Log) -> None:
    """A segment that covers others only by the damaged offset of its last batch does not make them stale."""
    position = positions(compacted.segments[0].path)[-1]
    flip(compacted.segments[0].path, position + 7, 64)
    before = contents(compacted, ".log")
    loaded, _ = load(compacted, 100)
    assert len(loaded.segments) == 6
    assert contents(compacted, ".log") == before


def test_an_index_without_its_segment_is_reported(log: Log) -> None:
    """If a copy has an index without its `.log` file, the message says that records may be missing."""
    Path(log.segments[0].path).unlink()
    _, messages = load(log, 20)
    assert any(f"there is no {0:020d}.log" in one for one in messages)


def test_config_without_compaction_compares_no_segments(log: Log) -> None:
    """Without compaction there are no cleaned segments, so a start opens only the segments that recovery needs."""
    assert LogConfig().is_compacted is False
    loaded, _ = load(log, 25)
    assert loaded.segments[0]._file is None


def test_a_clean_of_a_copy_merges_no_segments_of_different_moments(compacted: Log, before: Path) -> None:
    """`diamant log clean` and `whatif` recognise stale segments even without recovery."""
    take(compacted, before, 20, 40)
    assert len(clean(compacted).recovery) == 2
    log, _ = load(compacted, 100)
    assert [header.base_offset for header in headers(log)] == sorted({header.base_offset for header in headers(log)})


def headers(log: Log) -> list[BatchHeader]:
    """Return the headers of all batches, in order of the files."""
    return [header for one in log.segments for _, header in iter_headers(Path(one.path).read_bytes())]


def test_a_clean_of_a_partition_whose_recovery_point_nobody_knows(compacted: Log) -> None:
    """`diamant log clean --unclean` of one copied partition cuts off no whole batches, not even before it fails."""
    path = compacted.segments[1].path
    flip(path, positions(path)[3] + CRC)
    before = contents(compacted)
    with pytest.raises(SyncedDamage):
        clean(compacted, is_clean=False)
    assert contents(compacted) == before
