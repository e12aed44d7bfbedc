"""Rates, as Kafka measures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diamant.broker.security.quotas.rate import Rate, RateWindows

GOLDEN = Path(__file__).parents[2] / "golden" / "rates_4.3.1.json"
"""What Rate and TokenBucket of kafka-clients 4.3.1 say after random records: ms, value, rate, window, tokens."""


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()))
def test_rate_and_window_are_those_of_kafka(case: dict[str, float]) -> None:
    """After every record the rate and the time it is about are what Kafka's class says, with pauses of any length."""
    rate = Rate(RateWindows(int(case["samples"]), int(case["window_ms"])))
    for now_ms, value, expected_rate, expected_window_ms, _ in case["steps"]:  # type: ignore[attr-defined]
        rate.record(value, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(expected_rate)
        assert rate.elapsed_ms(now_ms) == expected_window_ms


def test_a_short_time_counts_as_all_windows_but_one() -> None:
    """Who has just begun is not taken for fast: ten seconds' worth in the first millisecond is the rate of ten seconds."""
    rate = Rate(RateWindows(11, 1000))
    rate.record(1000, 5.0)
    assert rate.per_second(5.0) == 100


def test_what_is_taken_back_was_never_there() -> None:
    """A negative value undoes one that was recorded in the same window."""
    rate = Rate(RateWindows())
    rate.record(100, 0.0)
    rate.record(900, 10.0)
    rate.record(-900, 10.0)
    assert rate.per_second(10.0) == pytest.approx(100 / 10.01)
