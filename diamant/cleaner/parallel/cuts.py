"""The cuts between the shares of the first pass. They lie at batches, so that shares have similar sizes even if segments differ.

The offset index gives the start of a batch. If it has no usable entry, the nearest segment boundary is used.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.dirty_range import DirtyStart
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.segment import scan_at_entry

if TYPE_CHECKING:
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.storage.env.env import Env

MORE = 0.03
"""Extra part of the first share: the other processes must hand over keys, and later shares may have more of them."""


class Share(NamedTuple):
    """A range of consecutive batches."""

    start: DirtyStart
    end: int
    """Index of the last segment + 1."""
    stop: int | None
    """End position in the last segment, in bytes; None: its end."""


def shares_of(env: Env, plan: CleanPlan, start: DirtyStart, count: int) -> list[Share]:
    """Cut the log from `start` on into at most `count` shares of similar size, the first one larger (`MORE`)."""
    total = sum(segment.size for segment in plan.segments[start.segment :]) - start.position
    starts = [start]
    for number in range(1, count):
        cut = _cut_near(env, plan, start, int(total * (number + MORE) / (count + MORE)))
        if cut is not None and cut > starts[-1]:
            starts.append(cut)
    shares = [
        Share(one, after.segment + 1, after.position) if after.position else Share(one, after.segment, None)
        for one, after in pairwise(starts)
    ]
    return [*shares, Share(starts[-1], len(plan.segments), None)]


def _cut_near(env: Env, plan: CleanPlan, start: DirtyStart, ahead: int) -> DirtyStart | None:
    """Return a possible start of a share about `ahead` bytes after `start`; None if that is beyond the end of the log."""
    index, position = start.segment, start.position + ahead
    while index < len(plan.segments) and position >= plan.segments[index].size:
        position -= plan.segments[index].size
        index += 1
    if index == len(plan.segments):
        return None
    segment = plan.segments[index]
    if segment.base_offset not in plan.quarantined:
        # The pass itself reports any error in the files.
        with suppress(OSError, CorruptLog):
            cut = _batch_at(env, plan, index, position)
            if cut is not None:
                return cut
    index += position > segment.size // 2
    return DirtyStart(index, 0, plan.segments[index].base_offset) if index < len(plan.segments) else None


def _batch_at(env: Env, plan: CleanPlan, index: int, position: int) -> DirtyStart | None:
    """Return the last indexed batch at or before `position`; None if there is none, or if the index entry is wrong."""
    segment = plan.segments[index]
    path = names.index_file(plan.directory, segment.base_offset)
    entry = OffsetIndex(env, path, segment.base_offset, plan.segment_index_bytes).lookup_position(position)
    if not 0 < entry[1] < segment.size:
        return None
    file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
    try:
        for at, header in scan_at_entry(file, segment.size, *entry) or ():
            is_inside = segment.base_offset < header.base_offset < segment.next_base_offset
            return DirtyStart(index, at, header.base_offset) if is_inside else None
        return None
    finally:
        file.close()
