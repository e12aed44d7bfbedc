"""The fields of a stretch, int64[n, STRETCH_FIELDS]: plain batches in a row, of which maybe nothing stays."""

from __future__ import annotations

START = 0
"""In the segment, bytes."""
END = 1
FIRST_OFFSET = 2
LAST_OFFSET = 3
BATCHES = 4
RECORDS = 5
RECORD_BYTES = 6
"""Without the headers of the batches; decompressed."""
STRETCH_FIELDS = 7

# A range of a segment that is to be read, int64[n, RANGE_FIELDS].
RANGE_START = 0
RANGE_END = 1
BATCHES_BEFORE = 2
"""Batches between this range and the one before, which are not to be read."""
RANGE_FIELDS = 3
