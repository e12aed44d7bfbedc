"""The fields of a group of records with the same key, int64[SIZES]."""

RECORDS = 0
BYTES = 1
"""Bytes of keys and values."""
KEY_START = 2
KEY_END = 3
SIZES = 4
