"""A log directory: one partition that cannot be opened does not affect the others."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.directory.log_directory import LogDirectory, PartitionSource
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig
from tests.injected_faults import InjectedFault
from tests.memory_env import MemoryEnv
from tests.storage.logs import batch, read_all

DAY_MS = 86_400_000
COUNT = 60

CHECKPOINTS = (names.RECOVERY_POINT_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.HIGH_WATERMARK_CHECKPOINT)

Expected = dict[tuple[str, int], PartitionSource]


def source(number: int, **config: int) -> PartitionSource:
    """Return a partition's metadata."""
    return PartitionSource(UUID(int=number), LogConfig(**config))  # type: ignore[arg-type]


def fill(env: MemoryEnv, expected: Expected) -> None:
    """Create the partitions, append records to each, and leave them as after a crash."""
    directory = LogDirectory.open(env, "/data", producer_expiration_ms=DAY_MS)
    directory.load_logs(expected, threads=1)
    for log in directory.logs.values():
        for number in range(COUNT):
            log.append_as_leader(batch(b"%d" % number, timestamp=1_700_000_000_000 + number))
    directory.close(is_clean=False)


def filled(**sources: PartitionSource) -> tuple[MemoryEnv, Expected]:
    """Return a machine after a crash with these topics, of one partition each, and their metadata."""
    env, expected = MemoryEnv(), {(topic, 0): found for topic, found in sources.items()}
    fill(env, expected)
    return env, expected


def start(env: MemoryEnv, expected: Expected) -> LogDirectory:
    """Open the directory again."""
    directory = LogDirectory.open(env, "/data", producer_expiration_ms=DAY_MS)
    directory.load_logs(expected, threads=2)
    return directory


def offsets(env: MemoryEnv, name: str) -> dict[tuple[str, int], int]:
    """Return the contents of a checkpoint file."""
    return checkpoints.read_offset_checkpoint(env, f"/data/{name}")


def refuse(env: MemoryEnv, topic: str) -> InjectedFault:
    """Make the logs of a topic fail to open, as without free descriptors."""
    return env.fail("open", f"/data/{topic}-*", errno.EMFILE)


def test_a_new_directory_keeps_its_name_in_a_loss_of_power(memory: MemoryEnv) -> None:
    """The name is synced, as by Kafka (LogManager.createAndValidateLogDirs), and those of its parents: else all that is synced
    below would be lost.
    """
    directory = LogDirectory.open(memory, "/new/of/data", producer_expiration_ms=DAY_MS)
    directory.close()
    memory.crash()
    assert memory.is_dir("/new/of/data")


def test_a_directory_that_cannot_be_opened_is_not_locked(memory: MemoryEnv) -> None:
    """The next attempt, which may come while the error is still referred to, finds it free."""
    LogDirectory.open(memory, "/data", producer_expiration_ms=DAY_MS).close()
    fault = memory.fail("sync_dir", "/data", errno.EMFILE)
    try:
        LogDirectory.open(memory, "/data", producer_expiration_ms=DAY_MS)
    except OSError:
        fault.clear()
        LogDirectory.open(memory, "/data", producer_expiration_ms=DAY_MS).close()


def test_a_reset_keeps_what_is_queued_beside_the_directory(memory: MemoryEnv) -> None:
    """Copies of the data are removed all the same; names in the directory are other files by then."""
    directory = LogDirectory.open(memory, "/data", producer_expiration_ms=DAY_MS)
    directory.deletions.add(["/data.fork-0123456789ab", "/data/t-0/00000000000000000000.log.deleted"])
    assert directory.give_up().deletions.take_due() == ["/data.fork-0123456789ab"]


@pytest.mark.parametrize("index_bytes", [4, 12, 24, 96, 400])
def test_a_smaller_index_is_recreated_after_a_crash(index_bytes: int) -> None:
    """With a lower `segment.index.bytes` recovery omits entries: all records are readable, and the next append rolls."""
    env, expected = filled(t=source(1, index_interval_bytes=0))
    expected["t", 0] = source(1, index_interval_bytes=0, segment_index_bytes=index_bytes)
    directory = start(env, expected)
    assert directory.failures == []
    log = directory.logs["t", 0]
    assert log.active.offset_index.file.entries <= index_bytes // 8
    log.append_as_leader(batch(b"more"))
    assert len(log.segments) == 2
    assert read_all(log) == [*(b"%d" % number for number in range(COUNT)), b"more"]
    for offset in range(COUNT):
        assert read_all(log, offset)[0] == b"%d" % offset


