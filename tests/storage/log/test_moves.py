"""Moves run in order, and can be repeated after a process has died in the middle of them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from diamant.storage.log.moves import EnvDirectory, Moves, carry_out, moves_from
from tests.memory_env import Loss, MemoryEnv, PowerOff

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


PLACE = "/place"


@pytest.fixture
def place(memory: MemoryEnv) -> EnvDirectory:
    """An empty directory."""
    memory.make_dirs(PLACE)
    return EnvDirectory(memory, PLACE)


def fill(memory: MemoryEnv, names: Iterable[str] = BEFORE) -> None:
    """Create files that contain their names."""
    for name in names:
        memory.write_atomically(f"{PLACE}/{name}", name.encode())


def content(memory: MemoryEnv) -> dict[str, str]:
    return {name: memory.read_bytes(f"{PLACE}/{name}").decode() for name in memory.list_dir(PLACE)}


@pytest.mark.parametrize("stop", [*({"changes": number} for number in range(10)), {"syncs": 0}], ids=str)
def test_a_step_that_was_interrupted_is_carried_out_again(
    memory: MemoryEnv, place: EnvDirectory, stop: dict[str, int]
) -> None:
    """Whichever change came last, nothing is moved twice, although a source and the new segment have the same name.

    A completed step may run again, too, since only its response may have been lost.
    """
    fill(memory)
    memory.power_off_after(**stop)
    with pytest.raises(PowerOff):
        carry_out(place, STEP)
    memory.crash(Loss(names=1, content=1))
    for _ in range(2):
        carry_out(place, STEP)
        assert content(memory) == AFTER


def test_files_of_another_partition_stay(memory: MemoryEnv, place: EnvDirectory) -> None:
    """If another directory has taken the deleted one's name, its files with the names of sources are not touched."""
    fill(memory, ("5.log", "9.log"))
    carry_out(place, STEP._replace(outdated=()))
    assert content(memory) == {"5.log": "5.log", "9.log": "9.log"}


def test_a_log_file_must_be_there(memory: MemoryEnv, place: EnvDirectory) -> None:
    """A missing `.log` file is an error; indexes may be missing."""
    moves = Moves("/none", arriving=(("5.log.cleaned", "5.log.swap"), ("5.index.cleaned", "5.index.swap")))
    with pytest.raises(FileNotFoundError):
        carry_out(place, moves)
    fill(memory, ("5.log.cleaned",))
    carry_out(place, moves)
    assert list(content(memory)) == ["5.log.swap"]


def test_moves_are_sent_as_json() -> None:
    """Moves survive the conversion to JSON and back."""
    assert moves_from(json.loads(json.dumps(STEP))) == STEP
