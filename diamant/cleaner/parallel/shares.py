"""The first pass of a round in shares: as many runs of segments as there are processes, each with a map of its own.

This process maps the first share. Then it takes over the others in their order, key by key, so that later offsets win. At a
share that its process could not map, or whose keys might fill the map, it continues by itself: the map is then what it
would be had there been no shares.

Memory: in each child a map of the round's size at most, which is empty at first, and for its keys as much again, shared with
this process; pages come as they are written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.dirty_range import DirtyStart, add_segments
from diamant.cleaner.engines.offset_map import shared_tuples
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.parallel.fork import Fork, ForkFailed
from diamant.cleaner.rules.result import CleanStats, never_done, no_throttle
from diamant.cleaner.segments.row_records import RowRecords

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    import numpy as np
    from numpy.typing import NDArray

    from diamant.cleaner.engines.compiled_map import Mapped
    from diamant.cleaner.rules.plan import CleanPlan


class Share(NamedTuple):
    """Segments that follow each other."""

    start: DirtyStart
    end: int
    """Index of the segment after the last."""


class _Answer(NamedTuple):
    """What comes of a share, its keys apart."""

    mapped: Mapped
    stats: CleanStats


def shares_of(plan: CleanPlan, start: DirtyStart, count: int) -> list[Share]:
    """Cut the segments from `start` on into `count` shares of about the same size, or fewer."""
    segments = plan.segments
    total = sum(segment.size for segment in segments[start.segment :]) - start.position
    shares: list[Share] = []
    first, size = start, -start.position
    for index in range(start.segment, len(segments)):
        size += segments[index].size
        if size * count >= total * (len(shares) + 1) or index == len(segments) - 1:
            shares.append(Share(first, index + 1))
            if index + 1 < len(segments):
                first = DirtyStart(index + 1, 0, segments[index + 1].base_offset)
    return shares


def map_shares(work: RoundWork, key_map: CompiledMap, shares: Sequence[Share]) -> bool:
    """Add the segments of all shares; return True if the map was full before their end. Errors as `add_segments`."""
    children: list[_Child] = []
    try:
        with suppress(OSError):  # no more processes, or no memory to share: then with fewer
            for share in shares[1:]:
                children.append(_Child(work, share, key_map.offsets.room))
        if add_segments(work, key_map, *shares[0]):
            return True
        for index, share in enumerate(shares[1:]):
            if index == len(children) or not _take_over(work, key_map, children[index]):
                return add_segments(work, key_map, share.start)
        return False
    finally:
        for child in children:
            child.fork.close()


class _Child:
    """A process that maps a share of at most `room` keys."""

    def __init__(self, work: RoundWork, share: Share, room: int) -> None:
        self.share = share
        self.tuples = shared_tuples(room)
        """The keys, in the order of their hashes, once it has answered."""
        self.fork = Fork(partial(_map_share, work, share, self.tuples))


def _map_share(work: RoundWork, share: Share, tuples: NDArray[np.uint64], answering: Connection) -> None:
    """Map a share in a child, and send what comes of it; nothing if it may not be all."""
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map = CompiledMap(alone, RowRecords(alone.limits))
    key_map.last_seen = share.start.offset - 1
    if add_segments(alone, key_map, *share) or key_map.offsets.is_spilled or key_map.size > len(tuples):
        return
    key_map.offsets.move_to(tuples)
    answering.send(_Answer(key_map.mapped(), alone.stats))


def _take_over(work: RoundWork, key_map: CompiledMap, child: _Child) -> bool:
    """Add what a child has mapped; return False if that has to be done here, and nothing is added."""
    try:
        answer: _Answer = child.fork.answer(work.check_done)
    except ForkFailed:
        return False
    keys = answer.mapped.keys
    if key_map.last_seen >= child.share.start.offset or keys >= key_map.offsets.room:
        return False
    key_map.take_over(answer.mapped, child.tuples[:keys])
    work.stats.add(answer.stats)
    work.throttle(answer.stats.map_bytes_read)
    return True
