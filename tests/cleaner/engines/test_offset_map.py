"""The offset map: its table in bounded memory, and its behaviour when the table is full."""

from __future__ import annotations

import errno
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines import offset_map
from diamant.kernels import new_table
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import File, RealEnv
from tests import naive
from tests.effort import examples
from tests.memory_env import MemoryEnv

HASH_KEY = bytes(range(16))
DIRECTORY = "/data/t-0"
Pair = tuple[bytes, int]


def tuples_of(pairs: list[Pair]) -> Any:
    """Return the tuples of (key, offset)."""
    words = np.empty((len(pairs), 3), np.uint64)
    for index, (key, offset) in enumerate(pairs):
        digest = naive.siphash128(HASH_KEY, key)
        words[index] = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"), offset
    return words


def new_env() -> MemoryEnv:
    """Return a file system with the partition's directory."""
    env = MemoryEnv(SettableClock(0))
    env.make_dirs(DIRECTORY)
    return env


def new_map(
    memory_bytes: int = 1 << 20, max_entries: int | None = None, env: MemoryEnv | None = None, least_slots: int = 64
) -> Any:
    """Return an empty map, which spills to `env`."""
    files = env or new_env()
    return offset_map.OffsetMap(
        HASH_KEY,
        memory_bytes=memory_bytes,
        max_entries=max_entries,
        spill=lambda: offset_map.open_spill_file(files, DIRECTORY),
        least_slots=least_slots,
    )


def everything(latest: Any, end: int, step: int) -> list[int]:
    """Return all kept offsets below `end`, read in windows."""
    found: list[int] = []
    for start in range(0, end, step):
        found += [one for one in latest.window(start, start + step - 1) if start <= one < start + step]
    return found


def pairs_of(keys: list[int], start: int, gaps: list[int]) -> list[Pair]:
    """(key, offset) with ascending offsets."""
    offset = start
    pairs = []
    for key, gap in zip(keys, gaps, strict=False):
        pairs.append((b"key-%d" % key, offset))
        offset += gap
    return pairs


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.integers(0, 60), max_size=120),
    st.lists(st.integers(0, 90), max_size=120),
    st.lists(st.integers(1, 40), min_size=120, max_size=120),
    st.sampled_from([3, 8, 64]),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from([1, 7, 1000]),
)
def test_the_map_keeps_the_last_offset_of_each_key(
    older_keys: list[int], keys: list[int], gaps: list[int], least_slots: int, memory_bytes: int, at_once: int
) -> None:
    """In the table or spilled, for any order of tuples, the result equals that of the plain twin without limits."""
    older, dirty = pairs_of(older_keys, 0, gaps), pairs_of(keys, 10_000, gaps)
    env = new_env()
    under_test = new_map(memory_bytes, env=env, least_slots=least_slots)
    words = tuples_of(dirty)
    for start in range(0, len(words), at_once):
        part = words[start : start + at_once].copy()
        assert under_test.add(part, len(part)) == len(part)
    if under_test.is_spilled:
        under_test.add_older(tuples_of(older), len(older))
    else:
        assert [under_test.find(key) for key, _ in older] == [dict(dirty).get(key, -1) for key, _ in older]
        older = []
    assert env.list_dir(DIRECTORY) == []
    assert everything(under_test.latest(), 20_000, 999) == naive.latest_offsets(older, dirty)
    assert under_test.size == len(dict(dirty))
    under_test.close()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 20), st.integers(1, 9))
def test_a_map_with_a_greatest_size_stops_as_kafkas_does(keys: list[int], limit: int, at_once: int) -> None:
    """The map stops before the first tuple after it is full, even if that key is in the map."""
    pairs = pairs_of(keys, 5, [1] * len(keys))
    expected = []
    seen: set[bytes] = set()
    for key, offset in pairs:
        if len(seen) >= limit:
            break
        seen.add(key)
        expected.append((key, offset))
    under_test = new_map(max_entries=limit)
    words = tuples_of(pairs)
    taken = 0
    for start in range(0, len(words), at_once):
        part = words[start : start + at_once].copy()
        count = under_test.add(part, len(part))
        taken += count
        if count < len(part):
            break
    assert taken == len(expected)
    assert (under_test.size, under_test.is_spilled) == (len(seen), False)
    assert {key: under_test.find(key) for key in seen} == dict(expected)


