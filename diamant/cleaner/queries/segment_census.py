"""Exact counts of a partition's records by kind and segment: the counts of `count_by_keys` for each segment.

A record is counted in its own segment, and superseded by a later record of its key in any segment of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.on_demand.header_counts import SegmentCounter
from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.queries.partition_count import MAX_KEY_BYTES, MAX_PROBLEMS
from diamant.cleaner.queries.record_counter import RecordCounter
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.sound_rows import PieceReader
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError


class SegmentRecords(NamedTuple):
    """The records of one segment by kind, except those below the log start."""

    base_offset: int
    size: int
    """Size of the file at the time of the count, in bytes."""
    kinds: Kinds = Kinds()
    first_horizon_ms: int | None = None
    """The earliest delete horizon of the tombstones, including superseded ones; None if no tombstone has a horizon."""
    last_horizon_ms: int | None = None


class SegmentCensus(NamedTuple):
    """The segments of a partition, ascending, and the problems that occurred while they were read."""

    segments: tuple[SegmentRecords, ...]
    problems: tuple[Problem, ...] = ()


def count_by_segment(
    env: Env,
    segments: Iterable[OpenSegment],
    most_segments: int,
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    max_bytes: int = MAX_KEY_BYTES,
    is_compiled: bool = ARE_COMPILED,
) -> SegmentCensus:
    """Count at most `most_segments` ascending segments. Callable from any thread; `check_done` may raise to stop."""
    problems: list[Problem] = []

    def report(problem: Problem) -> None:
        if len(problems) < MAX_PROBLEMS:
            problems.append(problem)

    read = []
    with KeyCensus(max(1, most_segments), max_bytes=max_bytes, is_one_log=True, is_compiled=is_compiled) as census:
        reader = PieceReader(is_compiled=is_compiled)
        for number, segment in enumerate(segments):
            counter = RecordCounter(census, number, log_start_offset, report)
            for piece, outcome in segment.decided(reader, outcomes, report):
                check_done()
                counter.add(segment.path, piece, outcome)
            counter.finish()
            read.append((segment.path, SegmentRecords(segment.base_offset, segment.size, counter.kinds())))
            advance(segment.size)
        keys = census.finish()
    found, horizons = [], SegmentCounter()
    for (path, one), of_keys in zip(read, keys.kinds, strict=False):
        one = one._replace(kinds=one.kinds + of_keys)
        found.append(_with_horizons(horizons, env, path, one, log_start_offset) if one.kinds.tombstones else one)
    return SegmentCensus(tuple(found), tuple(problems))


def _with_horizons(
    counter: SegmentCounter, env: Env, path: str, one: SegmentRecords, log_start_offset: int
) -> SegmentRecords:
    try:
        counted = counter.count(env, path, one.size, log_start_offset)
    except (StorageError, OSError):
        return one  # the fault is already among the problems, or the file is gone
    return one._replace(first_horizon_ms=counted.first_horizon_ms, last_horizon_ms=counted.last_horizon_ms)
