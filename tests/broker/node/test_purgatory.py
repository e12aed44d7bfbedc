"""Waiting fetches are woken by their logs only, once per turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from diamant.broker.network.api import Answer
from diamant.broker.network.pending_answer import PendingAnswer
from diamant.broker.node.purgatory import Purgatory
from diamant.storage.log.log import Log
from tests.broker.settable_loop import SettableLoop


class CountingWaiter:
    """Completes after `enough` refreshes; its answer is their number."""

    def __init__(self, enough: int = 1) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answer: PendingAnswer | None = None
        self.refreshed: list[set[Log]] = []
        self._enough = enough

    def refresh(self, logs: Iterable[Log]) -> bool:
        self.refreshed.append(set(logs))
        return len(self.refreshed) >= self._enough

    def encode(self) -> bytes:
        return bytes([len(self.refreshed)])

    def expect(self, answer: Answer) -> None:
        """Make `future` receive the answer, as a connection does."""
        if isinstance(answer, PendingAnswer):
            self.answer = answer
            answer.taker = self._take
        else:
            self.future.set_result(cast(bytes, answer)[0])

    def _take(self, body: Any, error: BaseException | None) -> None:
        if error is None:
            self.future.set_result(body[0])
        else:
            self.future.set_exception(error)


def logs(count: int) -> list[Log]:
    """Stand-ins: the purgatory only compares them."""
    return [cast(Log, object()) for _ in range(count)]


@pytest.fixture
async def purgatory() -> Purgatory:
    """A purgatory in the test's loop."""
    return Purgatory(asyncio.get_running_loop())


def parked(purgatory: Purgatory, logs: list[Log], wait_ms: int = 60_000) -> CountingWaiter:
    """Return a waiter for these logs."""
    waiter = CountingWaiter()
    waiter.expect(purgatory.wait(waiter, logs, wait_ms))
    return waiter


async def test_appends_of_one_turn_cost_one_look_at_what_changed(purgatory: Purgatory) -> None:
    """Several wakes in one turn cause one refresh, with exactly the changed logs."""
    first, second, third = logs(3)
    waiter = parked(purgatory, [first, second, third])
    for log in (first, second, first):
        purgatory.wake(log)
    assert await waiter.future == 1
    assert waiter.refreshed == [{first, second}]
    await asyncio.sleep(0)
    assert len(purgatory) == 0


async def test_waits_that_end_together_share_a_timer() -> None:
    """Deadlines are rounded up by a 25th of the wait at most, never down."""
    loop = SettableLoop()
    purgatory = Purgatory(cast(asyncio.AbstractEventLoop, loop))
    waiters = []
    for _ in range(10):
        loop.now_s += 0.0004
        waiters.append(parked(purgatory, logs(1), 500))
    assert len(loop.pending) <= 2
    assert all(loop.now_s - 0.004 + 0.5 <= timer.when_s <= loop.now_s + 0.5 + 0.5 / 25 for timer in loop.pending)
    loop.pass_s(1)
    assert all(waiter.future.done() for waiter in waiters)


@pytest.mark.parametrize(
    ("wait_ms", "at_most_later_s"), [(1, 0.001), (25, 0.001), (250, 0.01), (60_000, 0.02), (2**31 - 1, 0.02)]
)
async def test_a_wait_is_little_longer_than_it_was_asked_for(wait_ms: int, at_most_later_s: float) -> None:
    """A wait is longer by at most a millisecond if it is short, by 20 ms if it is long."""
    loop = SettableLoop()
    loop.now_s += 0.0123
    parked(Purgatory(cast(asyncio.AbstractEventLoop, loop)), logs(1), wait_ms)
    (timer,) = loop.pending
    assert -1e-6 <= timer.when_s - loop.now_s - wait_ms / 1000 <= at_most_later_s + 1e-6


async def test_a_watch_that_waits_again_is_not_ended_by_its_last_wait() -> None:
    """Its deadline counts from the last wait's beginning."""
    loop = SettableLoop()
    purgatory = Purgatory(cast(asyncio.AbstractEventLoop, loop))
    watch = purgatory.watch()
    first, second = CountingWaiter(), CountingWaiter()
    first.expect(watch.wait(first, 500))
    watch.complete()
    loop.now_s += 0.25
    second.expect(watch.wait(second, 500))
    (timer,) = loop.pending
    assert timer.when_s >= loop.now_s + 0.5
    timer.run()
    assert second.future.done()


