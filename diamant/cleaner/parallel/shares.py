"""The first pass of a round in shares (`cuts`), one for each process with a map of its own.

This process maps the first share and then adds the others in order, so that later offsets win. The keys of a few shares are
added one share at a time, as they arrive; those of many are merged first (`merging`). From a share whose process failed, or
whose keys might fill the map, this process maps the rest itself. The map is the same as without shares.

Memory: each child has a map, at most of the round's size and empty at first. Its keys move from there to memory of the same
size shared with this process. Pages are allocated when written.
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
    """The result of a share, without its keys, which follow."""

    mapped: Mapped
    stats: CleanStats


def map_shares(work: RoundWork, key_map: CompiledMap, shares: Sequence[Share]) -> bool:
    """Add the batches of all shares; return True if the map was full before their end. Raises the errors of `add_segments`."""
    children: list[_Child] = []
    try:
        with suppress(OSError):  # the system refuses more processes or shared memory: continue with fewer
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
        """Number of keys of each partition in `_tuples` so far."""
        self._tuples = shared_tuples(partitions, room if partitions == 1 else room * 5 // 4 // partitions + 4096)
        self.fork = Fork(partial(_map_share, work, share, self._tuples))

    def answer(self) -> _Answer:
        """Wait for the result. Raises ForkFailed."""
        if self._answer is None:
            self._answer = self.fork.answer(self._check_done)
        return self._answer

    def keys(self) -> Keys:
        """Wait for all keys. Raises ForkFailed."""
        while sum(self._counts) < self.answer().mapped.keys:
            self._counts = self.fork.answer(self._check_done)
        return Keys(self._tuples, self._counts)

    def add_keys_to(self, offsets: OffsetMap) -> None:
        """Add all keys to a map; those of a single partition as they arrive. Raises ForkFailed, possibly after adding some."""
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
    """Map a share in a child. Send the result, then repeatedly the number of keys moved so far to each partition.

    Sends nothing if the map was full or has spilled.
    """
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map = CompiledMap(alone, RowRecords(alone.limits))
    key_map.last_seen = share.start.offset - 1
    if add_segments(alone, key_map, *share) or key_map.offsets.is_spilled:
        return
    answering.send(_Answer(key_map.mapped(), alone.stats))
    key_map.offsets.move_to(tuples, answering.send)


def _fit(key_map: CompiledMap, children: Sequence[_Child]) -> bool:
    """Return whether the children's shares begin after the map's end, and cannot fill it. Raises ForkFailed."""
    room, last_seen = key_map.offsets.room, key_map.last_seen
    for child in children:
        mapped = child.answer().mapped
        if last_seen >= child.share.start.offset:
            return False
        room -= mapped.keys
        last_seen = max(last_seen, mapped.last_seen)
    return room > 0


def _take_over(work: RoundWork, key_map: CompiledMap, child: _Child) -> bool:
    """Add the map of a child; return False if this process must map the share itself.

    Keys that were added before the failure do no harm: they fit, and have their last offsets in the share.
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
    """Merge the children's keys in `processes` processes and add their maps; return False, with nothing added, on failure."""
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
    """Add a child's map without its keys, and its statistics."""
    answer = child.answer()
    key_map.take_over(answer.mapped)
    work.stats.add(answer.stats)
    work.throttle(answer.stats.map_bytes_read)
