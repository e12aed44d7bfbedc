"""Limits for the batch headers that a search accepts when it looks for a batch at every byte."""

MAX_SIZE = 256 * 1024 * 1024
"""Size of the largest batch that the search accepts."""
MIN_OLD_SIZE = 26
"""Minimum size of an entry of magic 0 or 1."""
MAX_OLD_KEY_BYTES = 64 * 1024
PAD_BYTES = 128
"""Number of zeros that must follow the searched bytes."""
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4
