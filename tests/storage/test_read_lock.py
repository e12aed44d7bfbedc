"""The lock that readers of a log directory share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.storage.env import Env, RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.memory_env import MemoryEnv


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Env, str]:
    """An environment and the path of a lock file in it."""
    if request.param == "real":
        return RealEnv(), f"{tmp_path}/.lock"
    env = MemoryEnv()
    env.make_dirs("/data")
    return env, "/data/.lock"


def test_without_a_file_there_is_nothing_to_lock(place: tuple[Env, str]) -> None:
    """And none is made."""
    env, path = place
    assert env.lock_for_reading(path) is None
    assert not env.exists(path)


def test_readers_share_and_keep_writers_away(place: tuple[Env, str]) -> None:
    """In memory also within the process; the file stays when the last reader has gone."""
    env, path = place
    env.open(path, create=True).close()
    first = env.lock_for_reading(path)
    second = env.lock_for_reading(path)
    assert first is not None
    assert second is not None
    first.release()
    first.release()
    if isinstance(env, MemoryEnv):
        with pytest.raises(StorageError):
            env.lock(path)
    second.release()
    assert env.exists(path)
    env.lock(path).release()


def test_a_writer_of_this_process_is_not_disturbed(place: tuple[Env, str]) -> None:
    """The reader is refused before it opens the file, which would drop the writer's lock."""
    env, path = place
    lock = env.lock(path)
    with pytest.raises(StorageError, match="in use by this process"):
        env.lock_for_reading(path)
    if isinstance(env, RealEnv):
        assert "in use by another process" in in_another_process("lock_for_reading", path)
    lock.release()


@pytest.mark.slow
@pytest.mark.parametrize("take", [RealEnv().lock_for_reading, RealEnv().lock], ids=["reader", "writer"])
def test_other_processes_are_kept_away(tmp_path: Path, take: Callable[[str], object]) -> None:
    """A writer excludes all, a reader only writers."""
    path = str(tmp_path / ".lock")
    (tmp_path / ".lock").touch()
    held = take(path)
    assert "in use by another process" in in_another_process("lock", path)
    is_reader = take.__name__ == "lock_for_reading"
    assert (in_another_process("lock_for_reading", path) == "") is is_reader
    held.release()  # type: ignore[attr-defined]
    (tmp_path / ".lock").touch()
    assert in_another_process("lock", path) == ""


def in_another_process(method: str, path: str) -> str:
    """Take a lock in another process; return what that says on standard error."""
    program = f"from diamant.storage.env import RealEnv; RealEnv().{method}({path!r})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
