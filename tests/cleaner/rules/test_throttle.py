"""The speed limit of the cleaner's reads and writes (Kafka's ThrottlerTest, on a clock that stands still)."""

from __future__ import annotations

import math

import pytest

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.rules.throttle import Throttle


class Time:
    """A clock that only `sleep` and the test move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


def throttle_of(time: Time, bytes_per_second: float) -> Throttle:
    return Throttle(bytes_per_second, clock=lambda: time.now_s, sleep=time.sleep)


def test_the_rate_is_never_above_the_limit() -> None:
    """A caller that is too fast waits as long as the bytes should have taken; a new limit applies from the next call on."""
    time = Time()
    throttle = throttle_of(time, 1000)
    for rate in (1000, 1500):
        throttle.bytes_per_second = rate
        start_s = time.now_s
        for _ in range(20):
            time.now_s += 0.1
            throttle(500)
        assert 500 * 20 / (time.now_s - start_s) == pytest.approx(rate, rel=0.1)


def test_nothing_waits_within_the_check_interval() -> None:
    """Bytes are only counted until the interval is over, as in Kafka."""
    time = Time()
    throttle = throttle_of(time, 1000)
    throttle(1_000_000)
    time.now_s += 0.3
    throttle(0)
    assert time.slept_s == 0
    time.now_s += 0.001
    throttle(0)
    assert time.slept_s == pytest.approx(1000 - 0.301)


def test_slow_reading_and_no_limit_wait_for_nothing() -> None:
    """A rate below the limit is left alone, and by default there is none."""
    time = Time()
    for rate in (math.inf, 1000):
        throttle = throttle_of(time, rate)
        for _ in range(10):
            time.now_s += 1
            throttle(1000)
    assert time.slept_s == 0


def test_a_wait_ends_when_the_round_does() -> None:
    """A long wait repeatedly checks whether the round must stop."""
    time = Time()
    throttle = throttle_of(time, 1)

    def check_done() -> None:
        if time.slept_s > 5:
            raise CleaningAborted("stop")

    time.now_s += 1
    with pytest.raises(CleaningAborted):
        throttle(1_000_000, check_done)
    assert 5 < time.slept_s < 5.2
