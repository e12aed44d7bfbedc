"""What is found out about the records of a batch that is judged."""

from diamant.kernels.constants.fates cimport FATES
from libc.stdint cimport int64_t


cdef struct Judgement:
    bint is_odd
    int64_t kept
    int64_t first_timestamp    # of those that stay; -1 without any
    int64_t max_timestamp
    int64_t last_tombstone_offset    # of those that stay; -1 without any
    int64_t removed[FATES]    # records by fate, and their bytes
    int64_t removed_bytes[FATES]
