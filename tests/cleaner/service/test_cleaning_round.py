"""Swaps of a round's outputs let the loop serve other tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan
from diamant.cleaner.rules.result import CleanResult
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.service.rounds import look_at_segments, swap_into
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import MAX_SCANNED_BYTES, SOURCES_PER_TURN
from diamant.storage.segments.segment import Segment
from tests.cleaner.cleaner_log import START_MS, CleanerLog
from tests.memory_env import MemoryEnv

SEGMENTS = 200
FILES_PER_SOURCE = 3


@pytest.fixture
def log() -> CleanerLog:
    """Many small segments that one output will replace."""
    log = CleanerLog(index_interval_bytes=100)
    for number in range(SEGMENTS):
        log.data(f"key-{number % 20}", producer=1)
        log.roll()
    log.log.flush()
    return log


@pytest.fixture
def blocking() -> Iterator[ThreadPoolExecutor]:
    """Threads for disk I/O."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def run(log: CleanerLog, blocking: ThreadPoolExecutor) -> CleanResult:
    runner, plan = InlineRunner(log.env), log.plan(first_dirty=0)
    try:
        swap = swap_into(log.log, plan, runner, check_done=lambda: None, blocking=blocking)
        return await runner.run(plan, on_output=swap)
    finally:
        await runner.close()


async def test_a_large_swap_leaves_the_loop_its_turns(log: CleanerLog, blocking: ThreadPoolExecutor) -> None:
    """Between two turns of the loop no more than a few files are renamed, however many sources a group has."""
    env = log.env
    assert isinstance(env, MemoryEnv)
    in_turn: list[int] = [0]
    round_ = asyncio.create_task(run(log, blocking))
    seen_exchanging = False

    def count() -> None:
        in_turn[-1] += log.log.is_exchanging

    env.before_change = count
    while not round_.done():
        in_turn.append(0)
        seen_exchanging = seen_exchanging or log.log.is_exchanging
        await asyncio.sleep(0)
    await round_
    assert seen_exchanging
    assert len(log.log.segments) == 2
    # Each source has its files, a snapshot, and no delay before they are removed; the new segment has a few of its own.
    assert 0 < max(in_turn) <= 2 * SOURCES_PER_TURN * (FILES_PER_SOURCE + 1) + 8
    assert sum(in_turn) > SEGMENTS * FILES_PER_SOURCE


async def test_a_round_that_is_cancelled_in_a_swap_ends_it(log: CleanerLog, blocking: ThreadPoolExecutor) -> None:
    """No exchange is left unfinished: the log can be cleaned again, and has the new segment under its own name."""
    round_ = asyncio.create_task(run(log, blocking))
    while not log.log.is_exchanging:
        await asyncio.sleep(0)
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    while log.log.is_exchanging:
        await asyncio.sleep(0)
    assert log.keys() == [f"key-{number % 20}" for number in range(SEGMENTS - 20, SEGMENTS)]
    assert not [name for name in log.files() if name.endswith((".swap", ".cleaned"))]
    await run(log, blocking)
    assert len(log.keys()) == 20


@pytest.mark.parametrize(("index_interval_bytes", "is_scanned_in_loop"), [(100, True), (2**31 - 1, False)])
async def test_a_segment_with_a_coarse_index_is_not_scanned_in_the_loop(
    index_interval_bytes: int, is_scanned_in_loop: bool, blocking: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment is opened in the loop if its index leaves little to scan, otherwise in a thread."""
    log = CleanerLog(index_interval_bytes=index_interval_bytes)
    for number in range(40):
        log.data(f"key-{number}={'x' * 2000}")
    log.roll()
    log.log.flush()
    next_offset = Segment.next_offset
    scans: list[tuple[bool, int]] = []

    def watched(segment: Segment) -> int:
        is_in_loop = threading.current_thread() is threading.main_thread()
        scans.append((is_in_loop, segment.size - segment.offset_index.last_entry[1]))
        return next_offset(segment)

    monkeypatch.setattr(Segment, "next_offset", watched)
    await run(log, blocking)
    [(is_in_loop, scanned_bytes)] = scans
    assert is_in_loop is is_scanned_in_loop is (scanned_bytes <= MAX_SCANNED_BYTES)
    assert log.keys() == [f"key-{number}" for number in range(40)]


def test_a_plan_is_the_same_from_what_was_looked_up_before(log: CleanerLog) -> None:
    """Segments that a thread has read are used as they are; the ones it skipped are read for the plan."""
    log.write("t2: a | abort 2 | roll")
    known = look_at_segments(log.env, list(log.log.segments))
    assert list(known) == log.log.segments[:-1]
    end = log.log.active.base_offset
    expected = make_plan(log.log, 0, end, START_MS, CleanerSettings())
    assert make_plan(log.log, 0, end, START_MS, CleanerSettings(), known) == expected
    del known[log.log.segments[3]]
    assert make_plan(log.log, 0, end, START_MS, CleanerSettings(), known) == expected


def test_a_segment_that_retention_removes_is_passed_over(log: CleanerLog) -> None:
    """Its files are gone when the thread reads it; the others are read nevertheless."""
    segments = list(log.log.segments)
    delete_oldest(log.log, 2)
    assert list(look_at_segments(log.env, segments)) == segments[2:-1]
