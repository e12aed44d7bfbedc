"""The amount of work of tests with random examples: all of it, or a share in `make quick`.

`make quick` (`-m "not slow"`) is for before every commit and takes an eighth of the random examples, and of the points at which
something is stopped or damaged every second or third. `make test`, and pytest without options, take all; with CI set, where the
examples are the same every time, half of the random ones. DIAMANT_EXAMPLES=N takes N times as many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")
QUICK_SHARE = 8
CI_SHARE = 2
IS_CI = bool(os.environ.get("CI"))
FACTOR = int(os.environ.get("DIAMANT_EXAMPLES", "1"))
FEWEST = 15


class _Effort:
    """The options of this run; conftest.py sets them before any test module is read."""

    is_quick = False


def set_quick(is_quick: bool) -> None:
    """Say whether this run is a quick one."""
    _Effort.is_quick = is_quick


def is_quick() -> bool:
    """True if this run is a quick one."""
    return _Effort.is_quick


def examples(full: int) -> int:
    """Return the number of random examples to take: `full`, an eighth in a quick run, or half in CI, but not fewer than 15."""
    full *= FACTOR
    share = QUICK_SHARE if is_quick() else CI_SHARE if IS_CI else 1
    return max(min(FEWEST, full), full // share)


def some(points: Sequence[Point], *, every: int, seed: int = 0) -> Sequence[Point]:
    """Points to try: all, or in a quick run each `every`-th, from one that `seed` chooses, and the last."""
    if not is_quick() or not points:
        return points
    return [*points[seed % every : -1 : every], points[-1]]
