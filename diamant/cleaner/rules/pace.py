"""The rate of an operation and its remaining time, for jobs, rounds, metrics and terminals alike."""

from __future__ import annotations

SHORTEST_S = 1.0
"""Shortest duration from which a rate can be told."""


def pace(done: int, total: int | None, elapsed_s: float) -> tuple[float | None, float | None]:
    """Return how much of it is done per second, and how many seconds are left at this rate; None while that is not known."""
    if elapsed_s < SHORTEST_S or done <= 0:
        return None, None
    rate = done / elapsed_s
    return rate, None if total is None else max(0, total - done) / rate
