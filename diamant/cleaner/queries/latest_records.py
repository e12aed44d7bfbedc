"""The latest committed record of each key in a snapshot of a log's files: the table that a reader of the whole log builds.

There are two passes, as in a cleaning round: the first puts the offset of each key's last record into the cleaner's map, the
second yields the records at these offsets in ascending order. Aborted records, records from the last stable offset on, records
without a key and records below the log start are skipped. A tombstone supersedes earlier records, but is yielded only if
`tombstones` is True. The data source `kafka-log` gives the same result with `latest_per_key`.

Memory: one batch, and the map, whose overflow goes to an unnamed temporary file (`offset_map`).
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator

from diamant.cleaner.engines.offset_map import LatestOffsets, OffsetMap, open_spill_file
from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.queries.key_tables import ENTRY
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import Piece, PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import Batch, fail
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.kernels import numbers
from diamant.kernels.constants.counts import COUNTS, NO_SOURCE
from diamant.kernels.constants.fields import BASE_OFFSET, BUFFER_FULL, CORRUPT, LAST_OFFSET, RECORD_COUNT, STEP
from diamant.kernels.counting import count_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog

MAP_BYTES = 64 * 1024 * 1024
_TUPLES_AT_ONCE = 8192


def latest_records(
    segments: Callable[[], Iterable[OpenSegment]],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    last_stable_offset: int,
    *,
    tombstones: bool = False,
    check_done: Callable[[], None] = lambda: None,
    map_bytes: int = MAP_BYTES,
) -> Generator[Record, None, None]:
    """Yield the latest records (see the module). Callable from any thread. `segments` is called twice.

    Raises CorruptLog for an unreadable batch, because the latest records would be unknown; `check_done` may raise to stop.
    """

    def pieces(reader: PieceReader) -> Iterator[tuple[OpenSegment, Piece]]:
        for segment in segments():
            for piece, outcome in segment.decided(reader, outcomes, fail):
                check_done()
                if isinstance(piece, SoundRows):
                    below = piece.below(last_stable_offset)
                    yield segment, below
                    if below.end < piece.end:
                        return
                    continue
                header = piece.header
                if header.base_offset >= last_stable_offset:
                    return
                if not header.is_control and header.last_offset >= log_start_offset and outcome == Outcome.COMMITTED:
                    yield segment, piece

    env = RealEnv()
    with tempfile.TemporaryDirectory(prefix="diamant-latest-") as directory:
        offsets = OffsetMap(os.urandom(16), memory_bytes=map_bytes, spill=lambda: open_spill_file(env, directory))
        try:
            latest = _latest_offsets(pieces(PieceReader()), offsets, log_start_offset)
            for segment, piece in pieces(PieceReader(with_records=False)):
                for batch, kept in _batches_with(latest, piece):
                    for record in _records(segment, batch):
                        if record.offset in kept and (tombstones or record.value is not None):
                            yield record
        finally:
            offsets.close()


def _latest_offsets(
    pieces: Iterable[tuple[OpenSegment, Piece]], offsets: OffsetMap, log_start_offset: int
) -> LatestOffsets:
    hash_key = RandomHash(is_compiled=True)
    tuples = numbers("Q", _TUPLES_AT_ONCE, 3)
    sums = array("q", bytes(8 * COUNTS))

    def add(segment: OpenSegment, batch: Batch) -> None:
        found = [
            ENTRY.pack(hash_key.of(record.key), record.offset)
            for record in _records(segment, batch)
            if record.key is not None and record.offset >= log_start_offset
        ]
        if found:
            offsets.add(memoryview(b"".join(found)).cast("Q", (len(found), 3)), len(found))

    for segment, piece in pieces:
        if isinstance(piece, Batch):
            add(segment, piece)
            continue
        chunk, row = piece.chunk, piece.first
        while row < piece.end:
            fault, row, count = count_records(
                chunk.data,
                piece.unpacked,
                chunk.rows,
                row,
                piece.end,
                log_start_offset,
                *hash_key.words,
                NO_SOURCE,
                tuples,
                0,
                sums,
            )
            offsets.add(tuples, count)
            if fault == BUFFER_FULL and chunk.rows[RECORD_COUNT, row] > len(tuples):
                tuples = numbers("Q", chunk.rows[RECORD_COUNT, row], 3)
            elif fault == CORRUPT:
                if chunk.rows[STEP, row] == Outcome.COMMITTED:
                    add(segment, piece.batch(row))
                row += 1
    return offsets.latest()


def _batches_with(latest: LatestOffsets, piece: Piece) -> Iterator[tuple[Batch, frozenset[int]]]:
    """Yield each batch that has latest records, with the offsets of these records."""
    if isinstance(piece, Batch):
        offsets = [(piece.header.base_offset, piece.header.last_offset)]
    else:
        columns = piece.chunk.column(BASE_OFFSET), piece.chunk.column(LAST_OFFSET)
        offsets = [*zip(*(column[piece.first : piece.end] for column in columns), strict=True)]
    if offsets:
        window = latest.window(offsets[0][0], offsets[-1][1])
        end = 0
        for index, (first, last) in enumerate(offsets):
            start = bisect_left(window, first, end)
            end = bisect_right(window, last, start)
            if start < end:
                batch = piece if isinstance(piece, Batch) else piece.batch(piece.first + index)
                yield batch, frozenset(window[start:end])


def _records(segment: OpenSegment, batch: Batch) -> Iterator[Record]:
    try:
        yield from batch.records()
    except CorruptBatch as error:
        raise CorruptLog(segment.path, batch.position, error.reason) from error
