"""The fates of a record, and the counts of a rewrite."""

# Fates: KEEP, or an index into `record_fate.FATE_REASONS`.
KEEP = 0
FATE_SUPERSEDED = 1
FATE_ABORTED = 2
FATE_TOMBSTONE = 3
FATE_MARKER = 4
FATE_KEYLESS = 5
FATE_BELOW_LOG_START = 6
FATES = 7

# Counts, int64[COUNTS]: first the records removed by fate, then their bytes.
REMOVED = 0
REMOVED_BYTES = FATES
MESSAGES_READ = 2 * FATES
INVALID_READ = 2 * FATES + 1
MESSAGES_WRITTEN = 2 * FATES + 2
COUNTS = 2 * FATES + 3
