"""Logs dealt out to cores: as long as every core has its share of them, none needs to be divided."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

LONGEST_SHARE = 4 / 3
"""So many times its share a core may have. To divide logs costs more than that: of records of 100 B half as much again as
counting them, and three times as much as cleaning them."""


def are_shared_evenly(sizes: Sequence[int], cores: int) -> bool:
    """Tell whether logs of these sizes, dealt out as they are, largest first, leave no core idle for long."""
    fair = LONGEST_SHARE * sum(sizes) / cores
    if max(sizes, default=0) > fair:
        return False
    shares = [0] * cores
    for size in sorted(sizes, reverse=True):
        heapreplace(shares, shares[0] + size)
    return max(shares) <= fair


def largest_share(sizes: Sequence[int], cores: int) -> int:
    """Return the size up to which logs need not be divided; 0 if all are to be, and also if there are none.

    Larger ones are for all cores together; the others are dealt out.
    """
    left = sorted(sizes, reverse=True)
    for number, size in enumerate(left):
        if are_shared_evenly(left[number:], cores):
            return size
    return 0
