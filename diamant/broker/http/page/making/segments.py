"""The segments of a partition for the page's table: sizes, counts by kind, states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import basename
from typing import NamedTuple

from diamant.broker.operations.figures.strip_values import LABELS, drawn_counts, sums
from diamant.cleaner.queries.segment_census import SegmentRecords
from diamant.cleaner.rules.record_kinds import counted
from diamant.cleaner.service.metrics import RoundStatus
from diamant.storage.log.log import Log
from diamant.storage.names import log_file
from diamant.words import counted as word
from diamant.words import moment


class ShownSegment(NamedTuple):
    """A segment in the table."""

    base_offset: int
    size: int
    newest_ms: int
    counts: Mapping[str, int] | None
    """Counts of records by kind; None if the records were not counted since the segment changed."""
    state: str
    is_active: bool
    is_dirty: bool
    is_in_round: bool
    is_quarantined: bool
    """True if the segment cannot be read; rounds skip it."""


def shown_segments(
    log: Log,
    known: Mapping[int, SegmentRecords],
    round_: RoundStatus | None,
    first_dirty: int,
    now_ms: int,
    quarantined: Sequence[str] = (),
) -> Iterator[ShownSegment]:
    """Yield the segments in ascending order. For `quarantined`, see `PartitionStatus`."""
    for segment in log.segments:
        one = known.get(segment.base_offset)
        if not segment.size:
            one = SegmentRecords(segment.base_offset, 0)
        is_current = one is not None and one.size == segment.size
        is_active = segment is log.active
        is_dirty = segment.base_offset >= first_dirty
        is_in_round = round_ is not None and round_.first_offset <= segment.base_offset < round_.end_offset
        words = ["active"] if is_active else ["dirty" if is_dirty else "cleaned"] if log.config.is_compacted else []
        if is_in_round:
            words.append("in the current round")
        is_quarantined = any(one.startswith(basename(log_file("", segment.base_offset))) for one in quarantined)
        if is_quarantined:
            words.append("in quarantine: it cannot be read")
        if is_current and one is not None and one.last_horizon_ms is not None:
            words.append(_horizon(one, now_ms))
        yield ShownSegment(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp,
            drawn_counts(one, now_ms) if is_current and one is not None else None,
            ", ".join(words),
            is_active,
            is_dirty,
            is_in_round,
            is_quarantined,
        )


def _horizon(one: SegmentRecords, now_ms: int) -> str:
    assert one.first_horizon_ms is not None
    assert one.last_horizon_ms is not None
    if one.last_horizon_ms <= now_ms:
        return "all tombstones have expired"
    if one.first_horizon_ms <= now_ms:
        return f"some tombstones have expired, the last one expires at {moment(one.last_horizon_ms)}"
    return f"the first tombstone expires at {moment(one.first_horizon_ms)}"


def figures_of(segments: Sequence[ShownSegment]) -> str:
    left = sum(one.counts is None for one in segments)
    if left == len(segments):
        return ""
    text = ", ".join(counted(count, LABELS[kind]) for kind, count in sums(segments).items())
    return (text or "no records") + (f"; {word(left, 'segment')} not counted" if left else "")
