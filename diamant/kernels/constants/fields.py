"""The fields of the rows that kernels read and write, one row per batch of a chunk: int64[FIELDS, rows].

This module also has the faults of a chunk, and the constants of batches that kernels need.
"""

# Fields of a row, from the header of the batch.
POSITION = 0
"""Start of the batch in the chunk."""
SIZE = 1
BASE_OFFSET = 2
LAST_OFFSET = 3
MAGIC = 4
ATTRIBUTES = 5
BASE_TIMESTAMP = 6
MAX_TIMESTAMP = 7
PRODUCER_ID = 8
RECORD_COUNT = 9
# Location of the records, once known: in the chunk itself or in the decompressed data.
IS_UNPACKED = 10
PAYLOAD_START = 11
PAYLOAD_END = 12
# For the kernels that process the rows.
STEP = 13
"""The step to take with the batch (map) or its outcome (rewrite)."""
NOTE = 14
"""The batch's note: written by the map, read by the rewrite."""
KEPT = 15
NEW_BASE_TIMESTAMP = 16
NEW_MAX_TIMESTAMP = 17
HORIZON = 18
"""1 if the output batch has a delete horizon, old or new."""
KEPT_START = 19
"""Start of the batch's entries in `kept_records`."""
EXTRA_START = 20
EXTRA_END = 21
"""Range of finished output bytes: a whole batch, or compressed records."""
RETAINED = 22
"""1 if at least the header of the batch must be kept."""
DROPS_ALL = 23
"""The fate of all records of the batch if it is already known; otherwise 0."""
FIELDS = 24

# Faults of a chunk or its records.
NO_FAULT = 0
BAD_HEADER = 1
CORRUPT = 2
OUT_OF_ORDER = 3
"""The offsets do not ascend."""
BUFFER_FULL = 4
"""Not an error: call again with more room."""

HEADER_BYTES = 61
LOG_OVERHEAD = 12
MIN_RECORD_BYTES = 7
CODEC_MASK = 7
LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
DELETE_HORIZON = 64
LEGACY = 1 << 16
"""Bit added to the attributes of a chunk that has batches of magic 0 or 1."""
