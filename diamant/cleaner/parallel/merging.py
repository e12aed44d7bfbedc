"""Merges the keys of many shares in several processes, each for a part of the hash space.

Otherwise the first process would spend its time adding the same keys from each share: with 16 shares, 15 times each.

Memory: the merged keys take as much as in the map, in shared memory like the keys of the shares. Each process has a map of one
partition at a time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.offset_map import SPREAD_AT, OffsetMap, part_of, shared_tuples
from diamant.cleaner.parallel.fork import Fork, ForkFailed
from diamant.kernels.constants.tuples import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from diamant.cleaner.engines.work import RoundWork

MERGED_FROM = 7
"""From this number of shares beside the first, keys are merged: this process then adds each key once, not once per share."""


class Keys(NamedTuple):
    """Keys with their last offsets, in partitions by hash."""

    tuples: memoryview[int]
    """Shared: uint64[partitions, room, 3]."""
    counts: list[int]
    """Number of keys in each partition."""

    def parts(self) -> list[memoryview]:
        """Return the keys of each partition, in hash order."""
        return [part_of(self.tuples, index, count) for index, count in enumerate(self.counts)]


def partitions_for(processes: int) -> int:
    """Return the number of partitions for keys of `processes` processes: a power of two; 1 if keys are not merged."""
    return 1 if processes <= MERGED_FROM else 1 << (processes - 1).bit_length()


def merged(work: RoundWork, shares: Sequence[Keys], processes: int) -> list[memoryview] | None:
    """Return the keys of all shares by partition, each once with its last offset; None if shared memory is not available."""
    partitions = range(len(shares[0].counts))
    try:
        targets = [shared_tuples(1, sum(share.counts[index] for share in shares)) for index in partitions]
    except OSError:
        return None
    merge = partial(_merge, work.plan.hash_key, shares, targets)
    forks: list[Fork] = []
    try:
        with suppress(OSError):  # the system refuses more processes: continue with fewer
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
