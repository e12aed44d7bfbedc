"""Sums over the records of batches, int64[COUNTS], and the words of keys' entries."""

from __future__ import annotations

RECORDS = 0
"""Data records; those that follow are among them."""
BELOW_LOG_START = 1
ABORTED = 2
UNDECIDED = 3
"""Of a transaction that is open."""
KEYLESS = 4
MARKERS = 5
"""Control records."""
MARKERS_BELOW = 6
"""Of these, in batches that lie below the log start."""
COUNTS = 7

# An entry is three words: the two halves of a key's hash, and what is known of the key.
TOMBSTONE = 1
"""Bit: its latest record in this source has no value."""
EARLIER_ONE = 2
"""Bits: number of earlier sources in which it is live, up to two."""
EARLIER = 6
SOURCE_SHIFT = 3
"""The rest: the source."""
NO_SOURCE = -1
