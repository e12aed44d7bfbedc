"""Record counts of a partition by kind: quick bounds from headers, or exact counts from keys.

Records below the log start are not counted. The bounds follow from the result of rounds: below the checkpoint each key has one
record, and each record above it can add a key, supersede another record, or do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.on_demand.header_counts import SegmentCounts
from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.queries.record_counter import RecordCounter
from diamant.cleaner.rules.record_kinds import SHOWN, KindBounds, Kinds
from diamant.cleaner.segments.sound_rows import PieceReader
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.kernels import ARE_COMPILED

MAX_KEY_BYTES = 64 * 1024 * 1024
"""Memory for the keys of a partition; further keys spill to temporary files (`key_counts`)."""
MAX_PROBLEMS = 100


def count_by_headers(clean: SegmentCounts, dirty: SegmentCounts, uncounted_offsets: int = 0) -> KindBounds:
    """Return bounds from the counts of the clean and the dirty part.

    `uncounted_offsets`: number of deleted offsets at the beginning of the log that the counts may still include.
    """
    added, markers = dirty.records, clean.markers + dirty.markers
    gone = min(clean.records + added, uncounted_offsets)
    lost = added + gone
    least = Kinds(
        records=clean.records + added - gone,
        live=max(0, clean.values - lost),
        tombstones=max(0, clean.tombstones - lost),
        markers=max(0, markers - uncounted_offsets),
    )
    most = _unknown(added) + Kinds(clean.records, clean.values, tombstones=clean.tombstones)
    return KindBounds(least, replace(most, markers=markers))


def count_by_offsets(offsets: int) -> KindBounds:
    """Return bounds for a partition of which only the number of offsets is known."""
    return KindBounds(Kinds(), _unknown(offsets))


def _unknown(count: int) -> Kinds:
    return Kinds(**dict.fromkeys(SHOWN, count))


def count_by_keys(
    segments: Iterable[OpenSegment],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    max_bytes: int = MAX_KEY_BYTES,
    is_compiled: bool = ARE_COMPILED,
) -> tuple[Kinds, tuple[Problem, ...]]:
    """Read all batches and return exact counts and problems. Unreadable batches are problems, and are not counted.

    Callable from any thread. `check_done` may raise to stop.
    """
    problems: list[Problem] = []

    def report(problem: Problem) -> None:
        if len(problems) < MAX_PROBLEMS:
            problems.append(problem)

    with KeyCensus(1, max_bytes=max_bytes, is_compiled=is_compiled) as census:
        counter = RecordCounter(census, 0, log_start_offset, report)
        reader = PieceReader(is_compiled=is_compiled)
        for segment in segments:
            for piece, outcome in segment.decided(reader, outcomes, report):
                check_done()
                counter.add(segment.path, piece, outcome)
            advance(segment.size)
        counter.finish()
        counted = counter.kinds() + census.finish().kinds[0]
    return counted, tuple(problems)
