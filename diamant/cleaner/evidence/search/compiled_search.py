"""The compiled search of a file of batches, about as fast as memory can be read. Batches with findings go to the plain search.

Subjects that judge every record of a topic also get the records of batches without findings.

Memory: that of `row_reader`, and one decompressed chunk.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from diamant.cleaner.evidence.search.file_census import add_to, codec_name
from diamant.cleaner.evidence.search.needles import Windows
from diamant.cleaner.evidence.search.record_search import (
    BatchBytes,
    FileSearch,
    WalkedKeys,
    batch_header,
    search_plain,
)
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.kernels import numbers
from diamant.kernels.batches import set_steps
from diamant.kernels.constants import fields
from diamant.kernels.constants.search import CLEAN, LOOK_AGAIN, SEARCH
from diamant.kernels.search import search_rows
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import CURRENT_MAGIC, HEADER_SIZE
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import ReadableFile
from diamant.storage.errors import CorruptLog


class CompiledSearch:
    """The compiled search for one thread, which owns its buffers."""

    def __init__(self) -> None:
        self._reader = ChunkReader()
        self._unpacker = Unpacker()
        self._amounts = numbers("q", fields.CODEC_MASK + 1, 3)

    def search(self, search: FileSearch, file: ReadableFile, end: int, position: int = 0) -> None:
        """Search a file of batches from byte `position`, where a batch begins, up to `end`."""
        walked = search.walked = search.walked or _walked(search)
        windows = search.subject.needles.windows
        try:
            for chunk in self._reader.chunks(file, position, end):
                position = chunk.position
                search.check()
                self._search_chunk(search, chunk, walked, windows)
                if walked.is_judging:
                    self._judge(search, chunk)
                position += chunk.size
        except CorruptLog:
            # The plain search continues from here, and reports the problem.
            search_plain(search, file, end, position)
        finally:
            amounts = self._amounts
            for codec in range(fields.CODEC_MASK + 1):
                if amounts[codec, 0]:
                    add_to(search.amounts, codec_name(2, codec), *(amounts[codec, index] for index in range(3)))
                    amounts[codec, 0] = amounts[codec, 1] = amounts[codec, 2] = 0

    def _search_chunk(self, search: FileSearch, chunk: Rows, walked: WalkedKeys, windows: Windows) -> None:
        rows, count = chunk.rows, chunk.count
        _follow(search, chunk)
        set_steps(rows, count, SEARCH, LOOK_AGAIN, fields.CONTROL)
        self._unpacker.clear()
        if chunk.together & fields.CODEC_MASK:
            self._unpack(chunk)
        batches, records = search_rows(
            chunk.data, self._unpacker.buffer, rows, count, walked.keys, walked.bounds, *windows, self._amounts
        )
        search.counts.batches += batches
        search.counts.compiled_batches += batches
        search.counts.records += records
        search.counts.decompressed_bytes += self._unpacker.at
        if batches < count:
            self._look_again(search, chunk)

    def _judge(self, search: FileSearch, chunk: Rows) -> None:
        """Pass the records of batches without findings to the subjects that judge every record."""
        rows, data, unpacked = chunk.rows, chunk.data, self._unpacker.buffer
        for row in [row for row, step in enumerate(chunk.column(fields.STEP)) if step == CLEAN]:
            at, start, end = rows[fields.POSITION, row], rows[fields.PAYLOAD_START, row], rows[fields.PAYLOAD_END, row]
            payload = bytes((unpacked if rows[fields.IS_UNPACKED, row] else data)[start:end])
            header = batch_header(bytes(data[at : at + HEADER_SIZE]), 0)
            search.judge(header, chunk.position + at, payload)

    def _unpack(self, chunk: Rows) -> None:
        """Decompress the batches to be searched; leave those that cannot be decompressed to the plain search."""
        is_unpacked, starts, ends = chunk.places()
        unpack, data = self._unpacker.unpack, chunk.data
        for row, codec, start, end in chunk.packed(0, chunk.count, SEARCH, fields.PAYLOAD_START):
            try:
                starts[row], ends[row] = unpack(codec, data[start:end], MAX_BATCH_BYTES, may_skip=False)
                is_unpacked[row] = 1
            except CorruptBatch:
                chunk.rows[fields.STEP, row] = LOOK_AGAIN

    def _look_again(self, search: FileSearch, chunk: Rows) -> None:
        """Pass the batches with findings or errors to the plain search."""
        rows, data = chunk.rows, chunk.data
        for row in chunk.with_step(LOOK_AGAIN):
            at, size = rows[fields.POSITION, row], rows[fields.SIZE, row]
            batch = bytes(data[at : at + size])
            try:
                search.look_at(BatchBytes(chunk.position + at, batch_header(batch, 0), batch, 0))
            except CorruptBatch as error:
                search.fail(chunk.position + at, error.reason)
                search.find_raw(batch, chunk.position + at)


def _walked(search: FileSearch) -> WalkedKeys:
    by_subject = [one.subject.walked_keys(search.topic) for one in search.parts]
    keys = list(dict.fromkeys(key for keys in by_subject for key in keys or ()))
    return WalkedKeys(b"".join(keys) + b"\0", array("q", accumulate(map(len, keys), initial=0)), None in by_subject)


def _follow(search: FileSearch, chunk: Rows) -> None:
    """Check that the offsets of a chunk's batches are in order."""
    if search.order is None:
        return
    rows = chunk.rows
    if chunk.together & fields.LEGACY:
        for row, magic in enumerate(chunk.column(fields.MAGIC)):
            if magic < CURRENT_MAGIC:
                # A wrapper has its last entry's offset. It is not worth decompressing the wrapper to get the first offset.
                at = rows[fields.POSITION, row]
                offset = int.from_bytes(chunk.data[at : at + 8], "big", signed=True)
                rows[fields.BASE_OFFSET, row] = rows[fields.LAST_OFFSET, row] = offset
    for position, reason in search.order.problems(chunk):
        search.fail(position, reason)
