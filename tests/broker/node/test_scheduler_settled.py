"""Waiting until every job has done what is due, and timers of groups that are let run out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from diamant.broker.groups.membership.timers import Timers
from diamant.broker.node.scheduler import ScheduledTask, Scheduler
from diamant.storage.env.clock import SettableClock


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """A scheduler that runs, by a clock that stands."""
    found = Scheduler(SettableClock(1_000_000))
    found.start()
    yield found
    await found.stop()


async def test_every_job_looks_whatever_its_interval(scheduler: Scheduler) -> None:
    """Once, and its next time is an interval from now."""
    runs: list[str] = []

    async def run() -> None:
        runs.append("hourly")

    scheduler.every("hourly", 3_600_000, run)
    assert await scheduler.settled() == []
    assert runs == ["hourly"]
    assert not scheduler.is_due
    assert scheduler.jobs[0].due_ms() == 1_000_000 + 3_600_000


async def test_what_a_job_makes_due_is_waited_for(scheduler: Scheduler) -> None:
    """Also by a job that ran before it in the same pass."""
    left = [3]
    runs: list[int] = []

    async def follow() -> None:
        runs.append(left[0])
        left[0] -= 1

    scheduler.add(ScheduledTask("follower", lambda: 0 if 0 < left[0] < 3 else None, follow))

    async def begin() -> None:
        left[0] = 2

    scheduler.every("beginner", 3_600_000, begin)
    await scheduler.settled()
    assert runs == [2, 1]


async def test_a_job_that_fails_is_named_and_not_waited_for(scheduler: Scheduler) -> None:
    """It stays due, and the others have had their turn."""
    runs: list[str] = []

    async def fail() -> None:
        raise OSError("disk")

    async def work() -> None:
        runs.append("work")

    scheduler.add(ScheduledTask("fails", lambda: 0, fail))
    scheduler.every("works", 3_600_000, work)
    assert await scheduler.settled() == ["fails"]
    assert runs == ["work"]
    assert scheduler.is_due


async def test_several_may_wait(scheduler: Scheduler) -> None:
    """Each is told."""
    assert await asyncio.gather(*(scheduler.settled() for _ in range(3))) == [[], [], []]


async def test_a_stop_cancels_who_waits() -> None:
    """Before the start and after the stop there is nothing to wait for."""
    scheduler = Scheduler(SettableClock(0))
    with pytest.raises(asyncio.CancelledError):
        await scheduler.settled()
    scheduler.start()
    held = asyncio.Event()

    async def hold() -> None:
        await held.wait()

    scheduler.every("holds", 1000, hold)
    waiting = asyncio.ensure_future(scheduler.settled())
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(scheduler.stop())
    await asyncio.sleep(0)
    held.set()
    await stopping
    with pytest.raises(asyncio.CancelledError):
        await scheduler.settled()
    await asyncio.wait({waiting})
    assert waiting.cancelled() or waiting.result() == []


async def test_timers_run_out_when_they_are_advanced() -> None:
    """In the order of their deadlines; those with time left have less of it; what a callback sets counts from now."""
    timers = Timers(asyncio.get_running_loop())
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        timers.cancel("cancelled")
        timers.set("new", 1_000_000, lambda: fired.append("new"))

    timers.set("second", 60_000, lambda: fired.append("second"))
    timers.set("first", 30_000, first)
    timers.set("cancelled", 45_000, lambda: fired.append("cancelled"))
    timers.set("late", 600_000, lambda: fired.append("late"))
    assert 599_000 < (timers.last_ms or 0) <= 600_000
    timers.advance_ms(60_001)
    assert fired == ["first", "second"]
    assert 530_000 < (timers.remaining_ms("late") or 0) <= 540_000
    assert 990_000 < (timers.remaining_ms("new") or 0) <= 1_000_000
    timers.close()
    assert timers.last_ms is None
