"""Findings about the records of a judged batch."""

from diamant.kernels.constants.fates cimport FATES
from libc.stdint cimport int64_t


cdef struct Judgement:
    bint is_odd
    bint is_disordered    # their offsets do not ascend, or exceed the batch's last offset
    int64_t kept
    int64_t first_timestamp    # of the kept records; -1 if none
    int64_t max_timestamp
    int64_t last_tombstone_offset    # of the kept records; -1 if none
    int64_t removed[FATES]    # records by fate, and their bytes
    int64_t removed_bytes[FATES]
