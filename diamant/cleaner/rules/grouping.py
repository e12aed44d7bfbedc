"""Groups of segments that a round merges into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diamant.cleaner.rules.modes import KAFKA

if TYPE_CHECKING:
    from diamant.storage.segments.log_config import LogConfig
from diamant.cleaner.rules.plan import MAX_RELATIVE_OFFSET, MAX_SEGMENT_BYTES, CleanPlan, SegmentPlan


def segments_to_clean(plan: CleanPlan, end_offset: int) -> tuple[SegmentPlan, ...]:
    """Return the segments that a round rewrites if its map ends at `end_offset` (exclusive).

    They begin with the first segment and end with the segment that holds `end_offset` - 1. A round without a dirty range
    rewrites all segments.
    """
    if not plan.has_dirty_range:
        return plan.segments
    return tuple(segment for segment in plan.segments if segment.base_offset < end_offset)


def group_segments(plan: CleanPlan, segments: Sequence[SegmentPlan]) -> list[tuple[SegmentPlan, ...]]:
    """Divide `segments` into groups, in order; each group is merged into one output (`Cleaner.groupSegmentsBySize`).

    The limits are those of the topic's current configuration, applied to the sizes before cleaning. The first segment of
    a group may have any size. Untouched and quarantined segments belong to no group; a segment that stays apart is a group of
    its own. All of these end the group before them.

    A merged segment expires only when its newest record does. If `expiry_slice_ms` is set, the ages of the segments in a group
    differ by at most this time, so no record outlives `retention.ms` by more. Kafka does not promise this.
    """
    groups: list[tuple[SegmentPlan, ...]] = []
    group = _Group()
    for segment in segments:
        is_left = segment.base_offset in plan.untouched or segment.base_offset in plan.quarantined
        is_alone = is_left or segment.base_offset in plan.apart
        if group.segments and (is_alone or not group.takes(plan, segment, is_last=segment is segments[-1])):
            groups.append(tuple(group.segments))
            group = _Group()
        if not is_alone:
            group.add(segment)
        elif not is_left:
            groups.append((segment,))
    if group.segments:
        groups.append(tuple(group.segments))
    return groups


class _Group:
    """A group under construction, with running totals because it may have thousands of segments."""

    __slots__ = ("_first_ms", "_index_bytes", "_last_ms", "_size", "_time_index_bytes", "segments")

    def __init__(self) -> None:
        self.segments: list[SegmentPlan] = []
        self._size = self._index_bytes = self._time_index_bytes = 0
        self._first_ms: int | None = None
        """The smallest of the segments' largest timestamps, without empty segments."""
        self._last_ms: int | None = None

    def add(self, segment: SegmentPlan) -> None:
        self.segments.append(segment)
        self._size += segment.size
        self._index_bytes += segment.index_bytes
        self._time_index_bytes += segment.time_index_bytes
        if segment.size:
            self._first_ms, self._last_ms = self._span_with(segment)

    def _span_with(self, segment: SegmentPlan) -> tuple[int, int]:
        if self._first_ms is None or self._last_ms is None:
            return segment.largest_timestamp, segment.largest_timestamp
        return min(self._first_ms, segment.largest_timestamp), max(self._last_ms, segment.largest_timestamp)

    def takes(self, plan: CleanPlan, segment: SegmentPlan, *, is_last: bool) -> bool:
        """Return whether the group may take `segment` as its next segment."""
        if self._size + segment.size > plan.segment_bytes:
            return False
        if self._index_bytes + segment.index_bytes > plan.segment_index_bytes:
            return False
        if self._time_index_bytes + segment.time_index_bytes > plan.segment_index_bytes:
            return False
        if plan.expiry_slice_ms is not None and segment.size:
            # Merging must not postpone the expiry of any record by more than `expiry_slice_ms`.
            first_ms, last_ms = self._span_with(segment)
            if last_ms - first_ms > plan.expiry_slice_ms:
                return False
        # Without reading the segment, its last offset is only known to be below the next segment's base (KAFKA-5413).
        following = plan.first_uncleanable_offset if is_last else segment.next_base_offset
        return not segment.size or following - 1 - self.segments[0].base_offset <= MAX_RELATIVE_OFFSET


EXPIRY_SLICES = 20
"""Merging postpones the expiry of a record by at most `retention.ms` divided by this number, which is 5 %."""


def expiry_slice_ms(config: LogConfig, mode: str) -> int | None:
    """Return the largest difference in age between merged segments; None if it is unlimited."""
    if mode == KAFKA or not config.is_deleted or config.retention_ms < 0:
        return None
    return config.retention_ms // EXPIRY_SLICES


def ends_output(plan: CleanPlan, written_bytes: int, following: SegmentPlan) -> bool:
    """Return whether an output of `written_bytes` must end before the group's next source is added (mode prompt only).

    Recompression, or conversion from an old format, can make an output larger than its sources, so that it exceeds the limits
    that were applied to the group. Against the limit for all segments (2 GiB), the next source counts with twice its size.
    """
    if plan.is_kafka:
        return False
    return written_bytes + following.size > plan.segment_bytes or written_bytes + 2 * following.size > MAX_SEGMENT_BYTES
