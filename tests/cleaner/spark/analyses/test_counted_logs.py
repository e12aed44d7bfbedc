"""Counting by parts, in one process: the counts of the local tool, for any distribution of keys over parts and blocks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.cleaner.spark.analyses.count_tasks import LogCount
from diamant.cleaner.spark.analyses.counted_logs import _parts, count_logs
from diamant.cleaner.spark.source.filter_bounds import FilterBounds
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.partition_logs import find_partitions
from diamant.cleaner.spark.source.read_plan import plan_logs
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from tests.cleaner.log_history import History, histories
from tests.cleaner.spark.big_log import BATCHES, KEYS, RECORDS, SEGMENTS, write_big_log
from tests.cleaner.spark.one_process import OneProcess
from tests.effort import examples

LOCAL, CLUSTER = "local[6]", "spark://127.0.0.1:7077"


def counted(directory: Path | str, *, seed: int = 0, table_bytes: int = 1 << 20, master: str = LOCAL) -> list[LogCount]:
    paths = [str(directory)]
    context = OneProcess(seed)
    context.master = master
    context.defaultParallelism = 6  # As many parts.
    return count_logs(context, paths, find_partitions(paths), part_bytes=1, table_bytes=table_bytes)


@settings(max_examples=examples(100), deadline=None)
@given(st.tuples(histories(0), histories(1)), st.integers(0, 3), st.sampled_from([LOCAL, CLUSTER]))
def test_counts_are_those_of_the_local_tool(pair: tuple[History, History], seed: int, master: str) -> None:
    """Strategy: two partitions of any batches in one to many segments. Invariant: all counts, and the end, are the same."""
    env = RealEnv()
    with tempfile.TemporaryDirectory() as directory:
        for history in pair:
            history.write(env, directory)
        starts = {("t", history.partition): history.log_start_offset for history in pair}
        write_offset_checkpoint(env, f"{directory}/log-start-offset-checkpoint", starts)
        found = counted(directory, seed=seed, master=master)
        with open_log_directory(env, directory) as opened:
            [topic] = read_stats(env, opened)
    for mine, its in zip(found, topic.partitions, strict=True):
        assert mine.kinds == its.kinds
        if mine.log_end_offset is not None:
            assert max(mine.log_end_offset, its.log_start_offset) <= its.log_end_offset


def overwritten(segments: int) -> History:
    """4,000 keys in each segment, of which the next one repeats half, and deletes one."""
    history = History()
    for number in range(segments):
        for start in range(2_000 * number, 2_000 * number + 4_000, 500):
            history.batch(*((b"%d" % key, b"v") for key in range(start, start + 500)))
        history.batch((b"%d" % (2_000 * number + 7), None))
        history.roll()
    return history


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("table_bytes", [0, 1 << 20])
def test_keys_that_do_not_fit_a_table_are_put_together(
    tmp_path: Path, segments: int, table_bytes: int, master: str
) -> None:
    """A part outputs its keys whenever its table is full, and later records still supersede earlier ones."""
    overwritten(segments).write(RealEnv(), str(tmp_path))
    [found] = counted(tmp_path, seed=segments, table_bytes=table_bytes, master=master)
    records, keys = 4_001 * segments, 2_000 * (segments + 1)
    kinds = Kinds(records, live=keys - segments, tombstones=segments, superseded=records - keys)
    assert found == LogCount(kinds, records)


def test_keys_go_through_files_only_on_one_machine(tmp_path: Path) -> None:
    """The files are in a directory beside Spark's own, which is removed in the end. Executors of a cluster share no directory."""
    overwritten(3).write(RealEnv(), str(tmp_path / "log"))
    paths = [str(tmp_path / "log")]
    context = OneProcess()
    context._temp_dir = str(tmp_path / "scratch")

    def keys() -> int:
        [found] = count_logs(context, paths, find_partitions(paths), part_bytes=1)
        return found.kinds.distinct_keys

    with pytest.raises(FileNotFoundError, match="scratch"):
        keys()
    context.master = CLUSTER
    assert keys() == 8_000
    (tmp_path / "scratch").mkdir()
    context.master = LOCAL
    assert keys() == 8_000
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(("logs", "tasks"), [(1, [2, 2]), (2, [2]), (3, [3])])
def test_logs_that_keep_the_cores_at_work_are_not_cut(tmp_path: Path, logs: int, tasks: list[int]) -> None:
    """On two cores a single log is divided into two parts, whose keys two tasks put together. Of two or three logs each is one
    task, and outputs no keys.
    """
    for number in range(logs):
        history = History("t", number)
        for _ in range(3):
            history.batch("a=1", "b=1", "a=2")
            history.roll()
        history.write(RealEnv(), str(tmp_path))
    context, paths = OneProcess(), [str(tmp_path)]
    found = count_logs(context, paths, find_partitions(paths), part_bytes=1)
    assert context.tasks == tasks
    assert [(one.kinds.live, one.kinds.superseded) for one in found] == [(2, 7)] * logs


