"""The first pass of a round in several processes, each of which maps a share of the log (`cuts`) into its own map.

This process maps the first share and then pieces that follow it; child processes map the other shares and then pieces that
precede them. So all processes finish at about the same time. Then this process adds the children's keys to its own map: as they
arrive if there are few children, or after merging them if there are many. The greatest offset of a key wins, so the order does
not matter.

If a process fails, or if the keys of all might fill the map, this process itself maps everything after its own part. The
resulting map is the same as without shares.

Memory: each child has a map that is empty at first and at most as large as the round's. Its keys arrive through a pipe or, if
they are merged, through shared memory of the same size, whose pages are allocated when they are written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.compiled_map import CompiledMap, Mapped
from diamant.cleaner.engines.dirty_range import add_segments
from diamant.cleaner.engines.offset_map import SPREAD_AT, TAKEN_AT_ONCE, OffsetMap, part_of, shared_tuples
from diamant.cleaner.parallel.fork import Fork, ForkFailed, write_all
from diamant.cleaner.rules.result import CleanStats, never_done, no_throttle
from diamant.cleaner.segments.row_records import RowRecords
from diamant.kernels import numbers
from diamant.kernels.constants.tuples import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.offset_map import OffsetMap
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.parallel.cuts import Share, Shares

_INDEX = Struct("=H")


MERGED_FROM = 7
"""If there are at least this many other shares, their keys are merged first, so that this process adds each key only once."""


class Keys(NamedTuple):
    """The keys of a child with their last offsets, in partitions by hash."""

    tuples: memoryview[int]
    """Shared memory, uint64[partitions, room, 3]."""
    counts: list[int]
    """Number of keys in each partition."""

    def parts(self) -> list[memoryview]:
        """Return the keys of each partition, in hash order."""
        return [part_of(self.tuples, index, count) for index, count in enumerate(self.counts)]


def partitions_for(processes: int) -> int:
    """Return the number of partitions, a power of two, for the keys of `processes` processes; 1 if keys are not merged."""
    return 1 if processes <= MERGED_FROM else 1 << (processes - 1).bit_length()


def merged(work: RoundWork, shares: Sequence[Keys], processes: int) -> list[memoryview] | None:
    """Merge the keys of all shares; return the keys of each partition, or None if shared memory is not available.

    Each process merges some of the partitions, with a map for one at a time; a single process would have to add most keys once
    per share. Memory: the merged keys take as much as in the map, in shared memory like the keys of the shares.
    """
    partitions = range(len(shares[0].counts))
    try:
        targets = [shared_tuples(1, sum(share.counts[index] for share in shares)) for index in partitions]
    except OSError:
        return None
    merge = partial(_merge, work.plan.hash_key, shares, targets)
    forks: list[Fork] = []
    try:
        with suppress(OSError):  # if the system refuses more processes, continue with fewer
            for first in range(1, processes):
                forks.append(Fork(partial(_merge_some, merge, partitions[first::processes])))
        found = {index: merge(index) for index in partitions[::processes]}
        for fork in forks:
            with suppress(ForkFailed):
                found |= fork.answer(work.check_done)
        # This process merges the partitions of failed children.
        counts = [found[index] if index in found else merge(index) for index in partitions]
        return [part_of(target, 0, count) for target, count in zip(targets, counts, strict=True)]
    finally:
        for fork in forks:
            fork.close()


def _merge_some(merge: partial[int], partitions: range, answering: Connection) -> None:
    answering.send({index: merge(index) for index in partitions})


def _merge(hash_key: bytes, shares: Sequence[Keys], targets: Sequence[memoryview[int]], index: int) -> int:
    """Merge a partition into its target; return its number of keys."""
    target = targets[index]
    keys = OffsetMap(hash_key, memory_bytes=int(target.nbytes / SPREAD_AT) + 64 * ENTRY_BYTES)
    for share in shares:
        keys.add_hashed([part_of(share.tuples, index, share.counts[index])])
    counts = keys.move_to(target)
    keys.close()
    assert counts is not None
    return counts[0]


class _Found(NamedTuple):
    """A child's first answer. Then it sends the keys, and then the `_Answer`; these may fill the pipe until they are read."""

    keys: int
    last_seen: dict[int, int]
    """Last offset of each share, by the share's index."""


class _Answer(NamedTuple):
    """The result of a child, without its keys."""

    mapped: dict[int, Mapped]
    """The mapped part of each share, by the share's index."""
    stats: CleanStats


def map_shares(work: RoundWork, key_map: CompiledMap, shares: Shares) -> bool:
    """Add the batches of all shares to the map; return True if it became full before their end.

    Raises the errors of `add_segments`.
    """
    children: list[_Child] = []
    pieces = _Pieces(shares.pieces)
    try:
        with suppress(OSError):  # if the system refuses processes or shared memory, this process maps the rest
            for index, share in enumerate(shares.others, len(shares.pieces)):
                partitions = partitions_for(1 + len(shares.others))
                children.append(_Child(work, index, share, pieces, partitions, key_map.offsets.room))
        if add_segments(work, key_map, *shares.first):
            return True
        mapped = 0
        for piece in pieces.from_front():
            if add_segments(work, key_map, *piece):
                return True
            mapped += 1
        rest = [*shares.pieces, *shares.others][mapped:]
        if not rest or (len(children) == len(shares.others) and _take_over(work, key_map, children, mapped, rest)):
            return False
        return add_segments(work, key_map, rest[0].start)
    finally:
        pieces.close()
        for child in children:
            child.fork.dismiss()


