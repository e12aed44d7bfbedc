"""Which files an explanation reads: all that the log has let go of, and it says what it leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diamant.broker.operations.records import log_files
from diamant.storage import names
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.operations.explain.explained import START_MS, stage


async def test_all_files_that_the_log_has_let_go_of_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; those that are gone when their turn comes are not on the disk."""
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
        (f"{0:020d}.log.aside", "1 files that a start has taken out"),
        (f"{0:020d}.index.cleaned", ""),
        ("notes.txt", ""),
    ],
)
async def test_outputs_of_a_round_and_what_was_set_aside_are_not_read_which_is_told(
    tmp_path: Path, name: str, told: str
) -> None:
    """They may have copies of the record that is asked about, by key or by offset, and older ones."""
    async with stage(tmp_path) as at:
        await at.put("k=1")
        path = Path(at.log.path) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        for question in ({"key": "k"}, {"offset": 0, "partition": 0}):
            (one,) = (await at.broker.explain("t", **question)).partitions
            assert [record.offset for record in one.records] == [0]
            assert [problem.startswith(told) for problem in one.problems] == [True] * bool(told)