def test_a_bug_in_the_loading_of_one_log_is_a_failure_of_that_one() -> None:
    """After any exception the other logs open, and the stop does not count as clean."""
    env, expected = filled(bad=source(1), good=source(2))

    def bug() -> None:
        raise ZeroDivisionError("a bug")

    fault = env.before("open", "/data/bad-0/*", bug)
    directory = start(env, expected)
    assert [(failure.topic, str(failure.error)) for failure in directory.failures] == [("bad", "a bug")]
    assert read_all(directory.logs["good", 0]) == [b"%d" % number for number in range(COUNT)]
    directory.close()
    fault.clear()
    again = start(env, expected)
    assert not again.was_clean
    assert len(read_all(again.logs["bad", 0])) == COUNT


def test_a_log_that_does_not_open_keeps_its_checkpoints() -> None:
    """Deleted records stay deleted and what was synced counts as synced, however often the start fails."""
    env, expected = filled(bad=source(1), good=source(2))
    directory = start(env, expected)
    for log in directory.logs.values():
        log.delete_records(20)
    directory.close()
    before = [offsets(env, name) for name in CHECKPOINTS]
    assert [found["bad", 0] for found in before] == [COUNT, 20, COUNT]
    fault = refuse(env, "bad")
    for _ in range(2):
        directory = start(env, expected)
        assert [(failure.topic, failure.partition) for failure in directory.failures] == [("bad", 0)]
        directory.checkpoint_files.write(directory.checkpoint_state())
        directory.close()
        assert [offsets(env, name) for name in CHECKPOINTS] == before
    fault.clear()
    log = start(env, expected).logs["bad", 0]
    assert (log.log_start_offset, log.recovery_point) == (20, COUNT)
    assert read_all(log, 20) == [b"%d" % number for number in range(20, COUNT)]


@pytest.mark.parametrize("is_running", [False, True], ids=["before it runs", "while it runs"])
def test_a_flush_of_a_deleted_log_leaves_the_next_one_of_its_name_alone(memory: MemoryEnv, is_running: bool) -> None:
    """A late flush of a deleted log must not overwrite the leader epochs of a new topic of the same name."""
    directory = start(memory, {})
    old = directory.create_log("t", 0, UUID(int=1), LogConfig())
    for epoch in (3, 7):
        old.become_leader(epoch)
        old.append_as_leader(batch(b"old"))
    plan = old.begin_flush()
    assert plan is not None

    def replace() -> None:
        directory.delete_log(old, 0)
        directory.take_away_left(directory.left, 0)
        new = directory.create_log("t", 0, UUID(int=2), LogConfig())
        new.become_leader(0)
        new.append_as_leader(batch(b"new"))
        new.flush()

    if is_running:
        plan._snapshots.append("/data/t-0/leader-epoch-checkpoint")
        memory.before("sync", "/data/t-0/leader-epoch-checkpoint", replace)
    else:
        replace()
    plan.run()
    assert memory.read_bytes("/data/t-0/leader-epoch-checkpoint").split() == [b"0", b"1", b"0", b"0"]


@pytest.mark.parametrize("is_writing", [False, True], ids=["in time", "while checkpoints are written"])
def test_checkpoints_of_a_deleted_log_are_not_those_of_the_next_one_of_its_name(is_writing: bool) -> None:
    """After a kill before the next checkpoint, the new log has all acknowledged records, from offset 0 on."""
    env, expected = filled(t=source(1), other=source(3))
    directory = start(env, expected)
    directory.logs["t", 0].delete_records(20)
    directory.logs["t", 0].flush()
    state = directory.checkpoint_state()
    if not is_writing:
        directory.checkpoint_files.write(state)
    directory.delete_log(directory.logs["t", 0], 0)
    directory.take_away_left(directory.left, 0)
    new = directory.create_log("t", 0, UUID(int=2), LogConfig())
    if is_writing:
        directory.checkpoint_files.write(state)
    assert not [name for name in CHECKPOINTS if ("t", 0) in offsets(env, name)]
    assert offsets(env, names.HIGH_WATERMARK_CHECKPOINT) == {("other", 0): COUNT}
    new.append_as_leader(batch(b"new"))
    directory.close(is_clean=False)
    expected["t", 0] = source(2)
    log = start(env, expected).logs["t", 0]
    assert (log.log_start_offset, read_all(log)) == (0, [b"new"])


