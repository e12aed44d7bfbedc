"""The latest committed record of each key in the files of one moment: what a table has whose reader has read all of a log.

Two passes, as a round of the cleaner has them: the first puts the offset of each key's last record into the cleaner's map, the
second yields the records at these offsets, ascending. Aborted records, those from the last stable offset on, those without a
key and those below the log start are not looked at; a tombstone supersedes, and is yielded only if it is asked for. The
data source `kafka-log` says the same with `latest_per_key`.

Memory: the map's; what does not fit goes to a temporary file without a name (`offset_map`). And one batch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from hashlib import blake2b
from typing import NoReturn

import numpy as np

from diamant.cleaner.engines.offset_map import LatestOffsets, OffsetMap, open_spill_file
from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.segments.tolerant_reader import Batch, Problem
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog

MAP_BYTES = 64 * 1024 * 1024
_HASHES_AT_ONCE = 8192


def latest_records(
    segments: Callable[[], Iterable[OpenSegment]],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    last_stable_offset: int,
    *,
    with_tombstones: bool = False,
    check_done: Callable[[], None] = lambda: None,
    map_bytes: int = MAP_BYTES,
) -> Generator[Record, None, None]:
    """Yield the records; see the module. `segments` is called twice, `check_done` raises what is to end it. Any thread.

    CorruptLog if something cannot be read: the latest record would be unknown.
    """

    def batches() -> Iterator[tuple[OpenSegment, Batch]]:
        for segment in segments():
            for batch in segment.batches(_fail):
                check_done()
                header = batch.header
                if header.base_offset >= last_stable_offset:
                    return
                is_data = not header.is_control and header.last_offset >= log_start_offset
                if is_data and outcomes.of(header) == Outcome.COMMITTED:
                    yield segment, batch

    env = RealEnv()
    with tempfile.TemporaryDirectory(prefix="diamant-latest-") as directory:
        offsets = OffsetMap(os.urandom(16), memory_bytes=map_bytes, spill=lambda: open_spill_file(env, directory))
        try:
            latest = _latest_offsets(batches(), offsets, log_start_offset)
            for segment, batch in batches():
                kept = _kept(latest, batch)
                for record in _records(segment, batch) if kept else ():
                    if record.offset in kept and (with_tombstones or record.value is not None):
                        yield record
        finally:
            offsets.close()


def _latest_offsets(
    batches: Iterable[tuple[OpenSegment, Batch]], offsets: OffsetMap, log_start_offset: int
) -> LatestOffsets:
    hasher = blake2b(key=os.urandom(32), digest_size=16)
    hashes: list[bytes] = []
    found: list[int] = []

    def add() -> None:
        tuples = np.empty((len(found), 3), np.uint64)
        tuples[:, :2] = np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2)
        tuples[:, 2] = found
        offsets.add(tuples, len(found))
        hashes.clear()
        found.clear()

    for segment, batch in batches:
        for record in _records(segment, batch):
            if record.key is not None and record.offset >= log_start_offset:
                of_key = hasher.copy()
                of_key.update(record.key)
                hashes.append(of_key.digest())
                found.append(record.offset)
        if len(found) >= _HASHES_AT_ONCE:
            add()
    add()
    return offsets.latest()


def _kept(latest: LatestOffsets, batch: Batch) -> frozenset[int]:
    first, last = batch.header.base_offset, batch.header.last_offset
    window = latest.window(first, last)
    start, end = np.searchsorted(window, first), np.searchsorted(window, last, side="right")
    return frozenset(window[start:end].tolist())


def _records(segment: OpenSegment, batch: Batch) -> Iterator[Record]:
    try:
        yield from batch.records()
    except CorruptBatch as error:
        raise CorruptLog(segment.path, batch.position, error.reason) from error


def _fail(problem: Problem) -> NoReturn:
    raise CorruptLog(problem.path, problem.position or 0, problem.reason)
