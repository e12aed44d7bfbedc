"""Constants of the walk that writes records as columns."""

# Bits: wanted fields of a record.
WANT_KEYS = 1
WANT_VALUES = 2
WANT_HEADERS = 4
WANT_SIZES = 8

# Rows of `fixed`.
OFFSET = 0
TIMESTAMP = 1
ROW = 2
"""Row of the record's batch in the chunk."""
VALUE_SIZE = 3
"""-1 for null; undefined unless sizes are wanted."""
FIXED = 4

# Fields of `bounds`, all inclusive.
MIN_OFFSET = 0
MAX_OFFSET = 1
MIN_TIMESTAMP = 2
MAX_TIMESTAMP = 3
BOUNDS = 4

# State between calls, int64[STATE_FIELDS]; all 0 before the first call.
COUNT = 0
"""Number of records in the columns."""
HEADERS = 1
"""Number of headers of these records."""
WALKED = 2
"""Number of records that were read."""
STATE_FIELDS = 3
