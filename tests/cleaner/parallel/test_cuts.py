"""The cuts of the log into the shares of the first pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.dirty_range import DirtyStart, add_segments
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.parallel.cuts import BETWEEN, PIECES, Share, shares_of
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.segments.row_records import RowRecords
from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from tests.cleaner.engines.test_engines_agree import index_every_batch
from tests.cleaner.facts.segment_history import SegmentHistory
from tests.memory_env import MemoryEnv

SEGMENTS, BATCHES = 3, 40


@pytest.fixture
def stored() -> tuple[MemoryEnv, CleanPlan]:
    """Closed segments and their plan."""
    history = SegmentHistory()
    for number in range(SEGMENTS * BATCHES):
        history.batch([(b"key-%d" % (number % 7), b"value-%03d" % number)])
        if number % BATCHES == BATCHES - 1:
            history.roll()
    return history.stored()


def first(plan: CleanPlan, index: int = 0) -> DirtyStart:
    """Return the beginning of a segment."""
    return DirtyStart(index, 0, plan.segments[index].base_offset)


def bytes_of(plan: CleanPlan, share: Share) -> int:
    """Return the size of a share."""
    sizes = [segment.size for segment in plan.segments[share.start.segment : share.end]]
    if share.stop is not None:
        sizes[-1] = share.stop
    return sum(sizes) - share.start.position


def cut(env: MemoryEnv, plan: CleanPlan, start: DirtyStart, processes: int, piece_bytes: int = 1 << 20) -> list[Share]:
    """Return all shares and pieces in order."""
    shares = shares_of(env, plan, start, processes, piece_bytes)
    assert len(shares.others) <= processes - 1
    return [shares.first, *shares.pieces, *shares.others]


def test_shares_end_at_indexed_batches(stored: tuple[MemoryEnv, CleanPlan]) -> None:
    """Shares end at indexed batches within a segment, too. Their sizes differ by at most a batch, and they cover the log."""
    env, plan = stored
    index_every_batch(env, plan)
    batch = plan.segments[0].size // BATCHES
    for start in (first(plan), first(plan, 1), cut(env, plan, first(plan), 2)[1].start):
        for count in (2, 4, 16):
            shares = cut(env, plan, start, count)
            assert shares[0].start == start
            assert (shares[-1].end, shares[-1].stop) == (SEGMENTS, None)
            total = sum(segment.size for segment in plan.segments[start.segment :]) - start.position
            assert sum(bytes_of(plan, share) for share in shares) == total
            assert len(shares) == count
            for share in shares:
                assert abs(bytes_of(plan, share) - total / count) <= 2 * batch
    for share, after in pairwise(cut(env, plan, first(plan), 7)):
        base_offset = plan.segments[after.start.segment].base_offset
        headers = dict(iter_headers(env.read_bytes(names.log_file(plan.directory, base_offset))))
        assert headers[after.start.position].base_offset == after.start.offset
        assert share.stop == (after.start.position or None)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_part_of_the_log_is_cut_into_pieces(stored: tuple[MemoryEnv, CleanPlan], processes: int) -> None:
    """The pieces follow the first share, and are not smaller than asked for; a log that is too small for one has none."""
    env, plan = stored
    index_every_batch(env, plan)
    batch = plan.segments[0].size // BATCHES
    total = sum(segment.size for segment in plan.segments)
    shares = shares_of(env, plan, first(plan), processes, 2 * batch)
    assert len(shares.pieces) == min(PIECES * processes, int(BETWEEN * total) // (2 * batch)) > 1
    assert sum(bytes_of(plan, piece) for piece in shares.pieces) == pytest.approx(BETWEEN * total, abs=2 * batch)
    for share in (shares.first, *shares.others):
        assert bytes_of(plan, share) == pytest.approx((1 - BETWEEN) * total / processes, abs=2 * batch)
    assert sum(bytes_of(plan, share) for share in cut(env, plan, first(plan), processes, 2 * batch)) == total
    assert not shares_of(env, plan, first(plan), processes, int(BETWEEN * total) + 1).pieces


@pytest.mark.parametrize("damage", ["missing", "wrong", "quarantined"])
def test_without_a_fitting_entry_segments_are_not_cut(stored: tuple[MemoryEnv, CleanPlan], damage: str) -> None:
    """The nearest segment boundary is used; there are no more shares than segments."""
    env, plan = stored
    if damage == "missing":
        for segment in plan.segments:
            env.remove(names.index_file(plan.directory, segment.base_offset))
    elif damage == "quarantined":
        index_every_batch(env, plan)
        plan = replace(plan, quarantined=frozenset(segment.base_offset for segment in plan.segments))
    elif damage == "wrong":
        for segment in plan.segments:
            entries = b"".join(
                (offset.to_bytes(4, "big") + (offset * 70 + 5).to_bytes(4, "big")) for offset in range(1, BATCHES)
            )
            env.write_atomically(names.index_file(plan.directory, segment.base_offset), entries)
    assert cut(env, plan, first(plan), 3) == [Share(first(plan, index), index + 1, None) for index in range(3)]
    assert len(cut(env, plan, first(plan), 50)) == SEGMENTS
    last = DirtyStart(SEGMENTS - 1, plan.segments[-1].size - 1, 0)
    assert cut(env, plan, last, 4) == [Share(last, SEGMENTS, None)]


def test_a_cut_segment_gives_the_map_of_a_whole_one(stored: tuple[MemoryEnv, CleanPlan]) -> None:
    """At the cut the map ends with the last batch before it; in the end all statistics equal those of one pass."""
    env, plan = stored
    index_every_batch(env, plan)
    maps = []
    for at in (None, cut(env, plan, first(plan), 2)[1].start):
        work = RoundWork(env, plan)
        key_map = CompiledMap(work, RowRecords(work.limits))
        if at is not None:
            assert not add_segments(work, key_map, first(plan), at.segment + 1, at.position)
            assert key_map.end_offset == key_map.last_seen == at.offset - 1
        assert not add_segments(work, key_map, at or first(plan))
        maps.append((key_map.mapped(), work.stats))
    assert maps[0] == maps[1]
