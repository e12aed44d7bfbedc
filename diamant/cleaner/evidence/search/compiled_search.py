"""The compiled search of a file of batches: where nothing is to be found at the speed of memory, else plainly.

Memory: that of `row_reader`, and what a chunk decompresses to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.evidence.search.file_census import add_to, codec_name
from diamant.cleaner.evidence.search.needles import Windows
from diamant.cleaner.evidence.search.record_search import (
    BatchBytes,
    FileSearch,
    batch_header,
    search_plain,
)
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.kernels.constants import fields
from diamant.kernels.constants.search import CLEAN, LOOK_AGAIN, SEARCH
from diamant.kernels.search import search_rows
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import File
from diamant.storage.errors import CorruptLog

_NOWHERE = -1, -1

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CompiledSearch:
    """Buffers of one thread."""

    def __init__(self) -> None:
        self._reader = ChunkReader()
        self._unpacker = Unpacker()

    def search(self, search: FileSearch, file: File, end: int, position: int = 0) -> None:
        """Search a file of batches from byte `position`, where one begins, up to `end`; the subject has `walked_keys`."""
        walked = search.subject.walked_keys(search.topic)
        assert walked is not None
        keys = np.frombuffer(b"".join(walked) + b"\0", np.uint8)
        bounds = np.cumsum([0, *map(len, walked)], dtype=np.int64)
        windows = search.subject.needles.windows
        amounts = np.zeros((fields.CODEC_MASK + 1, 3), np.int64)
        try:
            for chunk in self._reader.chunks(file, position, end):
                position = chunk.position
                search.check()
                self._search_chunk(search, chunk, keys, bounds, windows, amounts)
                position += chunk.size
        except CorruptLog:
            # From here on the plain search says what is wrong.
            search_plain(search, file, end, position)
        finally:
            for codec in np.flatnonzero(amounts[:, 0]).tolist():
                add_to(search.amounts, codec_name(2, codec), *amounts[codec].tolist())

    def _search_chunk(
        self,
        search: FileSearch,
        chunk: Rows,
        keys: NDArray[np.uint8],
        bounds: NDArray[np.int64],
        windows: Windows,
        amounts: NDArray[np.int64],
    ) -> None:
        rows, count = chunk.rows, chunk.count
        _follow(search, chunk)
        rows[fields.STEP, :count] = SEARCH
        if chunk.together & (fields.LEGACY | fields.CONTROL):
            is_plain = (rows[fields.MAGIC, :count] == 2) & (rows[fields.ATTRIBUTES, :count] & fields.CONTROL == 0)
            rows[fields.STEP, :count][~is_plain] = LOOK_AGAIN
        self._unpacker.clear()
        if chunk.together & fields.CODEC_MASK:
            self._unpack(chunk)
        batches, records = search_rows(chunk.data, self._unpacker.buffer, rows, count, keys, bounds, *windows, amounts)
        search.counts.batches += batches
        search.counts.compiled_batches += batches
        search.counts.records += records
        search.counts.decompressed_bytes += self._unpacker.at
        if batches < count:
            self._look_again(search, chunk)

    def _unpack(self, chunk: Rows) -> None:
        """Decompress the batches that are to be searched; one that cannot be is looked at again."""
        rows, data, unpack = chunk.rows, chunk.data.data, self._unpacker.unpack
        table = rows[:, : chunk.count]
        codecs = table[fields.ATTRIBUTES] & fields.CODEC_MASK
        packed = np.flatnonzero((table[fields.STEP] == SEARCH) & (codecs != 0) & (table[fields.RECORD_COUNT] != 0))
        columns = codecs[packed], table[fields.PAYLOAD_START, packed], table[fields.PAYLOAD_END, packed]
        places = []
        for codec, start, end in zip(*(column.tolist() for column in columns), strict=True):
            try:
                places.append(unpack(codec, data[start:end], MAX_BATCH_BYTES, ignores_rest=False))
            except CorruptBatch:
                places.append(_NOWHERE)
        table[fields.IS_UNPACKED, packed] = 1
        found = np.array(places, np.int64).reshape(-1, 2)
        table[fields.PAYLOAD_START, packed], table[fields.PAYLOAD_END, packed] = found.T
        table[fields.STEP, packed[found[:, 0] < 0]] = LOOK_AGAIN

    def _look_again(self, search: FileSearch, chunk: Rows) -> None:
        """Look at the batches that are not clean as the plain search does."""
        rows, data = chunk.rows, chunk.data.data
        for row in np.flatnonzero(rows[fields.STEP, : chunk.count] != CLEAN).tolist():
            at, size = int(rows[fields.POSITION, row]), int(rows[fields.SIZE, row])
            batch = bytes(data[at : at + size])
            try:
                search.look_at(BatchBytes(chunk.position + at, batch_header(batch, 0), batch, 0))
            except CorruptBatch as error:
                search.fail(chunk.position + at, error.reason)
                search.find_raw(batch, chunk.position + at)


def _follow(search: FileSearch, chunk: Rows) -> None:
    """Hold the offsets of a chunk's batches against one another."""
    if search.order is None:
        return
    rows = chunk.rows[:, : chunk.count]
    firsts, lasts = rows[fields.BASE_OFFSET], rows[fields.LAST_OFFSET]
    if chunk.together & fields.LEGACY:
        firsts, lasts = firsts.copy(), lasts.copy()
        for row in np.flatnonzero(rows[fields.MAGIC] < 2).tolist():
            # A wrapper's offset is that of the last entry in it; the first is not worth decompressing it.
            at = int(rows[fields.POSITION, row])
            firsts[row] = lasts[row] = int.from_bytes(bytes(chunk.data.data[at : at + 8]), "big", signed=True)
    for position, reason in search.order.problems(rows[fields.POSITION] + chunk.position, firsts, lasts):
        search.fail(position, reason)