async def test_waits_that_end_early_leave_no_timer() -> None:
    """A client may request waits of weeks, each with another length, and disconnect at once."""
    loop = SettableLoop()
    purgatory = Purgatory(cast(asyncio.AbstractEventLoop, loop))
    for number in range(100):
        waiter = parked(purgatory, logs(1), 2**31 - 1 - number * 50_000_000)
        assert waiter.answer is not None
        waiter.answer.cancel()
    assert not loop.pending
    assert len(purgatory) == 0


async def test_a_fetch_that_cannot_be_answered_keeps_no_other_from_its_answer() -> None:
    """One fetch that fails delays no other, neither at a common deadline nor at a common wake."""

    class Broken(CountingWaiter):
        def encode(self) -> bytes:
            raise ValueError("no answer")

    for is_woken in (False, True):
        loop = SettableLoop()
        purgatory = Purgatory(cast(asyncio.AbstractEventLoop, loop))
        (log,) = logs(1)
        waiters = [Broken(), CountingWaiter(), Broken()]
        for waiter in waiters:
            waiter.expect(purgatory.wait(waiter, [log], 500))
        if is_woken:
            purgatory.wake(log)
        else:
            loop.pending[0].run()
        answers = await asyncio.gather(*(waiter.future for waiter in waiters), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ValueError, int, ValueError]


async def test_a_cancelled_waiter_is_forgotten(purgatory: Purgatory) -> None:
    """No state of a fetch remains when its connection is closed."""
    (log,) = logs(1)
    waiter = parked(purgatory, [log])
    purgatory.wake(log)
    assert waiter.answer is not None
    waiter.answer.cancel()
    assert len(purgatory) == 0
    assert not purgatory.is_watched(log)
    await asyncio.sleep(0)
    assert waiter.refreshed == []


async def test_a_refresh_that_fails_fails_its_own_fetch_only(purgatory: Purgatory) -> None:
    """The exception is set on the fetch's future; other waiters of the log are completed."""
    (log,) = logs(1)
    good, bad = CountingWaiter(), CountingWaiter()
    bad.refresh = lambda logs: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    for waiter in (bad, good):
        waiter.expect(purgatory.wait(waiter, [log], 60_000))
    purgatory.wake(log)
    assert await good.future == 1
    assert isinstance(bad.future.exception(), ZeroDivisionError)


async def test_close_completes_all_and_those_to_come(purgatory: Purgatory) -> None:
    """After the broker's stop no fetch waits."""
    early = parked(purgatory, logs(1))
    purgatory.close()
    late = parked(purgatory, logs(1))
    assert (await early.future, await late.future) == (0, 0)


async def test_a_watch_that_nobody_looks_at_is_reported_once(purgatory: Purgatory) -> None:
    """A session without its client costs one notification per log, and nothing from then on; when it is read again, it knows
    the changes, and is notified again.
    """
    first, second = logs(2)
    watch = purgatory.watch()
    watch.add(first)
    watch.add(second)
    purgatory.wake(first)
    await asyncio.sleep(0)
    assert not purgatory.is_watched(first)
    assert purgatory.is_watched(second)
    purgatory.wake(first)
    assert watch.take_dirty() == {first}
    assert watch.take_dirty() == set()
    assert purgatory.is_watched(first)
    purgatory.wake(first)
    assert watch.take_dirty() == {first}


async def test_a_watch_that_waits_is_told_every_time(purgatory: Purgatory) -> None:
    """A fetch of a session that needs several appends is notified of each."""
    (log,) = logs(1)
    watch = purgatory.watch()
    watch.add(log)
    waiter = CountingWaiter(enough=3)
    waiter.expect(watch.wait(waiter, 60_000))
    for _ in range(3):
        purgatory.wake(log)
        await asyncio.sleep(0)
    assert await waiter.future == 3
    watch.close()
    assert not purgatory.is_watched(log)


async def test_a_closed_watch_leaves_nothing(purgatory: Purgatory) -> None:
    """No log keeps a reference to it, notified or not."""
    first, second = logs(2)
    watch, other = purgatory.watch(), purgatory.watch()
    for log in (first, second):
        watch.add(log)
    other.add(second)
    purgatory.wake(first)
    watch.close()
    assert not purgatory.is_watched(first)
    assert purgatory.is_watched(second)
    assert watch.dirty == set()
