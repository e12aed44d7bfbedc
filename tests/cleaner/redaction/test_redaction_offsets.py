"""Sets of offsets, compared with sets of Python."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.cleaner.redaction.offset_set import BLOCK, BLOCK_OVERHEAD_BYTES, Offsets

offsets = st.lists(
    st.integers(0, 300) | st.integers(BLOCK - 60, BLOCK + 60) | st.integers(3 * BLOCK, 3 * BLOCK + 5_000), max_size=60
)
spans = st.lists(st.tuples(st.integers(0, 2 * BLOCK), st.integers(1, 9_000)), max_size=2)


@given(
    base=st.sampled_from([0, 7, 1 << 40]),
    rounds=st.lists(st.tuples(offsets, spans), max_size=3),
    asked=st.lists(st.tuples(st.integers(0, 4 * BLOCK), st.integers(-1, 2 * BLOCK)), max_size=5),
    limit=st.integers(0, 20),
)
def test_they_hold_what_was_added(
    base: int, rounds: list[tuple[list[int], list[tuple[int, int]]]], asked: list[tuple[int, int]], limit: int
) -> None:
    """Few offsets as numbers and many as bits give the same members, ranges and runs; the list of runs is cut at a limit."""
    found, expected = Offsets(base), set()
    for single, runs in rounds:
        for one in [*single, *(one for first, count in runs for one in range(first, first + count))]:
            found.add(base + one)
            expected.add(base + one)
        found.seal()
    assert len(found) == len(expected)
    for first, count in asked:
        last = base + first + count
        assert found.between(base + first, last) == {one for one in expected if base + first <= one <= last}
        assert found.has(base + first) == (base + first in expected)
    assert all(found.has(one) for one in expected)
    assert not found.has(base - 1)
    every, count = found.ranges(len(expected))
    assert [one for first, last in every for one in range(first, last + 1)] == sorted(expected)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(every))
    assert (count, found.ranges(limit)) == (len(every), (every[:limit], count))


def test_their_memory_is_bounded_and_reported() -> None:
    """Memory is a bit per spanned offset, two bytes per isolated one, and an overhead per block."""
    dense = Offsets(0)
    for one in range(2 * BLOCK):
        dense.add(one)
    dense.seal()
    assert dense.nbytes == 2 * BLOCK // 8 + 2 * BLOCK_OVERHEAD_BYTES
    sparse = Offsets(0)
    sparse.add(0)
    sparse.add((1 << 32) - 1)
    assert sparse.nbytes == 8
    sparse.seal()
    assert sparse.nbytes == 4 + 2 * BLOCK_OVERHEAD_BYTES


def test_unmerged_offsets_are_bounded() -> None:
    """However many offsets are added before a `seal`, the number of unmerged ones is bounded."""
    found = Offsets(0, max_added=1_000)
    for one in range(0, 100_000, 2):
        found.add(one)
        assert found.nbytes <= 4 * 1_000 + 2 * (BLOCK // 8 + BLOCK_OVERHEAD_BYTES)
    found.seal()
    assert len(found) == 50_000


@pytest.mark.slow
def test_very_many_runs_are_reported_without_being_listed() -> None:
    """If each offset is a run of its own, only the requested pairs are listed, with little memory besides."""
    found = Offsets(0)
    for one in range(0, 300_000, 2):
        found.add(one)
    found.seal()
    tracemalloc.start()
    try:
        listed, count = found.ranges(100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (listed, count) == ([(one, one) for one in range(0, 200, 2)], 150_000)
    assert peak < 4 * 1024 * 1024
