"""Finds the tombstones of a log that are the latest record of their key.

Memory: `MAX_TOMBSTONES` of them, some 400 bytes each; keys are known by 128 bits of BLAKE2b under a random key. Further ones are
counted, at least those that are written while so many others are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from diamant.cleaner.explain.key_scan import FoundRecord, OpenSegment, Outcomes, found_record
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import Outcome
from diamant.protocol.errors import CorruptBatch

MAX_TOMBSTONES = 100_000
_HASH_BYTES = 16


@dataclass(slots=True)
class TombstoneScan:
    """What was found; ascending, records without their keys (but see `keeps_key`)."""

    tombstones: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0
    problems: list[Problem] = field(default_factory=list)
    segments_read: int = 0
    bytes_read: int = 0


def scan_tombstones(
    segments: Iterable[OpenSegment],
    outcomes: Outcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    keeps_key: Callable[[bytes], bool] | None = None,
) -> TombstoneScan:
    """Read everything and return the tombstones that no later committed record of their key follows. Any thread.

    `keeps_key`: of which keys the tombstones are returned with them.
    """
    found = TombstoneScan()
    hasher = blake2b(key=os.urandom(32), digest_size=_HASH_BYTES)
    latest: dict[bytes, FoundRecord] = {}
    for segment in segments:
        for batch in segment.batches(found.problems.append):
            check_done()
            header = batch.header
            if header.is_control or not header.record_count or outcomes.of(header) != Outcome.COMMITTED:
                continue
            try:
                for record in batch.records():
                    if (
                        record.key is None
                        or record.offset < log_start_offset
                        or (record.value is not None and not latest)
                    ):
                        continue
                    of_key = hasher.copy()
                    of_key.update(record.key)
                    hashed = of_key.digest()
                    if latest.pop(hashed, None) is None and len(latest) >= MAX_TOMBSTONES:
                        found.left_out += record.value is None
                    elif record.value is None:
                        with_key = keeps_key is not None and keeps_key(record.key)
                        latest[hashed] = found_record(record, segment, batch, outcomes, with_key=with_key)
            except CorruptBatch as error:
                found.problems.append(Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))
        found.segments_read += 1
        found.bytes_read += segment.size
        advance(segment.size)
    found.tombstones = sorted(latest.values(), key=lambda record: record.offset)
    return found
