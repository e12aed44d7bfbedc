"""Large index files read in place while another program truncates them.

A memory map of the file would kill this process, and with it the tests.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from pathlib import Path
from struct import pack

import pytest

from diamant.storage.env.env import RealEnv
from diamant.storage.env.view import MAX_COPIED_BYTES
from diamant.storage.segments.index_file import BLOCK_ENTRIES
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.time_index import TimeIndex
from diamant.storage.segments.txn_index import AbortedTxn, TransactionIndex

BASE = 1000
ENTRIES = 5 * BLOCK_ENTRIES + 7
ROOM = 1 << 20


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    """An entry for each tenth offset from 10 on, a hundred bytes apart."""
    path = tmp_path / "00000000000000001000.index"
    path.write_bytes(b"".join(pack(">ii", 10 * number, 100 * number) for number in range(1, ENTRIES + 1)))
    assert path.stat().st_size > MAX_COPIED_BYTES
    return OffsetIndex(RealEnv(), str(path), BASE, ROOM)


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    """An entry for each tenth millisecond from 10 on."""
    path = tmp_path / "00000000000000001000.timeindex"
    path.write_bytes(b"".join(pack(">qi", 10 * number, number) for number in range(1, ENTRIES + 1)))
    return TimeIndex(RealEnv(), str(path), BASE, ROOM)


def test_a_search_in_place_finds_what_one_in_memory_does(offsets: OffsetIndex, times: TimeIndex) -> None:
    """A search in place equals one in memory, at the edges of blocks and beyond both ends."""
    at = [10 * number for number in range(1, ENTRIES + 1)]
    edges = [0, 1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 3 * BLOCK_ENTRIES, ENTRIES, ENTRIES + 1]
    for target in [10 * edge + step for edge in edges for step in (-1, 0, 1)]:
        found = bisect_right(at, target)
        expected = (BASE + at[found - 1], 10 * at[found - 1]) if found else (BASE, 0)
        assert offsets.lookup(BASE + target) == expected
        assert offsets.lookup_position(10 * target) == expected
        assert times.lookup(target) == ((at[found - 1], BASE + found) if found else (-1, BASE))
        above = bisect_left(at, target)
        assert offsets.upper_bound(10 * target, 0) == (BASE + at[above] if above < ENTRIES else None)
    assert offsets.entry(ENTRIES - 1) == (BASE + at[-1], 10 * at[-1])
    assert times.entry(0) == (10, BASE + 1)


@pytest.mark.parametrize("left", [0, 3, 4096, 20_000])
def test_a_lookup_of_a_lost_entry_leads_to_the_segments_start(
    offsets: OffsetIndex, times: TimeIndex, left: int
) -> None:
    """A lookup of a lost entry returns the segment's start or an existing entry; a scan from there finds the target."""
    last = BASE + 10 * ENTRIES
    assert offsets.lookup(last) == (last, 100 * ENTRIES)
    assert times.lookup(10 * ENTRIES) == (10 * ENTRIES, BASE + ENTRIES)
    os.truncate(offsets.file.path, left)
    os.truncate(times.file.path, left)
    for target in (5, 10 * BLOCK_ENTRIES, 10 * ENTRIES):
        offset, position = offsets.lookup(BASE + target)
        assert position == 10 * (offset - BASE) <= 10 * target
        timestamp, offset = times.lookup(target)
        assert timestamp == 10 * (offset - BASE) <= target or (timestamp, offset) == (-1, BASE)
        bound = offsets.upper_bound(10 * target, 0)
        assert bound is None or bound >= BASE + target


def test_aborted_transactions_that_were_cut_off_are_not_known(tmp_path: Path) -> None:
    """Only the remaining aborted transactions are known."""
    index = TransactionIndex(RealEnv(), str(tmp_path / "00000000000000001000.txnindex"), BASE)
    for number in range(1000):
        index.append(AbortedTxn(7, BASE + 2 * number, BASE + 2 * number + 1, BASE))
    index.trim_to_valid_size()
    assert len(index.all()) == index.entries == 1000
    os.truncate(index.path, 34 * 600 + 5)
    assert len(index.all()) == index.entries == 600
    assert len(index.collect(BASE + 1000, BASE + 1100)[0]) == 50
