"""The first pass of a round in shares (`cuts`): as many as there are processes, each with a map of its own.

This process maps the first share. Then it takes over the others, so that later offsets win: the keys of a few one share after the
other, those of many once they are merged (`merging`). At a share that its process could not map, or whose keys might fill the
map, it continues by itself: the map is then what it would be had there been no shares.

Memory: in each child a map of the round's size at most, which is empty at first; and for its keys as much again, shared with
this process, as they leave that map. Pages come as they are written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.dirty_range import add_segments
from diamant.cleaner.engines.offset_map import shared_tuples
from diamant.cleaner.parallel.fork import Fork, ForkFailed
from diamant.cleaner.parallel.merging import MERGED_FROM, Keys, merged, partitions_for
from diamant.cleaner.rules.result import CleanStats, never_done, no_throttle
from diamant.cleaner.segments.row_records import RowRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.compiled_map import Mapped
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.parallel.cuts import Share


class _Answer(NamedTuple):
    """What comes of a share, its keys apart."""

    mapped: Mapped
    stats: CleanStats
    counts: list[int]
    """Keys of each partition."""


def map_shares(work: RoundWork, key_map: CompiledMap, shares: Sequence[Share]) -> bool:
    """Add the batches of all shares; return True if the map was full before their end. Errors as `add_segments`."""
    children: list[_Child] = []
    try:
        with suppress(OSError):  # no more processes, or no memory to share: then with fewer
            for share in shares[1:]:
                children.append(_Child(work, share, partitions_for(len(shares)), key_map.offsets.room))
        if add_segments(work, key_map, *shares[0]):
            return True
        for child in children:
            child.wait(work.check_done)
        keys = None
        if len(children) >= MERGED_FROM and _fit(key_map, children):
            keys = merged(work, [child.keys for child in children], len(shares))
        if keys is not None:
            _take_over(work, key_map, children, keys)
        else:
            for child in children:
                if not _fit(key_map, [child]):
                    return add_segments(work, key_map, child.share.start)
                _take_over(work, key_map, [child], child.keys.parts())
        left = shares[1 + len(children) :]
        return bool(left) and add_segments(work, key_map, left[0].start)
    finally:
        for child in children:
            child.fork.close()


class _Child:
    """A process that maps a share of at most `room` keys."""

    def __init__(self, work: RoundWork, share: Share, partitions: int, room: int) -> None:
        self.share = share
        self.answer: _Answer | None = None
        self._tuples = shared_tuples(partitions, room if partitions == 1 else room * 5 // 4 // partitions + 4096)
        self.fork = Fork(partial(_map_share, work, share, self._tuples))

    def wait(self, check_done: Callable[[], None]) -> None:
        """Wait for the answer, or the end."""
        with suppress(ForkFailed):
            self.answer = self.fork.answer(check_done)

    @property
    def keys(self) -> Keys:
        """The keys, once it has answered."""
        assert self.answer is not None
        return Keys(self._tuples, self.answer.counts)


def _map_share(work: RoundWork, share: Share, tuples: memoryview[int], answering: Connection) -> None:
    """Map a share in a child, and send what comes of it; nothing if it may not be all."""
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map = CompiledMap(alone, RowRecords(alone.limits))
    key_map.last_seen = share.start.offset - 1
    if add_segments(alone, key_map, *share) or key_map.offsets.is_spilled:
        return
    counts = key_map.offsets.move_to(tuples)
    if counts is not None:
        answering.send(_Answer(key_map.mapped(), alone.stats, counts))


def _fit(key_map: CompiledMap, children: Sequence[_Child]) -> bool:
    """Tell whether these have answered, follow what the map has, and cannot fill it."""
    room, last_seen = key_map.offsets.room, key_map.last_seen
    for child in children:
        if child.answer is None or last_seen >= child.share.start.offset:
            return False
        room -= child.answer.mapped.keys
        last_seen = max(last_seen, child.answer.mapped.last_seen)
    return room > 0


def _take_over(work: RoundWork, key_map: CompiledMap, children: Sequence[_Child], keys: Sequence[memoryview]) -> None:
    """Add what children have mapped, and their keys."""
    key_map.offsets.add_hashed(keys)
    for child in children:
        assert child.answer is not None
        key_map.take_over(child.answer.mapped)
        work.stats.add(child.answer.stats)
        work.throttle(child.answer.stats.map_bytes_read)
