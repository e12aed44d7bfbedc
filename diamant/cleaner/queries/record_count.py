"""Record counts of a partition by kind: bounds at once, from headers, or exact counts, from its keys.

Every record is one of these; transaction markers are not records:

    live           the latest of its key, and has a value
    tombstone      the latest of its key, and has none
    superseded     a later record has its key
    other          aborted, of an open transaction, or without a key

The bounds follow from what rounds leave: below the checkpoint each key has one record, and each record above it can add a key,
supersede one, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.on_demand.record_counts import SegmentCounts
from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.queries.record_counter import RecordCounter
from diamant.cleaner.segments.sound_rows import PieceReader
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants import counts

MAX_KEY_BYTES = 64 * 1024 * 1024
"""Memory for the keys of a partition; more of them spill to temporary files (`key_counts`)."""
MAX_PROBLEMS = 100


class CountRange(NamedTuple):
    """Lower and upper bound of a number."""

    least: int = 0
    most: int = 0

    def plus(self, other: CountRange) -> CountRange:
        """Return the sum."""
        return CountRange(self.least + other.least, self.most + other.most)


def exactly(count: int) -> CountRange:
    """Return the range of a known number."""
    return CountRange(count, count)


class RecordCount(NamedTuple):
    """The counts of one partition, or of several; see the module."""

    records: CountRange = CountRange()
    live: CountRange = CountRange()
    superseded: CountRange = CountRange()
    tombstones: CountRange = CountRange()
    other: CountRange = CountRange()
    markers: CountRange = CountRange()

    def plus(self, more: RecordCount) -> RecordCount:
        """Return the sums."""
        return RecordCount(*(one.plus(other) for one, other in zip(self, more, strict=True)))

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for JSON: a lower and an upper bound for each kind."""
        return {name: bounds._asdict() for name, bounds in zip(self._fields, self, strict=True)}


def count_by_headers(clean: SegmentCounts, dirty: SegmentCounts, uncounted_offsets: int = 0) -> RecordCount:
    """Return bounds from the counts of the clean part and of the rest.

    `uncounted_offsets`: number of deleted offsets at the beginning of the log that the counts may still include.
    """
    added = dirty.records
    gone = min(clean.records + added, uncounted_offsets)
    lost = added + gone
    return RecordCount(
        records=CountRange(clean.records + added - gone, clean.records + added),
        live=CountRange(max(0, clean.values - lost), clean.values + added),
        superseded=CountRange(0, added),
        tombstones=CountRange(max(0, clean.tombstones - lost), clean.tombstones + added),
        other=CountRange(0, added),
        markers=CountRange(max(0, clean.markers + dirty.markers - uncounted_offsets), clean.markers + dirty.markers),
    )


def count_by_offsets(offsets: int) -> RecordCount:
    """Return bounds of a partition of which only the number of offsets is known."""
    return RecordCount(*(CountRange(0, offsets) for _ in RecordCount._fields))


def count_by_keys(
    segments: Iterable[OpenSegment],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    max_bytes: int = MAX_KEY_BYTES,
    is_compiled: bool = ARE_COMPILED,
) -> tuple[RecordCount, tuple[Problem, ...]]:
    """Read everything and count exactly; unreadable batches become problems and do not count. Any thread.

    `check_done` raises to stop.
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
        keys = census.finish()
    sums = counter.sums
    counted = RecordCount(
        exactly(sums[counts.RECORDS] - sums[counts.BELOW_LOG_START]),
        exactly(keys.live[0]),
        exactly(keys.superseded[0]),
        exactly(keys.tombstones[0]),
        exactly(sums[counts.KEYLESS] + sums[counts.ABORTED] + sums[counts.UNDECIDED]),
        exactly(sums[counts.MARKERS] - sums[counts.MARKERS_BELOW]),
    )
    return counted, tuple(problems)
