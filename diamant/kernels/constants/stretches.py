"""The fields of a stretch, int64[n, STRETCH_FIELDS]: adjacent plain batches, all of which may be dropped."""

START = 0
"""Position in the segment, bytes."""
END = 1
FIRST_OFFSET = 2
LAST_OFFSET = 3
BATCHES = 4
RECORDS = 5
RECORD_BYTES = 6
"""Decompressed bytes, without batch headers."""
STRETCH_FIELDS = 7

# A range of a segment to read, int64[n, RANGE_FIELDS].
RANGE_START = 0
RANGE_END = 1
BATCHES_BEFORE = 2
"""Number of skipped batches between the previous range and this one."""
RANGE_FIELDS = 3
