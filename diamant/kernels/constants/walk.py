"""The faults found by a walk over a produced batch's records, as numbers, because kernels have no strings."""

NO_FAULT = 0
CUT_OFF = 1
BAD_VARINT = 2
BAD_LENGTH = 3
LENGTH_MISMATCH = 4
BAD_HEADER_COUNT = 5
BAD_HEADER = 6
BAD_OFFSET_DELTA = 7
TIMESTAMP_OVERFLOW = 8
LEFTOVER_BYTES = 9