def test_adjacent_ranges_of_a_file_are_read_as_one(tmp_path: Path) -> None:
    """A log is cut finely, so that its parts are equal, but a part opens each of its files once."""
    write_big_log(tmp_path / "big-0")
    [log] = find_partitions([str(tmp_path)])
    options = SourceOptions((str(tmp_path),), (), include_control=True, split_bytes=1 << 17)
    [tasks] = plan_logs([log], options, FilterBounds(), [False])
    parts = _parts(0, log, tasks, log.size // 3 + 1, is_decided=False)
    ranges = [task.ranges[0] for part in parts for task in part.tasks]
    assert len(parts) == 3
    assert len(tasks) > 30
    assert len(ranges) == SEGMENTS + 2
    assert max(part.size for part in parts) - min(part.size for part in parts) < 1 << 18
    assert sum(one.end - one.start for one in ranges) == log.size
    [found] = counted(tmp_path)
    assert (found.kinds.records, found.kinds.live, found.kinds.superseded) == (
        RECORDS * BATCHES * SEGMENTS,
        KEYS,
        7_500,
    )


def test_damage_ends_the_count(tmp_path: Path) -> None:
    """The file and the position are named."""
    history = History().add("a=1 | b=1")
    history.segments[0][-1] ^= 1
    history.write(RealEnv(), str(tmp_path))
    with pytest.raises(CorruptLog, match=f"{0:020d}.log.*CRC"):
        counted(tmp_path)


def test_an_empty_log_has_no_end(tmp_path: Path) -> None:
    """It has no batch that could give it."""
    History().write(RealEnv(), str(tmp_path))
    assert counted(tmp_path) == [LogCount()]


def test_transactions_are_looked_for_where_there_are_some(tmp_path: Path) -> None:
    """Of logs without a producer snapshot only those with transactions are counted again, with the outcomes from markers."""
    plain, transactional = History("t", 0), History("t", 1)
    plain.batch("a=1", "a=2")
    transactional.batch("a=1", producer_id=7)
    transactional.marker(7, is_commit=True)
    transactional.batch("b=1", producer_id=7)
    transactional.marker(7, is_commit=False)
    transactional.batch("c=1", producer_id=7)
    for history in (plain, transactional):
        history.write(RealEnv(), str(tmp_path))
    context = OneProcess()
    paths = [str(tmp_path)]
    found = count_logs(context, paths, find_partitions(paths))
    assert [(one.kinds.records, one.kinds.live, one.kinds.aborted, one.kinds.undecided) for one in found] == [
        (2, 1, 0, 0),
        (3, 1, 1, 1),
    ]
    assert context.tasks == [2, 1]


def test_parts_of_a_log_are_about_the_same_size(tmp_path: Path) -> None:
    """Where segments differ in size, each is in the part in which its middle is; a part without any is left out."""
    history = History("t", 0)
    for size in (1, 10, 1, 1, 8, 1):
        history.batch(f"a={'v' * 1000 * size}")
        history.roll()
    history.write(RealEnv(), str(tmp_path))
    [log] = find_partitions([str(tmp_path)])
    options = SourceOptions((str(tmp_path),), (), include_control=True)
    [tasks] = plan_logs([log], options, FilterBounds(), [False])
    for count, expected in ((1, [6]), (2, [2, 4]), (4, [1, 1, 2, 2]), (22, [1, 1, 1, 1, 1, 1])):
        parts = _parts(0, log, tasks, log.size // count + 1, is_decided=False)
        assert [len(part.tasks) for part in parts] == expected
        assert [part.number for part in parts] == [*range(len(expected))]
        assert [task for part in parts for task in part.tasks] == list(tasks)
