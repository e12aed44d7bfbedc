"""Early write-back of files before their sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.storage.env.env import RealEnv
from diamant.storage.env.linux import begin_write_back, load_sync_file_range
from tests.memory_env import MemoryEnv


def test_a_file_keeps_its_bytes_and_takes_more(tmp_path: Path) -> None:
    """Write-back changes neither content nor further appends, whatever has reached the disk."""
    env, path = RealEnv(), str(tmp_path / "file")
    file = env.create_new(path)
    file.append(b"first ")
    begin_write_back(file.fileno())
    file.append(b"second")
    begin_write_back(file.fileno())
    file.close()
    assert env.read_bytes(path) == b"first second"


def test_the_whole_file_is_asked_for(tmp_path: Path) -> None:
    """The call covers the file from its first byte to its end, and does not wait."""
    asked: list[tuple[int, ...]] = []

    def begin(*arguments: int) -> int:
        asked.append(arguments)
        return 0

    file = RealEnv().create_new(str(tmp_path / "file"))
    begin_write_back(file.fileno(), lambda: begin)
    assert asked == [(file.fileno(), 0, 0, 2)]
    file.close()


def test_write_back_does_nothing_where_it_is_not_possible() -> None:
    """Files without a descriptor, systems without the call, and closed descriptors are no errors."""
    begin_write_back(MemoryEnv().create_new("/file").fileno())
    begin_write_back(1, lambda: None)
    begin_write_back(1 << 20)


@pytest.mark.skipif(load_sync_file_range() is None, reason="this system has no such call")
def test_linux_has_it() -> None:
    """On Linux the function exists, and is looked up once."""
    assert load_sync_file_range() is load_sync_file_range()
