"""Timers of members: few timers of the loop, however many heartbeats arrive."""

from __future__ import annotations

import asyncio
from typing import Any

from diamant.broker.groups.membership.timers import Timers
from tests.broker.settable_loop import SettableLoop


def make() -> tuple[SettableLoop, Timers, list[Any]]:
    loop = SettableLoop(now_s=100.0)
    return loop, Timers(loop), []


def test_a_timer_calls_back_once() -> None:
    """A timer calls back once at its deadline, and is then removed."""
    loop, timers, fired = make()
    timers.set("a", 1000, lambda: fired.append("a"))
    loop.pass_s(0.999)
    assert fired == []
    assert timers.remaining_ms("a") is not None
    loop.pass_s(0.001)
    assert fired == ["a"]
    loop.pass_s(10)
    assert fired == ["a"]
    assert len(timers) == 0
    assert timers.remaining_ms("a") is None


def test_heartbeats_do_not_make_timers() -> None:
    """Moving a deadline forward a thousand times costs one timer of the loop per timeout, and fires at the last deadline."""
    loop, timers, fired = make()
    for _ in range(1000):
        timers.set("a", 10_000, lambda: fired.append(loop.now_s))
        loop.pass_s(0.1)
    assert loop.made <= 12
    last_s = loop.now_s - 0.1
    loop.pass_s(20)
    assert fired == [last_s + 10]


def test_a_shorter_time_counts_at_once() -> None:
    """A deadline moved forward, even below zero, does not wait for the old one; the last callback is called."""
    loop, timers, fired = make()
    timers.set("a", 10_000, lambda: fired.append("old"))
    timers.set("a", 1000, lambda: fired.append("new"))
    timers.set("b", -5, lambda: fired.append("b"))
    loop.pass_s(0)
    assert fired == ["b"]
    loop.pass_s(1)
    assert fired == ["b", "new"]
    loop.pass_s(20)
    assert fired == ["b", "new"]


def test_cancel_and_close() -> None:
    """A cancelled timer does not fire; cancelling a missing one is harmless."""
    loop, timers, fired = make()
    timers.set("a", 1000, lambda: fired.append("a"))
    timers.set("b", 1000, lambda: fired.append("b"))
    timers.cancel("a")
    timers.cancel("nothing")
    assert "a" not in timers
    assert "b" in timers
    timers.close()
    loop.pass_s(10)
    assert fired == []
    assert loop.pending == []


def test_set_again_while_firing() -> None:
    """A callback may set its own timer again."""
    loop, timers, fired = make()

    def again() -> None:
        fired.append(loop.now_s)
        if len(fired) < 3:
            timers.set("a", 1000, again)

    timers.set("a", 1000, again)
    loop.pass_s(10)
    assert fired == [101.0, 102.0, 103.0]


async def test_on_a_real_loop() -> None:
    """Timers expire in order on asyncio's own loop, too."""
    timers = Timers(asyncio.get_running_loop())
    done = asyncio.Event()
    timers.set("a", 5, done.set)
    timers.set("a", 10, done.set)
    async with asyncio.timeout(60):
        await done.wait()
    assert len(timers) == 0