def test_a_table_starts_small_and_grows_to_its_limit() -> None:
    """A few keys take little memory; the limit is reached, not passed; growing loses nothing."""
    env = new_env()
    under_test = new_map(memory_bytes=24 * 20_000, env=env)
    sizes = [under_test.table.nbytes]
    words = np.random.default_rng(1).integers(0, 2**63, (16_000, 3)).astype(np.uint64)
    words[:, 2] = np.arange(16_000)
    for start in range(0, 16_000, 1000):
        under_test.add(words[start : start + 1000].copy(), 1000)
        sizes.append(under_test.table.nbytes)
    assert sizes[0] == 24 * offset_map.FIRST_SLOTS
    assert sizes == sorted(sizes)
    assert sizes[-1] == 24 * 20_000
    assert under_test.size == 16_000
    assert not under_test.is_spilled
    assert under_test.latest().window(0, 16_000).tolist() == list(range(16_000))


def test_pages_are_given_back_as_a_table_grows() -> None:
    """The smaller table's memory is released as its entries move to the larger one."""
    pages = new_table(50_000)
    table = np.asarray(pages)
    table[:] = 7
    offset_map._give_back(pages, 0, 25_000)
    assert not table[:24_000].any()
    assert table[26_000:].all()


def test_the_spill_file_has_no_name() -> None:
    """The spill file is unlinked at once, as is a leftover of an earlier crash. This works on a real disk, too."""
    env = new_env()
    env.create_new(f"{DIRECTORY}/offset-map-{os.getpid()}.deleted").close()
    file = offset_map.open_spill_file(env, DIRECTORY)
    assert env.list_dir(DIRECTORY) == []
    file.append(b"x")
    file.close()


def test_processes_spill_in_one_directory_at_the_same_time(tmp_path: Path) -> None:
    """Each process of a divided round has its own file, and does not unlink another's."""

    class Disturbed(RealEnv):
        """A file system on which another process creates a spill file between the creation and the unlink of one."""

        exit_code = -1

        def create_new(self, path: str) -> File:
            """Create a file."""
            file = super().create_new(path)
            child = os.fork()
            if not child:
                offset_map.open_spill_file(RealEnv(), str(tmp_path))
                os._exit(0)
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return file

    env = Disturbed()
    offset_map.open_spill_file(env, str(tmp_path)).close()
    assert env.exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_spilled_map_works_on_real_files(tmp_path: Path) -> None:
    """Ten times as many keys as the table takes, some of them again and again."""
    env = RealEnv()
    under_test = offset_map.OffsetMap(
        HASH_KEY, memory_bytes=24 * 20_000, spill=lambda: offset_map.open_spill_file(env, str(tmp_path))
    )
    generator = np.random.default_rng(5)
    hashes = generator.integers(0, 2**63, (200_000, 2)).astype(np.uint64)
    chosen = generator.integers(0, 200_000, 300_000)
    words = np.empty((300_000, 3), np.uint64)
    words[:, :2] = hashes[chosen]
    words[:, 2] = np.arange(300_000) * 3
    for start in range(0, 300_000, 10_000):
        under_test.add(words[start : start + 10_000].copy(), 10_000)
    last = dict(zip(chosen.tolist(), words[:, 2].tolist(), strict=True))
    assert under_test.is_spilled
    assert everything(under_test.latest(), 900_000, 100_000) == sorted(last.values())
    assert under_test.size == len(last)
    assert list(tmp_path.iterdir()) == []
    under_test.close()


def test_a_full_disk_fails_the_map() -> None:
    """The error of the system comes through."""
    env = new_env()
    env.fail("append", "*/offset-map-*.deleted", OSError(errno.ENOSPC, "no space"), after=3)
    under_test = new_map(memory_bytes=1, env=env)
    words = np.random.default_rng(2).integers(0, 2**63, (20_000, 3)).astype(np.uint64)
    words[:, 2] = np.arange(20_000)
    with pytest.raises(OSError, match="space") as caught:
        under_test.add(words, 20_000)
    assert caught.value.errno == errno.ENOSPC
    under_test.close()


def test_older_tuples_are_only_for_a_spilled_map() -> None:
    """Otherwise keys can be looked up in the table."""
    with pytest.raises(ValueError, match="has not spilled"):
        new_map().add_older(np.zeros((1, 3), np.uint64), 1)


