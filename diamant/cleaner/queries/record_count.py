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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.on_demand.record_counts import SegmentCounts
from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.errors import CorruptBatch

MAX_KEY_BYTES = 64 * 1024 * 1024
"""Memory for the keys of a partition; what does not fit goes to temporary files (`key_counts`)."""
MAX_PROBLEMS = 100
_HASHES_AT_ONCE = 8192


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


@dataclass(slots=True)
class _Kinds:
    """The sums of a pass, apart from keys."""

    records: int = 0
    other: int = 0
    markers: int = 0
    problems: list[Problem] = field(default_factory=list)

    def report(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def count_by_keys(
    segments: Iterable[OpenSegment],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    check_done: Callable[[], None] = lambda: None,
    advance: Callable[[int], object] = lambda count: None,
    max_bytes: int = MAX_KEY_BYTES,
) -> tuple[RecordCount, tuple[Problem, ...]]:
    """Read everything and count exactly; batches that cannot be read are problems, and not counted. Any thread.

    `check_done` raises what is to end it.
    """
    kinds = _Kinds()
    hashes: list[bytes] = []
    tombstones = bytearray()
    with KeyCensus(1, max_bytes=max_bytes) as census:
        for segment in segments:
            for batch in segment.batches(kinds.report):
                check_done()
                header = batch.header
                if header.last_offset < log_start_offset:
                    continue
                if header.is_control:
                    kinds.markers += header.record_count
                    continue
                is_committed = outcomes.of(header) == Outcome.COMMITTED
                try:
                    found = [
                        (record.key if is_committed else None, record.value is None)
                        for record in batch.records()
                        if record.offset >= log_start_offset
                    ]
                except CorruptBatch as error:
                    kinds.report(Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))
                    continue
                keyed = [(key, is_tombstone) for key, is_tombstone in found if key is not None]
                kinds.records += len(found)
                kinds.other += len(found) - len(keyed)
                hashes += [census.hash(key) for key, _ in keyed]
                tombstones += bytes(is_tombstone for _, is_tombstone in keyed)
                if len(hashes) >= _HASHES_AT_ONCE:
                    census.add(0, hashes, tombstones)
                    hashes, tombstones = [], bytearray()
            advance(segment.size)
        census.add(0, hashes, tombstones)
        keys = census.finish()
    counted = RecordCount(
        exactly(kinds.records),
        exactly(keys.live[0]),
        exactly(keys.superseded[0]),
        exactly(keys.tombstones[0]),
        exactly(kinds.other),
        exactly(kinds.markers),
    )
    return counted, tuple(kinds.problems)