class _Pieces:
    """The pieces that processes claim, this process from the front and its children from the back, until they meet."""

    def __init__(self, pieces: Sequence[Share]) -> None:
        self._pieces = pieces
        # This pipe has one byte per piece. Reading a byte entitles a process to a piece; children then read the piece's index.
        self._claims = _filled_pipe(bytes(len(pieces)))
        self._from_back = _filled_pipe(b"".join(_INDEX.pack(index) for index in reversed(range(len(pieces)))))

    def from_front(self) -> Iterator[Share]:
        """Claim and yield pieces from the front. Only for this process."""
        for piece in self._pieces:
            if not os.read(self._claims, 1):
                return
            yield piece

    def from_back(self) -> Iterator[tuple[int, Share]]:
        """Claim and yield pieces from the back, with their indexes. Only for children."""
        while os.read(self._claims, 1):
            (index,) = _INDEX.unpack(os.read(self._from_back, _INDEX.size))
            yield index, self._pieces[index]

    def close(self) -> None:
        """Close the pipes of this process."""
        os.close(self._claims)
        os.close(self._from_back)


def _filled_pipe(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


class _Child:
    """A child process that maps a share and then pieces, with room for `room` keys."""

    def __init__(self, work: RoundWork, index: int, share: Share, pieces: _Pieces, partitions: int, room: int) -> None:
        self._check_done = work.check_done
        self._found: _Found | None = None
        self._answer: _Answer | None = None
        self._keys: Keys | None = None
        self._tuples = shared_tuples(partitions, room * 5 // 4 // partitions + 4096) if partitions > 1 else None
        """Shared memory for the child's keys if they are to be merged, otherwise None."""
        self.fork = Fork(partial(_map_in_child, work, index, share, pieces, self._tuples))

    def found(self) -> _Found:
        """Wait until the child has mapped everything; return what it found. Raises ForkFailed."""
        if self._found is None:
            self._found = self.fork.answer(self._check_done)
        return self._found

    def answer(self) -> _Answer:
        """Wait for the child's result, which it sends after all keys, and return it. Raises ForkFailed."""
        if self._answer is None:
            self._answer = self.fork.answer(self._check_done)
        return self._answer

    def keys(self) -> Keys:
        """Wait until all keys are in shared memory, and return them. Raises ForkFailed."""
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
        offsets.is_in_order = False
        while left:
            count = min(left, TAKEN_AT_ONCE)
            part = words.cast("B")[: count * ENTRY_BYTES]
            self.fork.read_into(part, self._check_done)
            if left == self.found().keys:
                offsets.make_room_for(part, left)
            offsets.add(words, count)
            left -= count


def _map_in_child(
    work: RoundWork, index: int, share: Share, pieces: _Pieces, tuples: memoryview[int] | None, answering: Connection
) -> None:
    """Map a share and then pieces; send the keys and then the result.

    If `tuples` is given, the keys are moved into its partitions, and only the number of keys in each is sent. Sends nothing if
    the map became full, has spilled, or contains records out of order. Stops sending if a partition of `tuples` is full.
    """
    alone = replace(work, check_done=never_done, throttle=no_throttle, stats=CleanStats())
    key_map, mapped = CompiledMap(alone, RowRecords(alone.limits)), dict[int, Mapped]()
    for at, one in chain([(index, share)], pieces.from_back()):
        key_map.begin_at(one.start.offset)
        if add_segments(alone, key_map, *one) or key_map.offsets.is_spilled or key_map.disordered is not None:
            return
        mapped[at] = key_map.mapped()
        key_map.offsets.is_in_order = False
    answering.send(_Found(key_map.size, {at: one.last_seen for at, one in mapped.items()}))
    if tuples is None:
        for words in key_map.offsets.take():
            write_all(answering, words.cast("B"))
    else:
        counts = key_map.offsets.move_to(tuples)
        if counts is None:
            return
        answering.send(counts)
    answering.send(_Answer(mapped, alone.stats))


def _take_over(
    work: RoundWork, key_map: CompiledMap, children: Sequence[_Child], mapped: int, rest: Sequence[Share]
) -> bool:
    """Add the children's maps of the shares from index `mapped` on; return False if this process must map those shares itself.

    Keys that were added before a failure do no harm, because they are keys of these shares and cannot fill the map.
    """
    try:
        if not _fit(key_map, children, mapped, rest):
            return False
        keys = None
        if len(children) >= MERGED_FROM:
            keys = merged(work, [child.keys() for child in children], 1 + len(children))
        if keys is not None:
            key_map.offsets.add_hashed(keys)
        else:
            for child in children:
                child.add_keys_to(key_map.offsets)
        answers = [child.answer() for child in children]
    except ForkFailed:
        return False
    parts = dict[int, Mapped]()
    for answer in answers:
        parts |= answer.mapped
        work.stats.add(answer.stats)
        work.throttle(answer.stats.map_bytes_read)
    for index in sorted(parts):
        key_map.take_over(parts[index])
    return True


def _fit(key_map: CompiledMap, children: Sequence[_Child], mapped: int, rest: Sequence[Share]) -> bool:
    """Tell whether each share begins after the last offset before it, and the keys cannot fill the map. Raises ForkFailed."""
    room, last_seen, ends = key_map.offsets.room, key_map.last_seen, dict[int, int]()
    for child in children:
        room -= child.found().keys
        ends |= child.found().last_seen
    for index, share in enumerate(rest, mapped):
        if last_seen >= share.start.offset:
            return False
        last_seen = max(last_seen, ends[index])
    return room > 0
