"""Constants of the certifying scan: the values of STEP, and the multiplier of its hashes."""

SEARCH = 1
"""To be searched."""
CLEAN = 2
"""Searched, nothing found."""
LOOK_AGAIN = 3
"""To be examined by the plain reader."""

STRIDE = 4
"""Distance between examined windows. A needle must have this many consecutive windows, so that one of them is examined."""
MULTIPLIER = 0x9E3779B97F4A7C15
