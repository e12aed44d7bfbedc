"""Readers of records and the writer of their integers, inlined into the kernels.

Every read is checked against the end of its buffer. A record is accepted if `protocol.batches.records.iter_records` accepts it.
A record is *odd* if encoding its fields again would change its bytes: it has integers with more bytes than necessary, or a null
that is not -1. Kafka encodes records again, so odd batches are left to the plain engine.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from diamant.kernels.processor cimport load_big32

ctypedef const uint8_t* input_bytes


cdef struct Integer:
    int64_t raw            # ZigZag form
    int64_t position       # after the integer; -1 if it is cut off or too long
    bint is_odd


cdef struct Record:
    bint is_valid
    bint is_odd
    int64_t timestamp      # ZigZag forms of the timestamp and the offset delta
    int64_t delta
    int64_t rest           # start of the offset delta
    int64_t key_start
    int64_t key_size       # -1 if there is no key
    bint has_value
    int64_t value_size     # -1 if there is no value
    int64_t end


cdef inline input_bytes start_of(const uint8_t[::1] data) noexcept nogil:
    """Return the address of the first byte; NULL if there is none."""
    return &data[0] if data.shape[0] > 0 else NULL


cdef inline int64_t read_int32(const uint8_t* at) noexcept nogil:
    """Read a big-endian integer of 4 bytes."""
    return <int32_t>load_big32(at)


cdef inline Integer read_long_integer(const uint8_t* data, int64_t position, int64_t end, int max_size) noexcept nogil:
    """Read a ZigZag integer of at most `max_size` (5 or 10) bytes."""
    cdef Integer found
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int index
    found.raw = 0
    found.position = -1
    found.is_odd = False
    for index in range(max_size):
        if position >= end:
            return found
        byte = data[position]
        position += 1
        value |= <uint64_t>(byte & 0x7F) << (7 * index)
        if byte < 0x80:
            found.is_odd = byte == 0 and index > 0
            if max_size == 5:
                found.is_odd |= value >> 32 != 0
                value &= <uint64_t>0xFFFFFFFF
            else:
                found.is_odd |= index == 9 and byte > 1
            found.raw = <int64_t>value
            found.position = position
            return found
    return found


cdef inline Integer read_integer(const uint8_t* data, int64_t position, int64_t end, int max_size) noexcept nogil:
    """Read a ZigZag integer of at most `max_size` bytes; fast for one or two bytes, which nearly all integers have."""
    cdef Integer found
    cdef uint8_t byte, second
    if position < end:
        byte = data[position]
        if byte < 0x80:
            found.raw = byte
            found.position = position + 1
            found.is_odd = False
            return found
        if position + 1 < end:
            second = data[position + 1]
            if 0 < second < 0x80:
                found.raw = byte & 0x7F | <int64_t>second << 7
                found.position = position + 2
                found.is_odd = False
                return found
    return read_long_integer(data, position, end, max_size)


cdef inline Integer skip_headers(const uint8_t* data, int64_t position, int64_t end) noexcept nogil:
    """Step over the headers of a record that ends at `end`; position -1 if they are malformed."""
    cdef Integer count = read_long_integer(data, position, end, 5)
    cdef Integer size
    cdef Integer bad
    cdef int64_t index
    bad.raw = 0
    bad.position = -1
    bad.is_odd = False
    if count.position < 0 or count.raw & 1 or count.raw >> 1 > end - count.position:
        return bad
    for index in range(count.raw >> 1):
        size = read_long_integer(data, count.position, end, 5)
        count.is_odd |= size.is_odd
        if size.position < 0 or size.raw & 1 or size.raw >> 1 > end - size.position:
            return bad
        size = read_long_integer(data, size.position + (size.raw >> 1), end, 5)
        count.is_odd |= size.is_odd or (size.raw & 1 != 0 and size.raw != 1)
        if size.position < 0:
            return bad
        count.position = size.position
        if not size.raw & 1:
            if size.raw >> 1 > end - size.position:
                return bad
            count.position += size.raw >> 1
    return count


cdef inline Record read_record(const uint8_t* data, int64_t position, int64_t end) noexcept nogil:
    """Read the record at `position` of a payload that ends at `end`."""
    cdef Record record
    cdef Integer found = read_integer(data, position, end, 5)
    cdef bint is_odd
    record.is_valid = False
    if found.position < 0 or found.raw & 1 or found.raw >> 1 > end - found.position:
        return record
    is_odd = found.is_odd
    record.end = found.position + (found.raw >> 1)
    found = read_integer(data, found.position + 1, record.end, 10)
    if found.position < 0:
        return record
    is_odd |= found.is_odd
    record.timestamp = found.raw
    record.rest = found.position
    found = read_integer(data, found.position, record.end, 5)
    if found.position < 0:
        return record
    is_odd |= found.is_odd
    record.delta = found.raw
    found = read_integer(data, found.position, record.end, 5)
    if found.position < 0:
        return record
    is_odd |= found.is_odd
    record.key_start = position = found.position
    record.key_size = -1
    if found.raw & 1:
        is_odd |= found.raw != 1
    else:
        record.key_size = found.raw >> 1
        if record.key_size >= record.end - position:
            return record
        position += record.key_size
    found = read_integer(data, position, record.end, 5)
    if found.position < 0:
        return record
    is_odd |= found.is_odd
    position = found.position
    record.has_value = not found.raw & 1
    record.value_size = -1
    if found.raw & 1:
        is_odd |= found.raw != 1
    else:
        record.value_size = found.raw >> 1
        if record.value_size >= record.end - position:
            return record
        position += record.value_size
    if position >= record.end:
        return record
    if data[position] == 0:
        position += 1
    else:
        found = skip_headers(data, position, record.end)
        if found.position < 0:
            return record
        is_odd |= found.is_odd
        position = found.position
    record.is_odd = is_odd
    record.is_valid = position == record.end
    return record


cdef inline int64_t from_zigzag(int64_t raw) noexcept nogil:
    """Return the integer whose ZigZag form, taken as unsigned 64 bits, is `raw`."""
    return <int64_t>(<uint64_t>raw >> 1 ^ -(<uint64_t>raw & 1))


cdef inline uint64_t to_zigzag(int64_t value) noexcept nogil:
    """Return the ZigZag form of a 64-bit integer."""
    return <uint64_t>value << 1 ^ <uint64_t>(value >> 63)


cdef inline int64_t wrapping_sum(int64_t first, int64_t second) noexcept nogil:
    """Return a sum modulo 2**64, because a damaged record may contain any numbers."""
    return <int64_t>(<uint64_t>first + <uint64_t>second)


cdef inline int64_t wrapping_difference(int64_t first, int64_t second) noexcept nogil:
    """Return a difference modulo 2**64."""
    return <int64_t>(<uint64_t>first - <uint64_t>second)


cdef inline int varint_size(uint64_t raw) noexcept nogil:
    """Return the size of a ZigZag form in bytes."""
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* out, uint64_t raw) noexcept nogil:
    """Write a ZigZag form, given enough room; return the address after it."""
    while raw >= 0x80:
        out[0] = <uint8_t>(raw & 0x7F | 0x80)
        raw >>= 7
        out += 1
    out[0] = <uint8_t>raw
    return out + 1
