"""The first pass of a round in shares (`cuts`): as many as there are processes, each with a map of its own.

This process maps the first share. Then it takes over the others, so that later offsets win: the keys of a few one share after the
other, as they come, those of many once they are merged (`merging`). At a share that its process could not map, or whose keys
might fill the map, it continues by itself: the map is then what it would be had there been no shares.

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
from diamant.cleaner.engines.offset_map import part_of, shared_tuples
from diamant.cleaner.parallel.fork import Fork, ForkFailed
from diamant.cleaner.parallel.merging import MERGED_FROM, Keys, merged, partitions_for
from diamant.cleaner.rules.result import CleanStats, never_done, no_throttle
from diamant.cleaner.segments.row_records import RowRecords
from diamant.kernels.constants.tuples import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.compiled_map import Mapped
    from diamant.cleaner.engines.offset_map import OffsetMap
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.parallel.cuts import Share


class _Answer(NamedTuple):
    """What comes of a share, its keys apart: those follow."""

    mapped: Mapped
    stats: CleanStats


def map_shares(work: RoundWork, key_map: CompiledMap, shares: Sequence[Share]) -> bool:
    """Add the batches of all shares; return True if the map was full before their end. Errors as `add_segments`."""
    children: list[_Child] = []
    try:
        with suppress(OSError):  # no more processes, or no memory to share: then with fewer
            for share in shares[1:]:
                children.append(_Child(work, share, partitions_for(len(shares)), key_map.offsets.room))
        if add_segments(work, key_map, *shares[0]):
            return True
        if len(children) < MERGED_FROM or not _take_over_merged(work, key_map, children, len(shares)):
            for child in children:
                if not _take_over(work, key_map, child):
                    return add_segments(work, key_map, child.share.start)
        left = shares[1 + len(children) :]
        return bool(left) and add_segments(work, key_map, left[0].start)
    finally:
        for child in children:
            child.fork.close()


class _Child:
    """A process that maps a share of at most `room` keys."""

    def __init__(self, work: RoundWork, share: Share, partitions: int, room: int) -> None:
        self.share = share
        self._check_done = work.check_done
        self._answer: _Answer | None = None
        self._counts = [0] * partitions
        """Keys of each partition that are in `_tuples`."""
        self._tuples = shared_tuples(partitions, room if partitions == 1 else room * 5 // 4 // partitions + 4096)
        self.fork = Fork(partial(_map_share, work, share, self._tuples))

    def answer(self) -> _Answer:
        """Wait for the answer; ForkFailed if there is none."""
        if self._answer is None:
            self._answer = self.fork.answer(self._check_done)
        return self._answer

    def keys(self) -> Keys:
        """Wait for all keys; ForkFailed."""
        while sum(self._counts) < self.answer().mapped.keys:
            self._counts = self.fork.answer(self._check_done)
        return Keys(self._tuples, self._counts)

    def add_keys_to(self, offsets: OffsetMap) -> None:
        """Add all keys to a map, those of a single partition as they come; ForkFailed, with some of them added."""
        if len(self._counts) > 1:
            offsets.add_hashed(self.keys().parts())
            return
        done, keys = 0, self.answer().mapped.keys
        while done < keys:
            self._counts = self.fork.answer(self._check_done)
            part = part_of(self._tuples, 0, self._counts[0])[done * ENTRY_BYTES :]
            if not done:
                offsets.make_room_for(part, keys)
            if part:
                offsets.add(part.cast("Q", (len(part) // ENTRY_BYTES, 3)), len(part) // ENTRY_BYTES)
            done = self._counts[0]


def _map_share(work: RoundWork, share: Share, tuples: memoryview[int], answering: Connection) -> None:
    """Map a share in a child, and send what comes of it, and then, some keys at a time, how many there are in each partition.

    Nothing if it may not be all.
    """
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map = CompiledMap(alone, RowRecords(alone.limits))
    key_map.last_seen = share.start.offset - 1
    if add_segments(alone, key_map, *share) or key_map.offsets.is_spilled:
        return
    answering.send(_Answer(key_map.mapped(), alone.stats))
    key_map.offsets.move_to(tuples, answering.send)


def _fit(key_map: CompiledMap, children: Sequence[_Child]) -> bool:
    """Tell whether these follow what the map has, and cannot fill it; ForkFailed."""
    room, last_seen = key_map.offsets.room, key_map.last_seen
    for child in children:
        mapped = child.answer().mapped
        if last_seen >= child.share.start.offset:
            return False
        room -= mapped.keys
        last_seen = max(last_seen, mapped.last_seen)
    return room > 0


def _take_over(work: RoundWork, key_map: CompiledMap, child: _Child) -> bool:
    """Add what a child has mapped; return False if the share is to be mapped by this process.

    That has the same outcome where some keys were added before: they fit, and their offsets are the last ones of the share.
    """
    try:
        if not _fit(key_map, [child]):
            return False
        child.add_keys_to(key_map.offsets)
    except ForkFailed:
        return False
    _account_for(work, key_map, child)
    return True


def _take_over_merged(work: RoundWork, key_map: CompiledMap, children: Sequence[_Child], processes: int) -> bool:
    """Add what children have mapped, their keys merged by `processes`; return False if that cannot be, and nothing was added."""
    try:
        keys = merged(work, [child.keys() for child in children], processes) if _fit(key_map, children) else None
    except ForkFailed:
        return False
    if keys is None:
        return False
    key_map.offsets.add_hashed(keys)
    for child in children:
        _account_for(work, key_map, child)
    return True


def _account_for(work: RoundWork, key_map: CompiledMap, child: _Child) -> None:
    """Add all but its keys."""
    answer = child.answer()
    key_map.take_over(answer.mapped)
    work.stats.add(answer.stats)
    work.throttle(answer.stats.map_bytes_read)
