"""Record counts of a partition by kind: bounds at once, told by headers, or exact, told by its keys.

Every record is one of these; markers of transactions are none:

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
"""Memory for the keys of a partition; what does not fit goes to temporary files (`key_counts`)."""
MAX_PROBLEMS = 100


class CountRange(NamedTuple):
    """A number, or what is known of it."""

    least: int = 0
    most: int = 0

    def plus(self, other: CountRange) -> CountRange:
        """Return the sum."""
        return CountRange(self.least + other.least, self.most + other.most)


def exactly(count: int) -> CountRange:
    """Return a number that is known."""
    return CountRange(count, count)


class RecordCount(NamedTuple):
    """Of a partition, or of several; see the module."""

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
        """Return it as JSON has it: of each kind at least so many and at most so many."""
        return {name: bounds._asdict() for name, bounds in zip(self._fields, self, strict=True)}


def count_by_headers(clean: SegmentCounts, dirty: SegmentCounts, uncounted_offsets: int = 0) -> RecordCount:
    """Return bounds, given what the clean part and the others hold.

    `uncounted_offsets`: so many offsets at the begin of the log are deleted, and yet may be among what was counted.
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
    """Return bounds of a partition of which nothing is known but how many offsets it has."""
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
    """Read everything and count exactly; batches that cannot be read are problems, and not counted. Any thread.

    `check_done` raises what is to end it.
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
