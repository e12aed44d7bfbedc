"""The table of keys, inlined into the kernels.

uint64[slots, 3] with linear probing: the two halves of a key's hash, and its offset + 1, so that a slot of zeros is empty. A
key's slot comes from the first half. There is always an empty slot.
"""

from libc.stdint cimport int64_t, uint64_t


cdef inline int64_t slot_of(uint64_t first, int64_t slots) noexcept nogil:
    """Return the slot at which the search for a hash begins; greater hashes have later slots."""
    return <int64_t>((first >> 32) * <uint64_t>slots >> 32)


cdef inline int64_t find(const uint64_t* table, int64_t slots, uint64_t first, uint64_t second) noexcept nogil:
    """Return the offset of a key; -1 (MISSING) if it is not in the table."""
    cdef int64_t slot = slot_of(first, slots)
    cdef const uint64_t* entry
    while True:
        entry = table + 3 * slot
        if entry[2] == 0:
            return -1
        if entry[0] == first and entry[1] == second:
            return <int64_t>(entry[2] - 1)
        slot += 1
        if slot == slots:
            slot = 0
