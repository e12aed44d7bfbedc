"""Sums over the records of batches, int64[COUNTS], and the word of facts in an entry for a key."""

RECORDS = 0
"""Data records, including those counted below."""
BELOW_LOG_START = 1
ABORTED = 2
UNDECIDED = 3
"""Records of open transactions."""
KEYLESS = 4
MARKERS = 5
"""Control records, except records below the log start."""
COUNTS = 6

# An entry is three words: the two halves of a key's hash, and the following facts about the key.
TOMBSTONE = 1
"""Bit: the key's latest record in this source has no value."""
EARLIER_ONE = 2
"""Bits: number of earlier sources in which the key is live, counted up to two."""
EARLIER = 6
SOURCE_SHIFT = 3
"""The remaining bits: the source."""
NO_SOURCE = -1
