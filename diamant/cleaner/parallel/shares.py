"""The first pass of a round in shares (`cuts`), one for each process with a map of its own.

This process maps the first share and then adds the others in order, so that later offsets win. The keys of a few shares are
added one share at a time, as they arrive; those of many are merged first (`merging`). From a share whose process failed, or
whose keys might fill the map, this process maps the rest itself. The map is the same as without shares.

Memory: each child has a map, at most of the round's size and empty at first. Its keys come through a pipe, or, where they are
merged, through memory of the same size shared with this process, whose pages are allocated when written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.dirty_range import add_segments
from diamant.cleaner.engines.offset_map import TAKEN_AT_ONCE, shared_tuples
from diamant.cleaner.parallel.fork import Fork, ForkFailed, write_all
from diamant.cleaner.parallel.merging import MERGED_FROM, Keys, merged, partitions_for
from diamant.cleaner.rules.result import CleanStats, never_done, no_throttle
from diamant.cleaner.segments.row_records import RowRecords
from diamant.kernels import numbers
from diamant.kernels.constants.tuples import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.compiled_map import Mapped
    from diamant.cleaner.engines.offset_map import OffsetMap
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.parallel.cuts import Share


class _Found(NamedTuple):
    """The first answer. The keys follow, then the `_Answer`, which may fill the pipe until this process reads it."""

    keys: int
    last_seen: int


class _Answer(NamedTuple):
    """The result of a share, without its keys."""

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
            child.fork.dismiss()


class _Child:
    """A process that maps a share of at most `room` keys."""

    def __init__(self, work: RoundWork, share: Share, partitions: int, room: int) -> None:
        self.share = share
        self._check_done = work.check_done
        self._found: _Found | None = None
        self._answer: _Answer | None = None
        self._keys: Keys | None = None
        self._tuples = shared_tuples(partitions, room * 5 // 4 // partitions + 4096) if partitions > 1 else None
        """For keys that are merged."""
        self.fork = Fork(partial(_map_share, work, share, self._tuples))

    def found(self) -> _Found:
        """Wait until the share is mapped. Raises ForkFailed."""
        if self._found is None:
            self._found = self.fork.answer(self._check_done)
        return self._found

    def answer(self) -> _Answer:
        """Wait for the result, after all keys. Raises ForkFailed."""
        if self._answer is None:
            self._answer = self.fork.answer(self._check_done)
        return self._answer

    def keys(self) -> Keys:
        """Wait for all keys, in shared memory. Raises ForkFailed."""
        if self._keys is None:
            self.found()
            assert self._tuples is not None
            self._keys = Keys(self._tuples, self.fork.answer(self._check_done))
        return self._keys

    def add_keys_to(self, offsets: OffsetMap) -> None:
        """Add all keys to a map. Raises ForkFailed, possibly after adding some."""
        if self._tuples is not None:
            offsets.add_hashed(self.keys().parts())
            return
        left, words = self.found().keys, numbers("Q", TAKEN_AT_ONCE, 3)
        while left:
            count = min(left, TAKEN_AT_ONCE)
            part = words.cast("B")[: count * ENTRY_BYTES]
            self.fork.read_into(part, self._check_done)
            if left == self.found().keys:
                offsets.make_room_for(part, left)
            offsets.add(words, count)
            left -= count


def _map_share(work: RoundWork, share: Share, tuples: memoryview[int] | None, answering: Connection) -> None:
    """Map a share in a child. Send the keys, or their numbers in the partitions of `tuples`, and the result at last.

    Sends nothing if the map was full or has spilled, and no more if a partition is full.
    """
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map = CompiledMap(alone, RowRecords(alone.limits))
    key_map.last_seen = share.start.offset - 1
    if add_segments(alone, key_map, *share) or key_map.offsets.is_spilled:
        return
    mapped = key_map.mapped()
    answering.send(_Found(mapped.keys, mapped.last_seen))
    if tuples is None:
        for words in key_map.offsets.take():
            write_all(answering, words.cast("B"))
    else:
        counts = key_map.offsets.move_to(tuples)
        if counts is None:
            return
        answering.send(counts)
    answering.send(_Answer(mapped, alone.stats))


def _fit(key_map: CompiledMap, children: Sequence[_Child]) -> bool:
    """Return whether the children's shares begin after the map's end, and cannot fill it. Raises ForkFailed."""
    room, last_seen = key_map.offsets.room, key_map.last_seen
    for child in children:
        found = child.found()
        if last_seen >= child.share.start.offset:
            return False
        room -= found.keys
        last_seen = max(last_seen, found.last_seen)
    return room > 0


def _take_over(work: RoundWork, key_map: CompiledMap, child: _Child) -> bool:
    """Add the map of a child; return False if this process must map the share itself.

    Keys that were added before the failure do no harm: they fit, and have their last offsets in the share.
    """
    try:
        if not _fit(key_map, [child]):
            return False
        child.add_keys_to(key_map.offsets)
        child.answer()
    except ForkFailed:
        return False
    _account_for(work, key_map, child)
    return True


def _take_over_merged(work: RoundWork, key_map: CompiledMap, children: Sequence[_Child], processes: int) -> bool:
    """Merge the children's keys in `processes` processes and add their maps; return False, with nothing added, on failure."""
    try:
        keys = merged(work, [child.keys() for child in children], processes) if _fit(key_map, children) else None
        for child in children:
            child.answer()
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
