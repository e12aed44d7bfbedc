"""The keys of many shares, merged by several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diamant.cleaner.engines.offset_map import shared_tuples
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.parallel.shares import Keys, merged, partitions_for
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.cleaner.engines.engines import copied
from tests.cleaner.facts.segment_history import NOW_MS, SegmentHistory

PARTITIONS, ROOM = 8, 400


class ParentsShares(list[Keys]):
    """Shares that only the process that created them can iterate."""

    def __init__(self, shares: list[Keys]) -> None:
        super().__init__(shares)
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[Keys]:
        """Begin; MemoryError in a child."""
        if os.getpid() != self._pid:
            raise MemoryError
        return super().__iter__()


@pytest.fixture
def work(tmp_path: Path) -> RoundWork:
    """Any work."""
    history = SegmentHistory()
    history.batch([(b"key", b"value")])
    return RoundWork(RealEnv(SettableClock(NOW_MS)), copied(*history.stored(), tmp_path / "t-0"))


def shares_and_expected(count: int) -> tuple[list[Keys], dict[tuple[int, int], int]]:
    """Shares with many keys in common, the last one empty, and the last offset of each key."""
    rng = np.random.default_rng(count)
    hashes = rng.integers(0, 2**64, (3000, 2), np.uint64)
    hashes = hashes[np.argsort(hashes[:, 0])]
    shares, expected, offset = [], dict[tuple[int, int], int](), 0
    for number in range(count):
        tuples, counts = shared_tuples(PARTITIONS, ROOM), [0] * PARTITIONS
        for first, second in hashes[rng.random(3000) < (0.6 if number < count - 1 else 0)].tolist():
            partition = second % PARTITIONS
            np.asarray(tuples)[partition, counts[partition]] = first, second, offset
            counts[partition] += 1
            expected[first, second] = offset
            offset += 1
        shares.append(Keys(tuples, counts))
    return shares, expected


@pytest.mark.parametrize(("shares", "processes"), [(1, 1), (3, 2), (5, 3), (4, 20)])
@pytest.mark.parametrize("kind", [list, ParentsShares])
def test_each_key_has_its_last_offset(work: RoundWork, shares: int, processes: int, kind: type[list[Keys]]) -> None:
    """The merged map is the same with any number of processes, even if every child fails and the parent does all."""
    given, expected = shares_and_expected(shares)
    found = {}
    for partition, keys in enumerate(merged(work, kind(given), processes) or ()):
        for first, second, offset in np.frombuffer(keys, np.uint64).reshape(-1, 3).tolist():
            assert second % PARTITIONS == partition
            assert (first, second) not in found
            found[first, second] = offset
    assert found == expected


def test_partitions_are_a_power_of_two_for_each_process_one() -> None:
    """Few shares are not merged, and have one partition."""
    assert [partitions_for(count) for count in (2, 7, 8, 9, 16)] == [1, 1, 8, 16, 16]