@pytest.mark.slow
def test_windows_hold_no_more_than_they_must() -> None:
    """A merged map holds only the offsets of the current window, for any number of keys."""
    env = new_env()
    under_test = new_map(memory_bytes=24 * 20_000, env=env)
    words = np.random.default_rng(3).integers(0, 2**63, (200_000, 3)).astype(np.uint64)
    words[:, 2] = np.arange(200_000)
    for start in range(0, 200_000, 20_000):
        under_test.add(words[start : start + 20_000].copy(), 20_000)
    latest = under_test.latest()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    largest = max(len(latest.window(start, start + 99)) for start in range(0, 200_000, 100))
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert largest < 40_000
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("first", "second", "common"), [(0, 0, 0), (3000, 0, 0), (0, 3000, 0), (3000, 3000, 2900), (5000, 9000, 0)]
)
def test_the_keys_of_a_map_are_moved_to_another(first: int, second: int, common: int) -> None:
    """Keys are moved in hash order. The other map grows for its new keys only, not for those that it has."""
    rng = np.random.default_rng(first + second)
    hashes = rng.integers(0, 2**64, (first + second, 3), np.uint64)
    older, newer = hashes[:first].copy(), hashes[first - common : first - common + second].copy()
    older[:, 2], newer[:, 2] = np.arange(first), np.arange(10_000, 10_000 + second)
    target, source = new_map(least_slots=4096), new_map()
    target.add(older, first)
    source.add(newer, second)
    slots = len(target.table)
    tuples = offset_map.shared_tuples(1, second)
    assert source.move_to(tuples) == [second]
    moved = np.asarray(tuples)[0, :second]
    assert sorted(map(tuple, moved.tolist())) == sorted(map(tuple, newer.tolist()))
    # But for those that have found their place behind the end of the table, and so at its front.
    assert (np.diff(moved[:, 0].astype(np.float64)) < 0).mean() < 0.5 if second else True
    target.add_hashed([offset_map.part_of(tuples, 0, second)])
    assert target.size == first + second - common
    assert len(target.table) == slots or not common
    assert len(target.table) <= max(slots, 3 * target.size)
    assert everything(target.latest(), 30_000, 30_000) == [*range(first - common), *range(10_000, 10_000 + second)]


def test_keys_that_were_taken_over_in_part_may_be_added_by_their_records() -> None:
    """If all records of the share follow in offset order, the map equals one made of the records alone."""
    older = tuples_of([(b"%d" % number, number) for number in range(60)])
    newer = tuples_of([(b"%d" % (number % 80), 100 + number) for number in range(20, 200)])
    source, target, expected = new_map(), new_map(), new_map()
    for under_test in (target, expected):
        under_test.add(older, len(older))
    source.add(newer, len(newer))
    tuples = offset_map.shared_tuples(1, source.size)
    assert source.move_to(tuples) == [80]
    target.add_hashed([offset_map.part_of(tuples, 0, 33)])
    for under_test in (target, expected):
        under_test.add(newer, len(newer))
    assert target.size == expected.size
    assert everything(target.latest(), 400, 400) == everything(expected.latest(), 400, 400)


def test_keys_are_taken_in_hash_order_and_the_table_stays_as_large() -> None:
    """Each key is taken once, with its last offset; then the map is empty, and holds as much again without growing."""
    keys = new_map(1 << 16)
    pairs = [(b"%d" % (number % 1500), number) for number in range(2000)]
    for _ in range(2):
        keys.add(tuples_of(pairs), len(pairs))
        slots = len(keys.table)
        taken = [tuple(one) for words in keys.take() for one in words.tolist()]
        assert sum(one > other for one, other in pairwise(taken)) < len(taken) // 4  # but for neighbours
        last = [tuple(one) for one in tuples_of(list(dict(pairs).items())).tolist()]
        assert sorted(taken) == sorted(last)
        assert (keys.size, len(keys.table)) == (0, slots)


def test_keys_that_do_not_fit_are_not_moved() -> None:
    """Neither to one partition nor to several, if one of them is full."""
    for partitions, room in ((1, 99), (4, 24)):
        under_test = new_map()
        under_test.add(tuples_of([(b"%d" % number, number) for number in range(100)]), 100)
        assert under_test.move_to(offset_map.shared_tuples(partitions, room)) is None


def test_moved_keys_are_in_partitions_by_hash() -> None:
    """The second half of the hash selects the partition; keys are in the order of the first half."""
    words = tuples_of([(b"%d" % number, number) for number in range(1000)])
    under_test = new_map(least_slots=4096)
    under_test.add(words, 1000)
    moved = offset_map.shared_tuples(4, 400)
    counts = under_test.move_to(moved)
    assert sum(counts) == 1000
    for partition, count in enumerate(counts):
        found = np.asarray(moved)[partition, :count]
        assert (found[:, 1] % 4 == partition).all()
        assert sorted(found[:, 2].tolist()) == sorted(words[words[:, 1] % 4 == partition, 2].tolist())
