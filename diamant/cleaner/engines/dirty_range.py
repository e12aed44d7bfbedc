"""The first pass of a round, for all engines: adds the keys of the dirty range to a key map.

Source: Kafka's Cleaner.buildOffsetMap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from diamant.cleaner.rules.plan import aborted_from
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.storage import names
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.segment import scan_from_offset, scan_headers

if TYPE_CHECKING:
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.storage.env.env import Env


class KeyMap(Protocol):
    """The last offset of each key in the dirty range."""

    end_offset: int
    """Last offset that the map covers."""

    def add_segment(self, segment: SegmentPlan, position: int, tracker: TransactionTracker) -> bool:
        """Add the keys of a segment from a byte position on; return True if the map was full before the segment's end."""
        ...

    def finish(self) -> None:
        """Complete the map, after all segments have been added or the map was full."""
        ...

    @property
    def size(self) -> int:
        """Number of keys."""
        ...


KeyMapT = TypeVar("KeyMapT", bound=KeyMap)


class DirtyStart(NamedTuple):
    """The batch with which the first pass begins, at or before the first dirty offset."""

    segment: int
    """Index, in the plan, of the batch's segment."""
    position: int
    """The batch's position in that segment, in bytes."""
    offset: int
    """The batch's base offset, or a lower bound of it; if there is no batch, the next segment's base offset."""


def dirty_start(env: Env, plan: CleanPlan) -> DirtyStart:
    """Find the start of the dirty range. Raises CorruptLog, OSError."""
    index = plan.first_dirty_segment
    segment = plan.segments[index]
    base_offset = segment.base_offset
    is_whole = base_offset >= plan.first_dirty_offset
    # The exact offset is only needed for aborted transactions in mode prompt; otherwise the file need not be opened.
    if base_offset in plan.quarantined or (is_whole and (plan.is_kafka or not plan.has_aborted)):
        return DirtyStart(index, 0, base_offset)
    file = env.open(names.log_file(plan.directory, base_offset), read_only=True)
    try:
        if not is_whole:
            path = names.index_file(plan.directory, base_offset)
            offsets = OffsetIndex(env, path, base_offset, plan.segment_index_bytes)
            for position, header in scan_from_offset(file, segment.size, offsets, plan.first_dirty_offset):
                return DirtyStart(index, position, header.base_offset)
        for _, header in scan_headers(file, 0, segment.size):
            return DirtyStart(index, 0, header.base_offset)
        return DirtyStart(index, 0, segment.next_base_offset)
    finally:
        file.close()


def add_segments(
    work: RoundWork, key_map: KeyMap, start: DirtyStart, end: int | None = None, stop: int | None = None
) -> bool:
    """Add the plan's segments from `start` to the index `end`, exclusive; return True if the map was full before the end.

    With `stop`, which must be the end of a batch, add only the first `stop` bytes of the last segment; the rest may follow later.
    """
    plan = work.plan
    tracker = TransactionTracker()
    aborted = list(aborted_from(plan, start.segment, plan.first_uncleanable_offset))
    if not plan.is_kafka:
        # Kafka also adds transactions that ended before the first batch read here. It then considers the producer's next
        # transaction aborted, so its keys are missing from the map, and older records of these keys stay in the log.
        aborted = [one for one in aborted if one.last_offset >= start.offset]
    tracker.add_aborted(aborted)
    position = start.position
    segments = list(plan.segments[start.segment : end])
    if stop is not None:
        last = segments[-1]
        segments[-1] = replace(last, size=stop, next_base_offset=last.base_offset)
    for segment in segments:
        work.check_done()
        if plan.quarantined:
            tracker.skip_to(segment.base_offset)
        if segment.base_offset not in plan.quarantined and key_map.add_segment(segment, position, tracker):
            return True
        key_map.end_offset = max(key_map.end_offset, segment.next_base_offset - 1)
        position = 0
    return False


def map_dirty_range(
    work: RoundWork,
    key_map: KeyMapT,
    start: DirtyStart | None = None,
    add: Callable[[RoundWork, KeyMapT, DirtyStart], bool] = add_segments,
) -> bool:
    """Add the dirty range to `key_map` with `add`; return True if the map was full before the end of the range.

    `start`: the result of `dirty_start`, if the caller has it.
    """
    plan = work.plan
    if not plan.has_dirty_range:
        return False
    if start is None:
        start = dirty_start(work.env, plan)
    is_full = add(work, key_map, start)
    key_map.finish()
    work.stats.map_utilization = plan.map_utilization(key_map.size)
    return is_full
