"""Starting on a directory that holds something else: refused in one line, and nothing in it is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig


def contents(place: Path) -> dict[str, bytes | None]:
    """Every file and directory below a place."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))
    }


def refusal(place: Path) -> str:
    """What a start says."""

    async def start() -> None:
        async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=place)):
            raise AssertionError("it started")

    with pytest.raises(CannotStart) as raised:
        asyncio.run(start())
    return str(raised.value)


@pytest.mark.parametrize("foreign", [".git", "src", "photos-2024", "to-delete", "mail-1.old-delete", "x-stray"])
def test_somebody_s_own_directory_is_left_as_it_is(tmp_path: Path, foreign: str) -> None:
    """Whatever the directories in it are called: none is set aside or removed, and nothing is added."""
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "a.txt").write_text("mine")
    (tmp_path / "README").write_text("mine")
    before = contents(tmp_path)
    wanted = (
        f"{tmp_path}: not a data directory, it holds {foreign!r}; take an empty one, or a new name. Nothing was changed"
    )
    assert refusal(tmp_path) == wanted
    assert contents(tmp_path) == before


@pytest.mark.parametrize("foreign", ["lost+found", "to-delete"])
async def test_a_data_directory_with_something_else_in_it(tmp_path: Path, foreign: str) -> None:
    """As Kafka's, it is refused with what to do, and stays as it was, its mark of an orderly stop included."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)):
        pass
    (tmp_path / foreign).mkdir()
    before = contents(tmp_path)
    said = await asyncio.to_thread(refusal, tmp_path)
    assert said.startswith(f"{tmp_path}/{foreign}: directory {foreign!r}: expected topic-partition")
    assert said.endswith("; move it out of the log directory")
    assert contents(tmp_path) == before
