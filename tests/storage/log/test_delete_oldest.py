"""Retention on a failing disk: removed segments do not return, and segments that could not be removed stay complete."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import pytest

from diamant.storage import names
from diamant.storage.directory.log_directory import LogDirectory, PartitionSource
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import replace_segments
from diamant.storage.segments.log_config import LogConfig
from tests.memory_env import MemoryEnv
from tests.storage.cleaned import bases_of, is_even, text, write_cleaned
from tests.storage.logs import batch, make_log, read_all


def started(env: Env, path: str) -> LogDirectory:
    """Return a directory with the partition `t-0`."""
    directory = LogDirectory.open(env, path, producer_expiration_ms=86_400_000)
    directory.load_logs({("t", 0): PartitionSource(UUID(int=1), LogConfig())}, threads=1)
    return directory


def filled(log: Log) -> Log:
    """Five segments of ten records, all flushed."""
    for number in range(50):
        if number and number % 10 == 0:
            log.roll()
        log.append_as_leader(batch(b"%d" % number))
    log.flush()
    return log


@pytest.mark.parametrize("away", [0, 1, 2])
def test_a_segment_whose_file_is_gone_does_not_keep_the_others(env: RealEnv, tmp_path: Path, away: int) -> None:
    """A missing file counts as removed; the log start advances, and removed segments do not return after a restart."""
    directory = started(env, str(tmp_path))
    log = filled(directory.logs["t", 0])
    env.rename(log.segments[away].path, f"{tmp_path}/moved-away")
    assert delete_oldest(log, 3) > 0
    assert (log.log_start_offset, bases_of(log)) == (30, [30, 40])
    left = {name for name in env.list_dir(log.path) if name.endswith((names.LOG_SUFFIX, names.INDEX_SUFFIX))}
    assert {names.offset_of(name) for name in left} == {30, 40}
    log.flush()
    directory.close()
    directory = started(env, str(tmp_path))
    log = directory.logs["t", 0]
    assert (log.log_start_offset, bases_of(log)) == (30, [30, 40])
    assert read_all(log, 30) == text(range(30, 50))
    directory.close()


def test_snapshots_of_removed_segments_go_with_them(env: RealEnv, tmp_path: Path) -> None:
    """Those of the segments that stay are kept, also in memory."""
    directory = started(env, str(tmp_path))
    log = filled(directory.logs["t", 0])
    assert delete_oldest(log, 3) > 0
    left = {names.offset_of(name) for name in env.list_dir(log.path) if name.endswith(names.SNAPSHOT_SUFFIX)}
    assert (left, set(log.producers.snapshots.offsets)) == ({30, 40}, {30, 40})
    directory.close()


def test_a_segment_that_cannot_be_renamed_stays_in_the_log(memory: MemoryEnv) -> None:
    """Earlier segments are removed; it and later ones stay readable, even after a restart, until the next attempt."""
    directory = started(memory, "/data")
    log = filled(directory.logs["t", 0])
    fault = memory.fail("rename", f"*/{10:020d}.log", errno.EROFS, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            delete_oldest(log, 3 - fault.hits)
        assert (log.log_start_offset, bases_of(log)) == (10, [10, 20, 30, 40])
        assert read_all(log, 10) == text(range(10, 50))
        assert not any(segment.is_deleted for segment in log.segments)
    directory.close()
    directory = started(memory, "/data")
    log = directory.logs["t", 0]
    assert (log.log_start_offset, read_all(log, 10)) == (10, text(range(10, 50)))
    delete_oldest(log, 2)
    assert (log.log_start_offset, bases_of(log), read_all(log, 30)) == (30, [30, 40], text(range(30, 50)))


@pytest.mark.parametrize("suffix", [names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX])
def test_an_index_that_cannot_be_renamed(memory: MemoryEnv, suffix: str) -> None:
    """Its segment counts as removed, since it has no records left; the next start removes the index."""
    directory = started(memory, "/data")
    log = filled(directory.logs["t", 0])
    stuck = f"{0:020d}{suffix}"
    memory.fail("rename", f"*/{stuck}", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        delete_oldest(log, 2)
    # The next one would have had its turn after it.
    assert (log.log_start_offset, bases_of(log)) == (10, [10, 20, 30, 40])
    assert stuck in memory.list_dir(log.path)
    directory.close()
    directory = started(memory, "/data")
    log = directory.logs["t", 0]
    assert (log.log_start_offset, read_all(log, 10)) == (10, text(range(10, 50)))
    assert stuck not in memory.list_dir(log.path)


def test_a_full_disk_keeps_no_segment(memory: MemoryEnv) -> None:
    """Removing a segment writes nothing, not even buffered index entries."""
    log = filled(started(memory, "/data").logs["t", 0])
    memory.fail("append", "*index*", errno.ENOSPC)
    log.segments[0].offset_index.append(5, 100)
    delete_oldest(log, 3)
    assert bases_of(log) == [30, 40]


def test_a_source_of_a_clean_whose_file_is_gone(env: RealEnv, tmp_path: Path) -> None:
    """A missing source does not matter: the swap completes, and the log accepts appends."""
    log = filled(make_log(env, tmp_path, index_interval_bytes=100))
    bases = bases_of(log)[:3]
    write_cleaned(log, bases, is_even)
    env.rename(log.segments[1].path, f"{tmp_path}/moved-away")
    replace_segments(log, 0, bases)
    assert log.write_failure is None
    assert read_all(log) == text([*range(0, 30, 2), *range(30, 50)])


def test_a_full_disk_on_which_everything_is_due(memory: MemoryEnv) -> None:
    """The active segment stays, since no new one can be created; earlier ones make room, and the next check removes it."""
    log = filled(started(memory, "/data").logs["t", 0])
    total, free = memory.disk_usage("/")
    memory.capacity_bytes = total - free
    with pytest.raises(OSError, match="No space"):
        delete_oldest(log, 5)
    assert (log.log_start_offset, bases_of(log), read_all(log, 40)) == (40, [40], text(range(40, 50)))
    memory.capacity_bytes = None
    delete_oldest(log, 1)
    assert (log.log_start_offset, bases_of(log)) == (50, [50])


def test_a_flush_passes_over_nothing_that_stays(memory: MemoryEnv) -> None:
    """A flush skips a segment that is being removed; if the removal fails, the segment does not count as synced."""
    log = started(memory, "/data").logs["t", 0]
    for number in range(20):
        if number == 10:
            log.roll()
        log.append_as_leader(batch(b"%d" % number))
    plan = log.begin_flush()
    assert plan is not None
    memory.before("rename", "*.deleted", plan.run)
    memory.fail("rename", "*.deleted", errno.EROFS, times=1)
    with pytest.raises(OSError, match="Read-only"):
        delete_oldest(log, 1)
    with pytest.raises(OSError, match="was not synced"):
        log.complete_flush(plan)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 20
