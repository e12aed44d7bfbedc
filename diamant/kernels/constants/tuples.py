"""Constants of tuples of hash and offset, of their table, and of the walk that makes the tuples."""

ENTRY_BYTES = 24
EMPTY = 0
"""Third word of an empty slot."""
MISSING = -1
"""Result of a lookup for a key that is not in the table."""

# Steps of batches while the map is built.
SKIP = 0
MAP = 1

# Where a call of `hash_records` stopped, int64[STATE_FIELDS].
ROW = 0
RECORD = 1
PLACE = 2
"""Position of the next record in its payload; 0 at the start of the row."""
LAST_SEEN = 3
"""Greatest offset so far, of records and of batches."""
IS_PLAIN = 4
"""1 if all records of the row so far have keys and values, and none is odd."""
DISORDERED = 5
"""0: record offsets that do not ascend, or lie outside their batch's range or inside that of an earlier batch, are a fault.
ACCEPTED: they are allowed, and 1 + the first row with such offsets replaces ACCEPTED."""
STATE_FIELDS = 6
ACCEPTED = -1
