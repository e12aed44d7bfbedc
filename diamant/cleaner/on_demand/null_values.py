"""Counts the records without a value in single batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.kernels import numbers
from diamant.kernels.constants import counts, fields
from diamant.kernels.counting import count_records
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from diamant.cleaner.segments.row_reader import Rows

_ENTRY_WORDS = 3


class NullValueCounter:
    """Counts null values. Not thread-safe. Memory: for the largest batch, 24 bytes per record and the decompressed records."""

    def __init__(self) -> None:
        self._unpacker = Unpacker()
        self._entries = numbers("Q", 1024, _ENTRY_WORDS)
        self._sums = numbers("q", counts.COUNTS)

    def count(self, chunk: Rows, row: int) -> int:
        """Return how many records in a row's data batch of magic 2 have a key but no value. Raises CorruptBatch."""
        rows, data = chunk.rows, chunk.data
        at, size = rows[fields.POSITION, row], rows[fields.SIZE, row]
        if not crc_is_valid(data, at, size):
            raise CorruptBatch(at, "the batch's CRC is wrong")
        self._unpacker.clear()
        if codec := rows[fields.ATTRIBUTES, row] & fields.CODEC_MASK:
            payload = data[rows[fields.PAYLOAD_START, row] : rows[fields.PAYLOAD_END, row]]
            chunk.set_place(row, self._unpacker.unpack(codec, payload, MAX_BATCH_BYTES))
        record_count = rows[fields.RECORD_COUNT, row]
        if record_count > len(self._entries):
            self._entries = numbers("Q", record_count, _ENTRY_WORDS)
        rows[fields.STEP, row] = 0
        fault, _, found = count_records(
            data, self._unpacker.buffer, rows, row, row + 1, 0, 0, 0, 0, self._entries, 0, self._sums
        )
        if fault != fields.NO_FAULT:
            raise CorruptBatch(at, "the records of the batch cannot be read")
        facts = self._entries.cast("B").cast("Q")[2 : _ENTRY_WORDS * found : _ENTRY_WORDS]
        return sum(fact & counts.TOMBSTONE for fact in facts)
