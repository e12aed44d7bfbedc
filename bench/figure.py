"""Figures, and the rule that says whether one got worse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HIGHER_IS_BETTER = ("MB/s", "GB/s", "k/s", "per s")
"""Units; of all others less is better."""
NOISE = 0.05


class Figure(NamedTuple):
    """One measured number."""

    name: str
    value: float
    unit: str


def verdict(here: Sequence[float], there: Sequence[float], unit: str) -> str:
    """Return "worse" or "better" if `here` is so by more than 5 % in every round, else "same"; both have the same rounds."""
    if unit not in HIGHER_IS_BETTER:
        here, there = there, here
    pairs = list(zip(here, there, strict=True))
    if all(mine * (1 + NOISE) < other for mine, other in pairs):
        return "worse"
    if all(mine > other * (1 + NOISE) for mine, other in pairs):
        return "better"
    return "same"
