"""Filters of keys say which segments need not be read for a key; they decide nothing else."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from diamant.cleaner.explain.scans import MAX_RECORDS
from diamant.cleaner.prompt.key_filter import KeyFilter, hash_id
from diamant.cleaner.prompt.segment_facts import KeyFacts, SegmentFacts, facts_path, file_facts
from tests.broker.operations.explain.explained import Stage, stage
from tests.naive import siphash128


async def file_filter(at: Stage, *keys: bytes, hash_key: bytes | None = None) -> None:
    """File facts of the first segment, as a round does, with these keys in its filter."""
    service = await at.service()
    segment = at.log.segments[0]
    used = service.view(at.log).hash_key if hash_key is None else hash_key
    key_filter = KeyFilter.of(array("Q", [int.from_bytes(siphash128(used, key)[:8], "little") for key in keys]))
    env = at.log.env
    facts = SegmentFacts(
        segment.base_offset,
        segment.size,
        env.mtime_ms(segment.path),
        env.birth_ms(segment.path),
        first_offset=0,
        keys=KeyFacts(hash_id(used), key_filter.key_count, has_keyless=False, has_unstamped=False),
    )
    file_facts(env, at.log.path, facts, key_filter.data)


def damage(path: str) -> None:
    """Replace a file's content."""
    Path(path).write_bytes(b"damaged")


async def large(at: Stage) -> None:
    """A closed segment of more than a megabyte with the key `k`, and an active one."""
    await at.put("k=1")
    for _ in range(3):
        await at.put("other=" + "x" * 400_000)
    await at.roll()
    await at.put("k=2")


async def test_a_segment_whose_filter_excludes_the_key_is_not_read(tmp_path: Path) -> None:
    """And one that does not exclude it is; so is one with a filter under another hash key, or of another file."""
    async with stage(tmp_path, min_cleanable_dirty_ratio="1") as at:
        await large(at)
        if at.log.env.birth_ms(at.log.segments[0].path) is None:
            pytest.skip("this file system knows no births, so filters are not trusted")
        assert (await at.partition(key="absent")).segments_read == 2
        await file_filter(at, b"k", b"other")
        assert (await at.partition(key="absent")).segments_read == 1
        found = await at.partition(key="k")
        assert (found.segments_read, [one.offset for one in found.records]) == (2, [0, 4])
        await file_filter(at, b"other", hash_key=bytes(16))
        assert (await at.partition(key="absent")).segments_read == 2
        damage(facts_path(at.log.path, 0))
        assert (await at.partition(key="absent")).segments_read == 2


async def test_more_records_than_are_told(tmp_path: Path) -> None:
    """The first ones and the live one are told, the others counted, and what supersedes what is right all the same."""
    async with stage(tmp_path) as at:
        await at.put(*(word for number in range(MAX_RECORDS + 3) for word in (f"k={number}", "z=1")))
        found = await at.partition(key="k")
        told = [(2 * number, 2 * number + 2) for number in range(MAX_RECORDS - 1)]
        assert [(one.offset, one.superseded_by) for one in found.records] == [*told, (2 * MAX_RECORDS + 4, None)]
        assert found.records_left_out == 3
