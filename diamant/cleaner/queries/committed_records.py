"""The committed records in a snapshot of a log's files: all that a `read_committed` consumer reads, from the log start on.

Memory: one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.segments.sound_rows import PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import fail
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import CorruptLog


def committed_records(
    segments: Callable[[], Iterable[OpenSegment]],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    last_stable_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
) -> Generator[Record]:
    """Yield the records in offset order. Callable from any thread.

    Raises CorruptLog for an unreadable batch; `check_done` may raise to stop.
    """
    reader = PieceReader(is_compiled=False)
    for segment in segments():
        for batch, outcome in segment.decided(reader, outcomes, fail):
            check_done()
            assert not isinstance(batch, SoundRows)
            header = batch.header
            if header.base_offset >= last_stable_offset:
                return
            if header.is_control or outcome != Outcome.COMMITTED or header.last_offset < log_start_offset:
                continue
            try:
                yield from (record for record in batch.records() if record.offset >= log_start_offset)
            except CorruptBatch as error:
                raise CorruptLog(segment.path, batch.position, error.reason) from error
