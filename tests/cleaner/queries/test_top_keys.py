"""The largest keys, compared with a naive count, and with more keys than fit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.queries import top_keys
from diamant.cleaner.queries.top_keys import TopKeys
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.storage.env.env import RealEnv
from tests.builder import make_batch


def counted(count: int, records: list[tuple[bytes, int]], at_once: int = 7, **limits: int) -> TopKeys:
    """Count records in several calls."""
    found = TopKeys(count, **limits)
    for start in range(0, len(records), at_once):
        found.add([(key, blake2b(key).digest(), 1, size) for key, size in records[start : start + at_once]])
    return found


def some_records(seed: int) -> list[tuple[bytes, int]]:
    """Records of 300 keys, a few of which have most of the bytes."""
    rng = random.Random(seed)
    return [(b"%d" % min(rng.randrange(300), rng.randrange(300)), rng.randrange(100)) for _ in range(2000)]


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_a_naive_count(seed: int) -> None:
    """The largest keys come first, with all their records and bytes."""
    records = some_records(seed)
    sizes: Counter[bytes] = Counter()
    for key, size in records:
        sizes[key] += size
    found = counted(10, records)
    assert [one.bytes for one in found.top()] == sorted(sizes.values(), reverse=True)[:10]
    numbers = Counter(key for key, _ in records)
    assert all((one.records, one.bytes) == (numbers[one.key], sizes[one.key]) for one in found.top())
    assert found.missed_bytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_with_more_keys_than_are_held_the_error_is_reported(seed: int) -> None:
    """A key's count is never too high, and too low by the reported error at most."""
    records = some_records(seed)
    sizes: Counter[bytes] = Counter()
    for key, size in records:
        sizes[key] += size
    found = counted(5, records, max_keys=100)
    assert found.missed_bytes > 0
    assert len(found.top()) == 5
    for one in found.top():
        assert one.bytes <= sizes[one.key] <= one.bytes + found.missed_bytes


def test_long_keys_count_by_their_hash() -> None:
    """Two keys with the same beginning count separately and show it; the longest key kept whole is not marked as cut."""
    long, limit = b"k" * 500, b"k" * top_keys.MAX_KEY_BYTES
    found = counted(5, [(long + b"1", 30), (long + b"2", 20), (long + b"1", 1), (limit, 5)]).top()
    assert [(one.key, one.is_cut, one.records, one.bytes) for one in found] == [
        (limit, True, 2, 31),
        (limit, True, 1, 20),
        (limit, False, 1, 5),
    ]


def test_a_long_text_is_cut_between_two_letters() -> None:
    """A cut text stays valid UTF-8; other bytes are cut at the limit."""
    limit = top_keys.MAX_KEY_BYTES
    text, other = "x" * (limit - 1) + "\u00e9", b"\xff" * (limit + 1)
    found = counted(2, [(text.encode(), 2), (other, 1)]).top()
    assert [(one.key, one.is_cut) for one in found] == [(b"x" * (limit - 1), True), (b"\xff" * limit, True)]


def test_no_more_keys_are_held_however_many_come_at_once() -> None:
    """A batch that decompresses to very many keys does not exceed the limit."""
    held: list[int] = []
    found = TopKeys(5, max_keys=100)

    def records() -> Iterator[tuple[bytes, bytes, int, int]]:
        for number in range(1000):
            held.append(len(found._found))
            yield b"%d" % number, b"", 1, 1

    found.add(records())
    assert max(held) == 100


def test_stats_of_a_directory(tmp_path: Path) -> None:
    """Sizes are summed over all partitions of a topic, topics are separate, and nothing is listed unless requested."""
    for name, words in (("t-0", ("a=123", "b=1")), ("t-1", ("a=", "c=12345678", "novalue")), ("u-0", ("a=1",))):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020d}.log").write_bytes(make_batch(*words))
    with open_log_directory(RealEnv(), str(tmp_path)) as directory:
        first, second = read_stats(RealEnv(), directory, top=2)
        assert [(one.key, one.records, one.bytes) for one in first.top_keys] == [(b"c", 1, 9), (b"a", 2, 5)]
        assert [(one.key, one.records, one.bytes) for one in second.top_keys] == [(b"a", 1, 2)]
        assert all(topic.top_keys == () for topic in read_stats(RealEnv(), directory))
