"""Jobs by the clock, which the tests move."""

from __future__ import annotations

import asyncio

import pytest

from diamant.broker.node.producer_ids import BLOCK_SIZE, ProducerIds
from diamant.broker.node.scheduler import ScheduledTask, Scheduler
from diamant.storage.env.clock import SettableClock
from tests.waiting import wait_until


async def test_a_periodic_job_follows_the_clock() -> None:
    """Moving the clock past the interval runs the job at once, and once however far the clock has moved."""
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


async def test_a_job_that_fails_does_not_stop_the_others() -> None:
    """The failure is logged, the other jobs go on."""
    clock = SettableClock(0)
    scheduler = Scheduler(clock)
    runs: list[str] = []

    async def fail() -> None:
        runs.append("fail")
        raise OSError("disk")

    async def work() -> None:
        runs.append("work")

    scheduler.every("fails", 10, fail)
    scheduler.every("works", 10, work)
    scheduler.start()
    clock.advance_ms(10)
    await wait_until(lambda: len(runs) == 2)
    await scheduler.stop()
    assert runs == ["fail", "work"]


async def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until the job has run: a full disk is one line, not one for each try. Only what is not the disk's has a traceback."""
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
    """A job that was not due and becomes due is run when the scheduler is told to look."""
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
    """A block of ids is on disk before its first id leaves; concurrent takers share one block."""
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
