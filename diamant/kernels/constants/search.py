"""Numbers of the certifying scan: the values of STEP, and the multiplier of its hashes."""

from __future__ import annotations

SEARCH = 1
"""To be looked at."""
CLEAN = 2
"""Was looked at, and there is nothing."""
LOOK_AGAIN = 3
"""For the plain reader."""

MULTIPLIER = 0x9E3779B97F4A7C15
