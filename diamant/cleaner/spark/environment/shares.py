"""Distribution of logs over cores. If every core gets a fair share of whole logs, no log needs to be divided."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

LONGEST_SHARE = 4 / 3
"""Largest acceptable share of a core, relative to a fair share. Dividing logs instead would cost more: with records of 100 B, a
count then takes 1.5 times the CPU time, and a cleaning three times."""


def are_shared_evenly(sizes: Sequence[int], cores: int) -> bool:
    """Return whether logs of these sizes, distributed whole and largest first, leave no core idle for long."""
    fair = LONGEST_SHARE * sum(sizes) / cores
    if max(sizes, default=0) > fair:
        return False
    shares = [0] * cores
    for size in sorted(sizes, reverse=True):
        heapreplace(shares, shares[0] + size)
    return max(shares) <= fair


def largest_share(sizes: Sequence[int], cores: int) -> int:
    """Return the size up to which logs need not be divided; 0 if all must be divided, or if there are none.

    Each larger log is divided among all cores; the others are distributed whole.
    """
    left = sorted(sizes, reverse=True)
    for number, size in enumerate(left):
        if are_shared_evenly(left[number:], cores):
            return size
    return 0
