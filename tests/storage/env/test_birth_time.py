"""Birth times of files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.env.linux import birth_ms
from tests.memory_env import MemoryEnv

SLACK_MS = 60_000
"""Clocks of file systems may lag behind."""


def test_a_birth_outlives_writes_renames_and_file_times(tmp_path: Path) -> None:
    """The birth time is about now, and only a new file has another one."""
    env = RealEnv()
    path = str(tmp_path / "file")
    env.create_new(path).close()
    birth_ms = env.birth_ms(path)
    if birth_ms is None:
        pytest.skip("this file system keeps no births")
    assert abs(birth_ms - time.time_ns() // 1_000_000) < SLACK_MS
    file = env.open(path)
    file.append(b"more")
    file.close()
    env.set_mtime_ms(path, 5)
    env.rename(path, path + "-renamed")
    assert env.birth_ms(path + "-renamed") == birth_ms


@pytest.mark.parametrize("env", [RealEnv(), MemoryEnv()], ids=["real", "memory"])
def test_a_file_that_is_not_there_has_no_birth(env: Env) -> None:
    """A missing file raises FileNotFoundError, as in any other call."""
    with pytest.raises(FileNotFoundError):
        env.birth_ms("/nowhere/at/all")


def test_there_is_no_birth_time_where_the_system_knows_none(tmp_path: Path) -> None:
    """The birth time is None on a system without the call, or a file system without birth times."""
    assert birth_ms("/proc/self/stat") is None
    path = tmp_path / "file"
    path.touch()
    assert birth_ms(str(path), lambda: None) is None
    assert birth_ms(str(path), lambda: lambda *_arguments: -1) is None


def test_files_in_memory_have_births() -> None:
    """Birth times in memory come from the clock, and can be switched off."""
    clock = SettableClock(1000)
    env = MemoryEnv(clock)
    env.create_new("/a")
    clock.advance_ms(5)
    env.rename("/a", "/b")
    env.set_mtime_ms("/b", 7)
    assert env.birth_ms("/b") == 1000
    env.knows_births = False
    env.create_new("/c")
    assert env.birth_ms("/c") is None
