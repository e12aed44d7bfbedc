"""Moves run in order, and can be repeated after a process has died in the middle of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diamant.storage.env.env import RealEnv
from diamant.storage.log.moves import EnvDirectory, Moves, carry_out, moves_from

STEP = Moves(
    "/none",
    guard="5.log.swap",
    retiring=("5.log", "5.index", "5.txnindex", "9.log", "9.index"),
    dropped=("9.log.swap",),
    arriving=(("5.log.swap", "5.log"), ("5.index.swap", "5.index"), ("5.txnindex.swap", "5.txnindex")),
    outdated=("9.snapshot",),
    is_synced=True,
)
"""Segments 5 and 9 become one, which has the names of the first."""
BEFORE = ("5.log", "5.index", "9.log", "9.index", "9.snapshot", "5.log.swap", "5.index.swap", "9.log.swap", "12.log")
AFTER = {
    "5.log": "5.log.swap",
    "5.index": "5.index.swap",
    "5.log.deleted": "5.log",
    "5.index.deleted": "5.index",
    "9.log.deleted": "9.log",
    "9.index.deleted": "9.index",
    "9.snapshot.deleted": "9.snapshot",
    "12.log": "12.log",
}
"""What is there in the end, and what it was called."""


class Died(Exception):
    """The process that carries out moves has died."""


class MortalPlace(EnvDirectory):
    """Dies after a given number of changes."""

    def __init__(self, path: Path, changes: int) -> None:
        super().__init__(RealEnv(), str(path))
        self.changes_left = changes

    def _change(self) -> None:
        if not self.changes_left:
            raise Died
        self.changes_left -= 1

    def rename(self, old: str, new: str) -> None:
        self._change()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._change()
        super().remove(name)

    def sync(self) -> None:
        self._change()
        super().sync()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory in which each file contains its original name."""
    for name in BEFORE:
        (tmp_path / name).write_text(name)
    return tmp_path


def content(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir()}


@pytest.mark.parametrize("changes", range(11))
def test_a_step_that_was_interrupted_is_carried_out_again(place: Path, changes: int) -> None:
    """Whichever change came last, nothing is moved twice, although a source and the new segment have the same name."""
    with pytest.raises(Died):
        carry_out(MortalPlace(place, changes), STEP)
    carry_out(EnvDirectory(RealEnv(), str(place)), STEP)
    assert content(place) == AFTER


def test_a_step_that_was_over_changes_nothing(place: Path) -> None:
    """A completed step may run again, since only its response may have been lost."""
    for _ in range(2):
        carry_out(EnvDirectory(RealEnv(), str(place)), STEP)
        assert content(place) == AFTER


def test_files_of_another_partition_stay(tmp_path: Path) -> None:
    """If another directory has taken the deleted one's name, its files with the names of sources are not touched."""
    for name in ("5.log", "9.log"):
        (tmp_path / name).write_text("another")
    carry_out(EnvDirectory(RealEnv(), str(tmp_path)), STEP._replace(outdated=()))
    assert content(tmp_path) == {"5.log": "another", "9.log": "another"}


def test_a_log_file_must_be_there(tmp_path: Path) -> None:
    """A missing `.log` file is an error; indexes may be missing."""
    place = EnvDirectory(RealEnv(), str(tmp_path))
    moves = Moves("/none", arriving=(("5.log.cleaned", "5.log.swap"), ("5.index.cleaned", "5.index.swap")))
    with pytest.raises(FileNotFoundError):
        carry_out(place, moves)
    (tmp_path / "5.log.cleaned").touch()
    carry_out(place, moves)
    assert list(content(tmp_path)) == ["5.log.swap"]


def test_moves_are_sent_as_json() -> None:
    """Moves survive the conversion to JSON and back."""
    assert moves_from(json.loads(json.dumps(STEP))) == STEP
