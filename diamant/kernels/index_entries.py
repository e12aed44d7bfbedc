"""Index entries for batches appended to a segment."""

import cython
from cython.cimports.diamant.kernels.constants import outputs
from cython.cimports.diamant.kernels.processor import store_big
from cython.cimports.libc.stdint import INT32_MAX, int64_t, uint8_t


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def index_columns(
    columns: cython.const[int64_t][:, ::1],
    count: int64_t,
    output: int64_t[::1],
    index: cython.pointer(uint8_t),
    time_index: cython.pointer(uint8_t),
) -> int64_t:
    """Implement `index_batches`; return the number of batches processed."""
    batch: int64_t
    size: int64_t
    position: int64_t
    relative: int64_t
    is_due: cython.bint
    is_full: cython.bint
    for batch in range(count):
        size = columns[0, batch]
        position = output[outputs.OUTPUT_SIZE]
        if position + size > output[outputs.MAX_OUTPUT_SIZE] or columns[1, batch] < output[outputs.OUTPUT_BASE_OFFSET]:
            return batch
        relative = columns[1, batch] - output[outputs.OUTPUT_BASE_OFFSET]
        if relative > INT32_MAX:
            return batch
        is_due = output[outputs.SINCE_ENTRY] > output[outputs.INDEX_INTERVAL]
        if is_due:
            is_full = (
                output[outputs.INDEX_BYTES] + outputs.INDEX_ENTRY_BYTES > output[outputs.MAX_INDEX_BYTES]
                or output[outputs.TIME_INDEX_BYTES] + outputs.TIME_INDEX_ENTRY_BYTES
                > output[outputs.MAX_TIME_INDEX_BYTES]
            )
            if is_full and output[outputs.IS_STRICT] != 0:
                return batch
            is_due = not is_full
        if columns[2, batch] > output[outputs.GREATEST_TIMESTAMP]:
            output[outputs.GREATEST_TIMESTAMP] = columns[2, batch]
            output[outputs.OFFSET_OF_GREATEST] = columns[1, batch]
        if is_due:
            store_big(index, relative, 4)
            store_big(index + 4, position, 4)
            index += outputs.INDEX_ENTRY_BYTES
            output[outputs.INDEX_BYTES] += outputs.INDEX_ENTRY_BYTES
            if output[outputs.GREATEST_TIMESTAMP] > output[outputs.INDEXED_TIMESTAMP]:
                store_big(time_index, output[outputs.GREATEST_TIMESTAMP], 8)
                store_big(time_index + 8, output[outputs.OFFSET_OF_GREATEST] - output[outputs.OUTPUT_BASE_OFFSET], 4)
                time_index += outputs.TIME_INDEX_ENTRY_BYTES
                output[outputs.TIME_INDEX_BYTES] += outputs.TIME_INDEX_ENTRY_BYTES
                output[outputs.INDEXED_TIMESTAMP] = output[outputs.GREATEST_TIMESTAMP]
            output[outputs.SINCE_ENTRY] = 0
        output[outputs.SINCE_ENTRY] += size
        output[outputs.OUTPUT_SIZE] = position + size
    return count


def index_batches(
    columns: cython.const[int64_t][:, ::1],
    count: int64_t,
    output: int64_t[::1],
    index: uint8_t[::1],
    time_index: uint8_t[::1],
) -> int:
    """Make the index entries for `count` batches, as `SegmentWriter` does; return the number of batches processed.

    `columns` has been filled by `assembly.assemble`. `index` and `time_index` must have room for one entry per batch. `output`,
    the state of the segment, receives the size of the entries in bytes. Stops before a batch for which `SegmentWriter` would
    raise an error.
    """
    done: int64_t = 0
    if count > 0:
        with cython.nogil:
            done = index_columns(columns, count, output, cython.address(index[0]), cython.address(time_index[0]))
    return done
