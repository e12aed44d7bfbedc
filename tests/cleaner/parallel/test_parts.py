"""Divided rounds: the work of processes, and failed parts. tests/cleaner/engines compares the bytes (`in parts`)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import dirty_start, map_dirty_range
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.parallel import parallel_engine
from diamant.cleaner.parallel.cuts import shares_of
from diamant.cleaner.parallel.groups import GroupRewriters, costliest_first
from diamant.cleaner.parallel.shares import map_shares
from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleaningAborted, OutputSegment
from diamant.cleaner.segments.row_records import RowRecords
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import File, RealEnv
from tests.cleaner.engines.engines import copied
from tests.cleaner.facts.segment_history import NOW_MS, SegmentHistory
from tests.memory_env import MemoryEnv

SEGMENTS = 12


class ParentsEnv(RealEnv):
    """A file system on which children cannot `open` files."""

    def __init__(self) -> None:
        super().__init__(SettableClock(NOW_MS))
        self._pid = os.getpid()

    def open(self, path: str, read_only: bool = False, **options: Any) -> File:
        """Open a file; OSError in a child."""
        if os.getpid() != self._pid:
            raise OSError("not for a child")
        return super().open(path, read_only=read_only, **options)


@pytest.fixture
def history() -> SegmentHistory:
    """Closed segments of which most keys are overwritten."""
    history = SegmentHistory()
    for number in range(SEGMENTS * 10):
        keys = [b"key-%d" % (number * 7 + index * 3 & 63) for index in range(3)]
        history.batch([(key, b"value-%d" % number) for key in keys])
        if number % 10 == 9:
            history.roll()
    return history


def plan_of(history: SegmentHistory, tmp_path: Path, **fields: Any) -> CleanPlan:
    """Return a plan over real files, with an output for each segment."""
    return copied(*history.stored(segment_bytes=1, **fields), tmp_path / "t-0")


def work_of(plan: CleanPlan, charged: list[int]) -> RoundWork:
    """Return the work of a round that records the throttled sizes, chunk by chunk."""
    return RoundWork(
        RealEnv(SettableClock(NOW_MS)), plan, throttle=charged.append, limits=EngineLimits(read_bytes=1000)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [3, 9])
def test_shares_are_mapped_by_children(history: SegmentHistory, tmp_path: Path, mode: str, count: int) -> None:
    """Their keys and statistics are added, those of many after a merge, and their reads are throttled at once."""
    plan, charged = plan_of(history, tmp_path, mode=mode), list[int]()
    work = work_of(plan, charged)
    key_map = CompiledMap(work, RowRecords(work.limits))
    map_dirty_range(
        work,
        key_map,
        add=lambda work, key_map, start: map_shares(work, key_map, shares_of(work.env, plan, start, count, 1 << 20)),
    )
    alone = work_of(plan, [])
    expected = CompiledMap(alone, RowRecords(work.limits))
    map_dirty_range(alone, expected)
    assert key_map.size == expected.size == 64
    assert work.stats == alone.stats
    assert sum(charged) == work.stats.map_bytes_read
    assert sum(size > 1000 for size in charged) == count - 1
    assert key_map.mapped().notes_before == expected.mapped().notes_before
    assert (key_map.latest or key_map.offsets.latest()).window(0, 1 << 40).tolist() == (
        expected.latest or expected.offsets.latest()
    ).window(0, 1 << 40).tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [2, 3, 9])
def test_pieces_are_mapped_by_whoever_is_ready(tmp_path: Path, mode: str, count: int) -> None:
    """The map, its notes and the statistics are those of one process, whoever takes which piece."""
    history = SegmentHistory()
    for number in range(400):
        history.batch([(b"key-%d" % (number * 7 & 63), b"value-%d" % number)])
        if number % 4 == 3:
            history.roll()
    plan = plan_of(history, tmp_path, mode=mode)
    alone = work_of(plan, [])
    expected = CompiledMap(alone, RowRecords(alone.limits))
    map_dirty_range(alone, expected)
    for _ in range(3):
        work = work_of(plan, [])
        shares = shares_of(work.env, plan, dirty_start(work.env, plan), count, 1)
        assert len(shares.pieces) > count
        key_map = CompiledMap(work, RowRecords(work.limits))
        map_dirty_range(
            work, key_map, add=lambda work, key_map, start, shares=shares: map_shares(work, key_map, shares)
        )
        assert work.stats == alone.stats
        assert key_map.mapped()._replace(notes=b"") == expected.mapped()._replace(notes=b"")
        assert key_map.mapped().notes == expected.mapped().notes
        assert (key_map.latest or key_map.offsets.latest()).window(0, 1 << 40).tolist() == list(range(336, 400))


@pytest.mark.parametrize("entries", [40, 63, 64, 65, 70])
def test_a_map_that_might_be_full_is_filled_by_one_process(
    history: SegmentHistory, tmp_path: Path, entries: int
) -> None:
    """One process fills the map, which ends at the same offset as without shares."""
    plan = plan_of(history, tmp_path, mode=KAFKA, map_max_entries=entries)
    found = parallel_engine.engine_for(3)(RealEnv(SettableClock(NOW_MS)), plan)
    remove_cleaned(plan)
    expected = parallel_engine.engine_for(1)(RealEnv(SettableClock(NOW_MS)), plan)
    assert found.end_offset == expected.end_offset
    assert found.outputs == expected.outputs


def test_groups_are_rewritten_by_several_processes(history: SegmentHistory, tmp_path: Path) -> None:
    """Each calls `on_written` for its outputs, which are yielded in order."""
    plan = plan_of(history, tmp_path)
    work = work_of(plan, [])
    key_map = CompiledMap(work, RowRecords(work.limits))
    map_dirty_range(work, key_map)
    survivors = MapSurvivors(plan, key_map)
    pids = tmp_path / "pids"

    def tell(output: OutputSegment) -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def new_rewriter(work: RoundWork) -> CompiledRewriter:
        return CompiledRewriter(work, RowRecords(work.limits), survivors)

    groups = [(segment,) for segment in plan.segments]
    outputs = [output.base_offset for output in GroupRewriters(work, survivors, new_rewriter, tell, 3).outputs(groups)]
    assert outputs == [segment.base_offset for segment in plan.segments]
    assert len(pids.read_text().split()) == SEGMENTS
    assert work.stats.bytes_read == sum(segment.size for segment in plan.segments)


def test_groups_of_which_most_stays_come_first() -> None:
    """Within each window, counted from the end, so that few outputs wait for others."""
    assert costliest_first([1, 5, 3, 2, 4, 9], 6) == [5, 1, 4, 2, 3, 0]
    assert costliest_first([1, 5, 3, 2, 4, 9, 9], 3) == [0, 1, 2, 3, 5, 6, 4]
    assert costliest_first([], 8) == []


def test_kept_records_are_counted_by_group(history: SegmentHistory, tmp_path: Path) -> None:
    """Exactly once the kept offsets are known; before, it is an upper bound."""
    plan = plan_of(history, tmp_path)
    work = work_of(plan, [])
    key_map = CompiledMap(work, RowRecords(work.limits))
    map_dirty_range(work, key_map)
    survivors = MapSurvivors(plan, key_map)
    first, last = plan.segments[0], plan.segments[-1]
    assert survivors.staying_in(first, first) == first.next_base_offset
    survivors.go_to(first)
    counts = [survivors.staying_in(segment, segment) for segment in plan.segments]
    assert sum(counts) == survivors.staying_in(first, last) == 64
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("processes", [3, 9])
@pytest.mark.parametrize("first_dirty", [0, 37, 180])
def test_this_process_does_the_work_of_failed_children(
    history: SegmentHistory, tmp_path: Path, first_dirty: int, processes: int
) -> None:
    """When children fail, for whatever reason, this process does their work."""
    plan = plan_of(history, tmp_path, first_dirty_offset=first_dirty)
    expected = parallel_engine.engine_for(1)(RealEnv(SettableClock(NOW_MS)), plan)
    files = remove_cleaned(plan)
    found = parallel_engine.engine_for(processes)(ParentsEnv(), plan)
    assert found.outputs == expected.outputs
    assert remove_cleaned(plan) == files
    times = {"start_s": 0.0, "map_complete_s": 0.0, "end_s": 0.0}
    assert replace(found.stats, **times) == replace(expected.stats, **times)


def test_a_round_that_is_stopped_leaves_no_files(history: SegmentHistory, tmp_path: Path) -> None:
    """Neither the round's own files nor those of its children stay."""
    plan = plan_of(history, tmp_path)

    def check_done() -> None:
        if list(Path(plan.directory).glob(f"*{names.CLEANED_SUFFIX}")):
            raise CleaningAborted("stop")

    with pytest.raises(CleaningAborted):
        parallel_engine.engine_for(3)(RealEnv(SettableClock(NOW_MS)), plan, check_done=check_done)
    assert remove_cleaned(plan) == {}


