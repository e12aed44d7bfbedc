"""Clocks: real, frozen, and real with jumps."""

from __future__ import annotations

import time

import pytest

from diamant.storage.env.clock import SettableClock, SystemClock


def test_system_clock_gives_milliseconds() -> None:
    """The system's clock counts milliseconds since the Unix epoch."""
    before = int(time.time() * 1000)
    assert before <= SystemClock().now_ms() <= int(time.time() * 1000) + 1


def test_a_settable_clock_stands_still_until_it_is_moved() -> None:
    """A frozen clock moves by exactly the given amount, and calls its callbacks."""
    clock = SettableClock(1000)
    seen: list[int] = []
    clock.on_change.append(lambda: seen.append(clock.now_ms()))
    assert clock.now_ms() == 1000
    assert clock.advance_ms(500) == 1500
    assert clock.set_ms(10) == 10
    assert seen == [1500, 10]


def test_a_clock_is_not_advanced_backwards() -> None:
    """Advancing by a negative time is an error; only `set_ms` moves back."""
    with pytest.raises(ValueError, match="0 ms or more"):
        SettableClock(0).advance_ms(-1)


def test_a_running_clock_follows_real_time_from_where_it_is_set() -> None:
    """A running clock never falls behind the time it was set or advanced to."""
    clock = SettableClock(5000, is_running=True)
    assert clock.advance_ms(10_000) >= 15_000
    assert 100 <= clock.set_ms(100) < 15_000
    assert clock.now_ms() >= 100
