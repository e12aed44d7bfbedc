"""The walk over the records of a produced batch: the compiled twin of `protocol.batches.validation.walk_records`."""

import cython
from cython.cimports.diamant.kernels.constants.walk import BAD_HEADER as BAD_RECORD_HEADER
from cython.cimports.diamant.kernels.constants.walk import (
    BAD_HEADER_COUNT,
    BAD_LENGTH,
    BAD_OFFSET_DELTA,
    BAD_VARINT,
    CUT_OFF,
    LEFTOVER_BYTES,
    LENGTH_MISMATCH,
    TIMESTAMP_OVERFLOW,
)
from cython.cimports.diamant.kernels.constants.walk import NO_FAULT as NO_RECORD_FAULT
from cython.cimports.diamant.kernels.records import Integer, from_zigzag, input_bytes, read_integer
from cython.cimports.libc.stdint import INT64_MAX, int64_t, uint8_t

_MANY_RECORDS = cython.declare(cython.int, 1000)
"""Minimum number of records for which the GIL is released; for fewer, reacquiring it may cost more than the walk."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def fault_of_integer(position: int64_t, end: int64_t, max_size: cython.int) -> cython.int:
    """Return the fault of the unreadable integer at `position`."""
    return BAD_VARINT if end - position >= max_size else CUT_OFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def skip_headers(data: input_bytes, position: int64_t, record_end: int64_t, end: int64_t) -> tuple[cython.int, int64_t]:
    """Skip a record's headers, whose number is at `position`; return (fault, position after the headers)."""
    found: Integer = read_integer(data, position, end, 5)
    count: int64_t
    if found.position < 0:
        return fault_of_integer(position, end, 5), position
    count = found.raw >> 1
    if found.raw & 1 or count > record_end - found.position:
        return BAD_HEADER_COUNT, position
    position = found.position
    while count > 0:
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            return fault_of_integer(position, end, 5), position
        if found.raw & 1 or found.raw >> 1 > record_end - found.position:
            return BAD_RECORD_HEADER, position
        position = found.position + (found.raw >> 1)
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            return fault_of_integer(position, end, 5), position
        position = found.position
        if not found.raw & 1:
            if found.raw >> 1 > record_end - position:
                return BAD_RECORD_HEADER, position
            position += found.raw >> 1
        count -= 1
    return NO_RECORD_FAULT, position


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_bytes(
    data: input_bytes, end: int64_t, record_count: int64_t, base_timestamp: int64_t
) -> tuple[cython.int, int64_t, int64_t, int64_t, int64_t, cython.bint, int64_t]:
    """Implement `walk`."""
    position: int64_t = 0
    start: int64_t = 0
    index: int64_t = 0
    max_timestamp: int64_t = -1
    offset_of_max: int64_t = -1
    min_timestamp: int64_t = INT64_MAX
    has_null_key: cython.bint = False
    fault: cython.int = NO_RECORD_FAULT
    found: Integer
    record_end: int64_t
    timestamp: int64_t
    while index < record_count:
        start = position
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            fault = fault_of_integer(position, end, 5)
            break
        record_end = found.position + (found.raw >> 1)
        if found.raw & 1 or record_end > end:
            fault = BAD_LENGTH
            break
        position = found.position + 1
        found = read_integer(data, position, end, 10)
        if found.position < 0:
            fault = fault_of_integer(position, end, 10)
            break
        position = found.position
        timestamp = from_zigzag(found.raw)
        if (timestamp > 0 and base_timestamp > INT64_MAX - timestamp) or (
            timestamp < 0 and base_timestamp < -INT64_MAX - 1 - timestamp
        ):
            fault = TIMESTAMP_OVERFLOW
            break
        timestamp += base_timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            offset_of_max = index
        if timestamp < min_timestamp:
            min_timestamp = timestamp
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            fault = fault_of_integer(position, end, 5)
            break
        if found.raw != index << 1:
            fault = BAD_OFFSET_DELTA
            break
        position = found.position
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            fault = fault_of_integer(position, end, 5)
            break
        position = found.position
        if found.raw & 1:
            has_null_key = True
        else:
            position += found.raw >> 1
        found = read_integer(data, position, end, 5)
        if found.position < 0:
            fault = fault_of_integer(position, end, 5)
            break
        position = found.position
        if not found.raw & 1:
            position += found.raw >> 1
        if position >= end:
            fault = CUT_OFF
            break
        if data[position] == 0:
            position += 1
        else:
            fault, position = skip_headers(data, position, record_end, end)
            if fault != NO_RECORD_FAULT:
                break
        if position != record_end:
            fault = LENGTH_MISMATCH
            break
        index += 1
    if fault == NO_RECORD_FAULT:
        if position != end:
            fault = LEFTOVER_BYTES
            start = position
        elif index > 0:
            index -= 1
    return fault, start, index, max_timestamp, offset_of_max, has_null_key, min_timestamp


def walk(data: cython.const[uint8_t][::1], record_count: int64_t, base_timestamp: int64_t) -> tuple:
    """Check the records, which must fill `data` exactly; return the fields of `WalkOutcome`.

    `base_timestamp` must be within 2**62 of 0.
    """
    end: int64_t = data.shape[0]
    start: input_bytes = cython.cast(input_bytes, cython.NULL)
    if end > 0:
        start = cython.address(data[0])
    outcome: tuple[cython.int, int64_t, int64_t, int64_t, int64_t, cython.bint, int64_t]
    if record_count < _MANY_RECORDS:
        outcome = walk_bytes(start, end, record_count, base_timestamp)
    else:
        with cython.nogil:
            outcome = walk_bytes(start, end, record_count, base_timestamp)
    return outcome