def test_small_and_throttled_rounds_are_not_divided(history: SegmentHistory, tmp_path: Path) -> None:
    """Nor are rounds of plans with one CPU, or over files in memory."""
    plan = plan_of(history, tmp_path, mode=PROMPT)
    large = replace(plan, segments=(replace(plan.segments[0], size=parallel_engine.WORTH_BYTES),), threads=2)
    cores = len(os.sched_getaffinity(0))
    env = RealEnv(SettableClock(NOW_MS))
    assert parallel_engine.processes_for(env, large) == min(2, cores)
    assert parallel_engine.processes_for(MemoryEnv(SettableClock(NOW_MS)), large) == 1
    assert parallel_engine.processes_for(env, replace(large, threads=1)) == 1
    assert parallel_engine.processes_for(env, replace(large, io_max_bytes_per_second=1e9)) == 1
    assert parallel_engine.processes_for(env, replace(plan, threads=2)) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to processors")
def test_on_one_processor_a_round_is_not_divided(history: SegmentHistory, tmp_path: Path) -> None:
    """The CPUs available to this process count (taskset, cpusets of containers), not those of the machine."""
    plan = plan_of(history, tmp_path)
    large = replace(plan, segments=(replace(plan.segments[0], size=parallel_engine.WORTH_BYTES),), threads=8)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert parallel_engine.processes_for(RealEnv(SettableClock(NOW_MS)), large) == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 9])
