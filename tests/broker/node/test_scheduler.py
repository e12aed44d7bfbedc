"""Jobs by the clock, which the tests move, and waits until all due work is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from diamant.broker.groups.membership.timers import Timers
from diamant.broker.node.producer_ids import BLOCK_SIZE, ProducerIds
from diamant.broker.node.scheduler import ScheduledTask, Scheduler
from diamant.storage.env.clocks import SettableClock
from tests.waiting import PATIENCE_S, wait_until


async def test_a_periodic_job_follows_the_clock() -> None:
    """Moving the clock past the interval runs the job at once, and only once for any distance."""
    clock = SettableClock(1_000_000)
    scheduler = Scheduler(clock)
    runs: list[int] = []

    async def run() -> None:
        runs.append(clock.now_ms())

    scheduler.every("job", 60_000, run, initial_delay_ms=30_000)
    scheduler.start()
    clock.advance_ms(29_999)
    await asyncio.sleep(0)
    assert runs == []
    clock.advance_ms(1)
    await wait_until(lambda: len(runs) == 1)
    clock.advance_ms(600_000)
    await wait_until(lambda: len(runs) == 2)
    await scheduler.stop()
    assert runs == [1_030_000, 1_630_000]


async def test_a_thread_may_add_a_job() -> None:
    """A job that a thread adds runs as soon as it is due. In debug mode, the loop refuses calls that only its thread may make."""
    asyncio.get_running_loop().set_debug(True)
    scheduler = Scheduler(SettableClock(0))
    scheduler.start()
    await asyncio.sleep(0)  # now it waits for a job
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()

    await asyncio.to_thread(scheduler.add, ScheduledTask("job", lambda: None if ran.is_set() else 0, run))
    await asyncio.wait_for(ran.wait(), PATIENCE_S)
    await scheduler.stop()


async def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until the job succeeds, a full disk is one line, not one per retry. Only errors other than OSError have a traceback."""
    clock = SettableClock(0)
    scheduler = Scheduler(clock)
    outcomes: list[Exception | None] = [OSError("full"), OSError("full"), None, OSError("full"), ValueError("bug")]
    count = 0

    async def run() -> None:
        nonlocal count
        count += 1
        error = outcomes[count - 1]
        if error is not None:
            raise error

    scheduler.every("job", 10, run)
    scheduler.start()
    for number in range(1, len(outcomes) + 1):
        clock.advance_ms(10)
        scheduler.poke()
        await wait_until(lambda number=number: count == number)  # type: ignore[misc]
    await scheduler.stop()
    assert [record.getMessage() for record in caplog.records] == 2 * ["job failed: full"] + ["job failed: bug"]
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]


async def test_poke_brings_a_new_due_time_into_effect() -> None:
    """A job that becomes due runs after a poke."""
    scheduler = Scheduler(SettableClock(0))
    due: list[int] = []
    done = asyncio.Event()

    async def run() -> None:
        due.clear()
        done.set()

    scheduler.add(ScheduledTask("job", lambda: due[0] if due else None, run))
    scheduler.start()
    await asyncio.sleep(0)
    due.append(0)
    scheduler.poke()
    async with asyncio.timeout(60):
        await done.wait()
    await scheduler.stop()


async def test_producer_ids_are_recorded_before_they_are_given() -> None:
    """A block of ids is on disk before its first id is given; concurrent callers share one block."""
    committed: list[int] = []

    async def commit(end: int) -> None:
        await asyncio.sleep(0)
        committed.append(end)

    ids = ProducerIds(lambda: committed[-1] if committed else 0, commit)
    assert ids.take() is None
    first = await asyncio.gather(*(ids.take_slowly() for _ in range(10)))
    assert sorted(first) == list(range(10))
    assert committed == [BLOCK_SIZE]
    rest = [ids.take() for _ in range(BLOCK_SIZE - 10)]
    assert rest[-1] == BLOCK_SIZE - 1
    assert ids.take() is None
    assert await ids.take_slowly() == BLOCK_SIZE


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """A running scheduler with a frozen clock."""
    found = Scheduler(SettableClock(1_000_000))
    found.start()
    yield found
    await found.stop()


async def test_every_job_looks_whatever_its_interval(scheduler: Scheduler) -> None:
    """Every job runs once, and its next time is an interval from now."""
    runs: list[str] = []

    async def run() -> None:
        runs.append("hourly")

    scheduler.every("hourly", 3_600_000, run)
    assert await scheduler.settled() == []
    assert runs == ["hourly"]
    assert not scheduler.is_due
    assert scheduler.jobs[0].due_ms() == 1_000_000 + 3_600_000


async def test_a_job_made_due_by_another_is_waited_for(scheduler: Scheduler) -> None:
    """The pass waits for a job made due by another, also for one that ran earlier in the same pass."""
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
    """A failed job stays due, and the others have run."""
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
    """Each gets the result."""
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
    """Timers end in the order of their deadlines; the others get closer; timers set by a callback count from now."""
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
