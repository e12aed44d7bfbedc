"""Files that begin their way to the disk before they are synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.storage.env.env import RealEnv
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.env.write_back import begin_write_back, load_sync_file_range


def test_a_file_keeps_its_bytes_and_takes_more(tmp_path: Path) -> None:
    """Whatever the disk has of it by then."""
    env, path = RealEnv(), str(tmp_path / "file")
    file = env.create_new(path)
    file.append(b"first ")
    begin_write_back(file.fileno())
    file.append(b"second")
    begin_write_back(file.fileno())
    file.close()
    assert env.read_bytes(path) == b"first second"


def test_the_whole_file_is_asked_for(tmp_path: Path) -> None:
    """From its first byte to its end, and nothing is waited for."""
    asked: list[tuple[int, ...]] = []

    def begin(*arguments: int) -> int:
        asked.append(arguments)
        return 0

    file = RealEnv().create_new(str(tmp_path / "file"))
    begin_write_back(file.fileno(), lambda: begin)
    assert asked == [(file.fileno(), 0, 0, 2)]
    file.close()


def test_where_it_cannot_be_had_nothing_happens() -> None:
    """Files in memory have no descriptor, other systems no such call, and a descriptor that is closed is no error here."""
    begin_write_back(MemoryEnv().create_new("/file").fileno())
    begin_write_back(1, lambda: None)
    begin_write_back(1 << 20)


@pytest.mark.skipif(load_sync_file_range() is None, reason="this system has no such call")
def test_linux_has_it() -> None:
    """It is looked up once."""
    assert load_sync_file_range() is load_sync_file_range()