def test_a_round_without_memory_for_children_is_done_by_one_process(tmp_path: Path, processes: int) -> None:
    """For a lack of memory at any point, the bytes are the same, or the round raises MemoryError."""
    history = SegmentHistory()
    for number in range(40):
        history.batch([(b"key-%d" % (number * 500 + index & 4095), b"value") for index in range(1000)])
        if number % 4 == 3:
            history.roll()
    plan = plan_of(history, tmp_path)
    expected = parallel_engine.engine_for(1)(RealEnv(SettableClock(NOW_MS)), plan)
    files = remove_cleaned(plan)
    code = (
        "import resource, sys; from diamant.cleaner.parallel.parallel_engine import engine_for;"
        "from diamant.cleaner.rules.plan import CleanPlan; from diamant.storage.env.env import RealEnv;"
        "from diamant.cleaner.runners.worker import set_memory_limit; from pathlib import Path;"
        "used = int(Path('/proc/self/statm').read_text().split()[5]) * 4096; set_memory_limit(used + int(sys.argv[2]));"
        "print(engine_for(int(sys.argv[1]))(RealEnv(), CleanPlan.from_json(sys.stdin.read())).end_offset)"
    )
    seen = set()
    for room in (1 << 20, 8 << 20, 32 << 20, 1 << 30):
        done = subprocess.run(
            [sys.executable, "-c", code, str(processes), str(room)], input=plan.to_json(), capture_output=True, text=True
        )  # fmt: skip
        seen.add(done.returncode)
        if done.returncode:
            assert "MemoryError" in done.stderr or "Cannot allocate memory" in done.stderr
            # What was handed over before stays.
            assert remove_cleaned(plan).items() <= files.items()
        else:
            assert int(done.stdout) == expected.end_offset
            assert remove_cleaned(plan) == files
    assert seen == {0, 1}


def remove_cleaned(plan: CleanPlan) -> dict[str, bytes]:
    """Return the files that a round has written, and remove them."""
    found = {}
    for path in Path(plan.directory).glob(f"*{names.CLEANED_SUFFIX}"):
        found[path.name] = path.read_bytes()
        path.unlink()
    return found
