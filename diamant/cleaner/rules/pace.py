"""The rate and remaining time of an operation, for jobs, rounds, metrics and terminals."""

from __future__ import annotations

SHORTEST_S = 1.0
"""Shortest duration that allows an estimate."""


def pace(done: int, total: int | None, elapsed_s: float) -> tuple[float | None, float | None]:
    """Return the amount done per second, and the seconds left at this rate; each None while unknown."""
    if elapsed_s < SHORTEST_S or done <= 0:
        return None, None
    rate = done / elapsed_s
    return rate, None if total is None else max(0, total - done) / rate
