"""What a seed draws: each concern has its own generators, so that a draw more, or another kind, changes no other concern's."""

from __future__ import annotations

import random
from collections.abc import Mapping


def generator(*concern: object) -> random.Random:
    """Return the generator of a concern: a seed, a round, what is drawn in it, and its number there."""
    return random.Random("/".join(map(str, concern)))


def pick(weights: Mapping[str, float], *concern: object) -> str:
    """Draw one kind by its weight.

    Each has a time of its own, as long on average as its weight is small, and the first one comes: with another kind or weight
    all draws stay but those that it wins or has won.
    """
    return min(weights, key=lambda kind: generator(*concern, kind).expovariate(weights[kind]))
