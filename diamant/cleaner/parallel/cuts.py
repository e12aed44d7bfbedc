"""Cuts the log into the shares of the first pass. A share can begin at any batch, so shares have similar sizes.

The offset index shows where a batch begins. If it has no usable entry, the cut is made at the nearest segment boundary.
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

BETWEEN = 0.2
"""Fraction of the log that is kept for processes that finish early, because parts of a log and processors differ in speed."""
PIECES = 8
"""Maximum number of pieces of this fraction per process."""


class Share(NamedTuple):
    """A range of consecutive batches."""

    start: DirtyStart
    end: int
    """Index of the last segment, plus one."""
    stop: int | None
    """End position in the last segment, in bytes; None for the segment's end."""


class Shares(NamedTuple):
    """All batches from the start of the dirty range on, divided into consecutive shares in this order."""

    first: Share
    """The share of this process."""
    pieces: list[Share]
    """Small shares that any process may take: this process from the front, the others from the back."""
    others: list[Share]
    """One share for each other process."""


def shares_of(env: Env, plan: CleanPlan, start: DirtyStart, processes: int, piece_bytes: int) -> Shares:
    """Cut the log from `start` on into shares of similar size, and pieces of at least `piece_bytes`.

    There are fewer of them if the log cannot be cut at enough places.
    """
    total = sum(segment.size for segment in plan.segments[start.segment :]) - start.position
    count = min(PIECES * processes, int(BETWEEN * total) // piece_bytes)
    size = total * (1 - BETWEEN * bool(count)) / processes
    sizes = [*[BETWEEN * total / max(1, count)] * count, *[size] * (processes - 1)]
    starts, pieces, ahead = [start], 0, size
    for index, following in enumerate(sizes):
        cut = _cut_near(env, plan, start, int(ahead))
        if cut is not None and cut > starts[-1]:
            starts.append(cut)
            pieces += index < count
        ahead += following
    shares = [
        Share(dirty_start, after.segment + 1, after.position)
        if after.position
        else Share(dirty_start, after.segment, None)
        for dirty_start, after in pairwise(starts)
    ]
    shares.append(Share(starts[-1], len(plan.segments), None))
    return Shares(shares[0], shares[1 : 1 + pieces], shares[1 + pieces :])


def _cut_near(env: Env, plan: CleanPlan, start: DirtyStart, ahead: int) -> DirtyStart | None:
    """Return a possible start of a share about `ahead` bytes after `start`; None if it would be beyond the end of the log."""
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
    """Return the last indexed batch at or before `position`; None if there is none, or if its index entry is wrong."""
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