def test_old_rot_outlives_a_start_that_fails() -> None:
    """The next recovery begins at the old recovery point, not at the first segment."""
    env, expected = filled(bad=source(1, segment_bytes=1000))
    directory = start(env, expected)
    log = directory.logs["bad", 0]
    directory.close()
    data = bytearray(env.read_bytes(log.segments[1].path))
    data[len(data) // 2] ^= 1
    env.write_atomically(log.segments[1].path, bytes(data))
    fault = refuse(env, "bad")
    start(env, expected).close()
    fault.clear()
    directory = start(env, expected)
    assert not directory.was_clean
    assert directory.logs["bad", 0].log_end_offset == COUNT


def test_the_mark_of_an_orderly_stop_does_not_come_back(memory: MemoryEnv) -> None:
    """A removed mark does not return, even if the start was aborted right after: later appends had no orderly stop."""
    memory.make_dirs("/data")
    memory.sync_dir("/")
    expected = {("t", 0): source(1)}
    fill(memory, expected)
    start(memory, expected).close()
    fault = memory.fail("sync_dir", "/data", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        start(memory, expected)
    assert fault.hits == 1
    memory = memory.copy()
    assert not start(memory, expected).was_clean
    memory.crash()
    assert not start(memory, expected).was_clean


def test_a_log_that_does_not_open_can_be_deleted() -> None:
    """It is deleted with its checkpoints: a new topic of the same name begins empty, and the next stop is clean again."""
    env, expected = filled(bad=source(1), good=source(2))
    directory = start(env, expected)
    directory.logs["bad", 0].delete_records(20)
    directory.close()
    fault = refuse(env, "bad")
    directory = start(env, expected)
    fault.clear()
    directory.delete_unopened("bad", 0)
    directory.take_away_left(directory.left, 0)
    assert directory.failures == []
    log = directory.create_log("bad", 0, UUID(int=3), LogConfig())
    log.append_as_leader(batch(b"new"))
    assert (log.log_start_offset, read_all(log)) == (0, [b"new"])
    directory.deletions.remove(directory.deletions.take_due())
    assert not [name for name in env.list_dir("/data") if name.endswith(names.DELETE_DIR_SUFFIX)]
    directory.close()
    expected["bad", 0] = source(3)
    directory = start(env, expected)
    assert directory.was_clean
    assert read_all(directory.logs["bad", 0]) == [b"new"]


@pytest.mark.parametrize("name", CHECKPOINTS[1:])
def test_checkpoints_that_were_written_in_part(name: str) -> None:
    """Files replaced by a partly failed write do not apply to the next log of the same name."""
    env, expected = filled(t=source(1), other=source(3))
    directory = start(env, expected)
    directory.checkpoint_files.write(directory.checkpoint_state())
    log = directory.logs["t", 0]
    log.delete_records(20)
    log.append_as_leader(batch(b"more"))
    log.recovery_point = log.log_end_offset
    env.fail("rename", f"/data/{name}", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        directory.checkpoint_files.write(directory.checkpoint_state())
    assert offsets(env, CHECKPOINTS[0])["t", 0] == COUNT + 1
    directory.delete_log(log, 0)
    directory.take_away_left(directory.left, 0)
    new = directory.create_log("t", 0, UUID(int=2), LogConfig())
    assert not [name for name in CHECKPOINTS if ("t", 0) in offsets(env, name)]
    new.append_as_leader(batch(b"new"))
    directory.checkpoint_files.write(directory.checkpoint_state())
    assert [("t", 0) in offsets(env, name) for name in CHECKPOINTS] == [True, False, True]
    directory.close(is_clean=False)
    expected["t", 0] = source(2)
    log = start(env, expected).logs["t", 0]
    assert (log.log_start_offset, read_all(log)) == (0, [b"new"])


def test_a_deleted_log_whose_directory_keeps_its_name(memory: MemoryEnv) -> None:
    """It keeps it until the metadata log has the deletion on disk, and the disk permits the rename. The next log of that name
    never has the old records.
    """
    directory = start(memory, {})
    old = directory.create_log("t", 0, UUID(int=1), LogConfig())
    old.append_as_leader(batch(b"old"))
    directory.delete_log(old, 7)
    directory.take_away_left(directory.left, 6)
    assert memory.is_dir("/data/t-0")
    memory.fail("rename", "/data/t-0", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        directory.take_away_left(directory.left, 7)
    assert read_all(old) == [b"old"]
    directory.take_away_left(directory.left, 7)
    new = directory.create_log("t", 0, UUID(int=2), LogConfig())
    assert (new.log_end_offset, read_all(new)) == (0, [])
    memory.clock.advance_ms(LogConfig().file_delete_delay_ms)
    directory.deletions.remove(directory.deletions.take_due())
    assert [name for name in memory.list_dir("/data") if name.startswith("t-0")] == ["t-0"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["keeps its name", "is gone"])
def test_the_directory_of_a_log_that_does_not_open(memory: MemoryEnv, is_gone: bool) -> None:
    """Even if a deleted log's directory stays, the next topic of its name starts at 0, now and after a crash."""
    expected = {("bad", 0): source(1), ("bad", 1): source(1)}
    fill(memory, expected)
    directory = start(memory, expected)
    for log in directory.logs.values():
        log.delete_records(20)
    directory.close()
    fault = refuse(memory, "bad")
    directory = start(memory, expected)
    fault.clear()
    directory.delete_unopened("bad", 0)
    if is_gone:
        memory.rename("/data/bad-0", "/elsewhere")
    else:
        memory.fail("rename", "/data/bad-0", errno.EIO, times=1)
        with pytest.raises(OSError, match="Input/output"):
            directory.take_away_left(directory.left, 0)
    assert directory.failures == []
    directory.take_away_left(directory.left, 0)
    for partition in (0, 1):
        log = directory.create_log("bad", partition, UUID(int=3), LogConfig())
        log.append_as_leader(batch(b"new"))
    directory.checkpoint_files.write(directory.checkpoint_state())
    directory.close(is_clean=False)
    directory = start(memory, dict.fromkeys(expected, source(3)))
    assert [(log.log_start_offset, read_all(log)) for log in directory.logs.values()] == 2 * [(0, [b"new"])]


def test_a_file_that_cannot_be_removed_does_not_keep_the_others(memory: MemoryEnv) -> None:
    """All other files of deleted logs are removed; the result names the one that failed, which can be retried."""
    directory = start(memory, {})
    for partition in range(4):
        directory.delete_log(directory.create_log("t", partition, UUID(int=1), LogConfig(file_delete_delay_ms=0)), 0)
    directory.take_away_left(directory.left, 0)
    due = directory.deletions.take_due()
    memory.fail("remove", f"{due[1]}*", errno.EIO, times=1)
    left = directory.deletions.remove(due)
    assert [(path, error.errno) for path, error in left.items()] == [(due[1], errno.EIO)]
    assert [path for path in due if memory.exists(path)] == [due[1]]
    directory.deletions.add(left)
    assert directory.deletions.remove(directory.deletions.take_due()) == {}
    assert not memory.exists(due[1])


class Overtaken(RealEnv):
    """An environment in which another caller always removes a file first."""

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove it twice."""
        os.unlink(path)
        super().remove(path, missing_ok=missing_ok)


def test_a_file_that_somebody_else_removes_is_gone(tmp_path: Path) -> None:
    """A file already removed is not an error."""
    directory = LogDirectory.open(Overtaken(), str(tmp_path / "data"), producer_expiration_ms=1)
    path = tmp_path / "data" / "00000000000000000000.index.deleted"
    path.touch()
    assert directory.deletions.remove([str(path)]) == {}
    assert not path.exists()
    directory.close(is_clean=False)
