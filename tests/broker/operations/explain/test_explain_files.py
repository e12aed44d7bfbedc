"""Files and segments read by an explanation, and those omitted."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pytest

from diamant.broker.operations.records import log_files
from diamant.cleaner.explain.scans import MAX_RECORDS
from diamant.cleaner.facts.facts_file import facts_path, file_facts
from diamant.cleaner.facts.key_filter import KeyFilter, hash_id
from diamant.cleaner.facts.segment_facts import KeyFacts, SegmentFacts
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.operations.explain.explained import START_MS, Stage, stage
from tests.naive import siphash128


async def test_all_files_that_the_log_has_let_go_of_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; those removed before they are read are no longer on disk."""
    monkeypatch.setattr(log_files, "MAX_OPEN_FILES", 2)
    gone: list[str] = []

    class Vanishing(RealEnv):
        def file_size(self, path: str) -> int:
            if path.endswith(tuple(gone)):
                raise FileNotFoundError(path)
            return super().file_size(path)

    async with stage(tmp_path, env=Vanishing(SettableClock(START_MS))) as at:
        for number in range(7):
            await at.put(f"k={number}")
            await at.roll()
        await at.put("z=1")
        for segment in at.log.segments[:6]:
            shutil.copy(segment.path, f"{segment.path}.deleted")
        found = await at.partition(key="k")
        removed = [one.offset for one in found.records if one.segment.endswith(".deleted")]
        assert (removed, found.problems) == ([0, 1, 2, 3, 4, 5], ())
        gone.append(f"{3:020d}.log.deleted")
        found = await at.partition(key="k")
        assert [one.offset for one in found.records if one.segment.endswith(".deleted")] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"{0:020d}.log.cleaned", "1 outputs of a round"),
        (f"{0:020d}.log.swap", "1 outputs of a round"),
        (f"{names.STAGING_PREFIX}a-b-c/1.log", "1 outputs of a round"),
        (f"{0:020d}.log.aside", "1 files that the broker took out of the log"),
        (f"{0:020d}.index.cleaned", ""),
        ("notes.txt", ""),
    ],
)
async def test_outputs_of_a_round_and_what_was_set_aside_are_not_read_which_is_reported(
    tmp_path: Path, name: str, told: str
) -> None:
    """Outputs and set-aside files may hold copies of the requested record, by key or by offset, and older ones."""
    async with stage(tmp_path) as at:
        await at.put("k=1")
        path = Path(at.log.path) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        for question in ({"key": "k"}, {"offset": 0, "partition": 0}):
            (one,) = (await at.broker.explain("t", **question)).partitions
            assert [record.offset for record in one.records] == [0]
            assert [problem.startswith(told) for problem in one.problems] == [True] * bool(told)


async def file_filter(at: Stage, *keys: bytes, hash_key: bytes | None = None) -> None:
    """Write facts of the first segment, as a round does, with a filter of these keys."""
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
    await at.play("roll | k=2")


async def test_a_segment_whose_filter_excludes_the_key_is_not_read(tmp_path: Path) -> None:
    """Segments are read if the filter admits the key, has another hash key, or belongs to another file."""
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


async def test_more_records_than_are_reported(tmp_path: Path) -> None:
    """The first ones and the live one are listed, the others counted, and superseding records stay correct."""
    async with stage(tmp_path) as at:
        await at.put(*(word for number in range(MAX_RECORDS + 3) for word in (f"k={number}", "z=1")))
        found = await at.partition(key="k")
        told = [(2 * number, 2 * number + 2) for number in range(MAX_RECORDS - 1)]
        assert [(one.offset, one.superseded_by) for one in found.records] == [*told, (2 * MAX_RECORDS + 4, None)]
        assert found.records_left_out == 3
