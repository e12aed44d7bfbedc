"""A segment writer that makes the index entries of many batches in a kernel."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from diamant.cleaner.rules.plan import INDEX_ENTRY_BYTES, TIME_INDEX_ENTRY_BYTES
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.kernels.constants import outputs
from diamant.kernels.index_entries import index_batches

if TYPE_CHECKING:
    from diamant.storage.env.env import Buffer


class CompiledWriter(SegmentWriter):
    """A `SegmentWriter` that can append many batches in one call."""

    def append_columns(self, data: Buffer, columns: memoryview[int], count: int) -> None:
        """Append the adjacent batches in `data`, with the effect of calling `append` for each.

        `columns`: int64[3, count], the sizes, last offsets and max timestamps of the batches. `data` must not change before
        the next `flush`.
        """
        index = bytearray(count * INDEX_ENTRY_BYTES)
        time_index = bytearray(count * TIME_INDEX_ENTRY_BYTES)
        output = array(
            "q",
            (
                self.size,
                self.base_offset,
                self._bytes_since_entry,
                self._max_timestamp,
                self._offset_of_max_timestamp,
                self._last_indexed_timestamp,
                len(self._index),
                len(self._time_index),
                self._index_interval_bytes,
                self._max_entries * INDEX_ENTRY_BYTES,
                self._max_time_entries * TIME_INDEX_ENTRY_BYTES,
                self._max_bytes,
                self._is_strict,
            ),
        )
        done = index_batches(columns, count, output, index, time_index)
        self._index += index[: output[outputs.INDEX_BYTES] - len(self._index)]
        self._time_index += time_index[: output[outputs.TIME_INDEX_BYTES] - len(self._time_index)]
        self.size = output[outputs.OUTPUT_SIZE]
        self._bytes_since_entry = output[outputs.SINCE_ENTRY]
        self._max_timestamp = output[outputs.GREATEST_TIMESTAMP]
        self._offset_of_max_timestamp = output[outputs.OFFSET_OF_GREATEST]
        self._last_indexed_timestamp = output[outputs.INDEXED_TIMESTAMP]
        if done < count:
            # Raises the error for the batch at which the kernel stopped.
            self._index_batch(columns[0, done], columns[1, done], columns[2, done])
        self._write(data)
