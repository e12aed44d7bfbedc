"""The lock that readers of a log directory share."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import InUse, StorageError
from tests.memory_env import MemoryEnv


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Env, str]:
    """An environment and the path of a lock file in it."""
    if request.param == "real":
        return RealEnv(), f"{tmp_path}/.lock"
    env = MemoryEnv()
    env.make_dirs("/data")
    return env, "/data/.lock"


def test_without_a_file_there_is_nothing_to_lock(place: tuple[Env, str]) -> None:
    """Without a lock file there is no lock, and none is created."""
    env, path = place
    assert env.lock_for_reading(path) is None
    assert not env.exists(path)


def test_readers_share_and_keep_writers_away(place: tuple[Env, str]) -> None:
    """Readers share the lock and exclude writers, even within one process; the file outlives the last reader."""
    env, path = place
    env.open(path, create=True).close()
    first = env.lock_for_reading(path)
    second = env.lock_for_reading(path)
    assert first is not None
    assert second is not None
    first.release()
    first.release()
    with pytest.raises(InUse, match="in use by this process already"):
        env.lock(path)
    second.release()
    assert env.exists(path)
    env.lock(path).release()


def test_a_file_made_for_readers_goes_with_the_last_of_them(place: tuple[Env, str]) -> None:
    """After an orderly stop there is no lock file; while readers create one no broker can start, and the last removes it."""
    env, path = place
    first = env.lock_for_reading(path, create=True)
    second = env.lock_for_reading(path, create=True)
    assert first is not None
    assert second is not None
    first.release()
    assert env.exists(path)
    with pytest.raises(InUse):
        env.lock(path)
    second.release()
    assert not env.exists(path)
    env.open(path, create=True).close()
    third = env.lock_for_reading(path, create=True)
    assert third is not None
    third.release()
    assert env.exists(path)


def test_a_file_made_for_readers_stays_for_those_of_other_processes(tmp_path: Path) -> None:
    """The file stays while other processes read: a lock on a removed file would guard nothing."""
    path = str(tmp_path / ".lock")
    held = RealEnv().lock_for_reading(path, create=True)
    assert held is not None
    program = "import sys; held = RealEnv().lock_for_reading(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with python(program, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        held.release()
        assert Path(path).exists()
        with pytest.raises(InUse, match="in use by another process"):
            RealEnv().lock(path)
        other.communicate()
    RealEnv().lock(path).release()


def test_a_directory_that_cannot_be_written_to() -> None:
    """If the lock file cannot be created, the caller gets an error."""
    with pytest.raises(OSError, match=r"Permission denied|Read-only"):
        RealEnv().lock_for_reading("/sys/.lock", create=True)
    assert RealEnv().lock_for_reading("/sys/.lock") is None


@pytest.mark.parametrize("take", [RealEnv().lock_for_reading, RealEnv().lock], ids=["reader", "writer"])
def test_reading_the_file_does_not_drop_its_lock(tmp_path: Path, take: Callable[[str], Any]) -> None:
    """A scan reads all files of a directory, including the lock file, and may still read when the lock is released."""
    path = str(tmp_path / ".lock")
    Path(path).write_bytes(b"lock")
    held = take(path)
    file = RealEnv().open(path, read_only=True)
    for name in (path, f"{tmp_path}/./.lock"):
        RealEnv().open(name, read_only=True).close()
    for make, name in ((os.link, "links"), (os.symlink, "symlinks")):
        # As of a copy by hard links that somebody has made below the directory.
        (tmp_path / name).mkdir()
        make(path, tmp_path / name / ".lock")
        RealEnv().open(str(tmp_path / name / ".lock"), read_only=True).close()
    assert "in use by another process" in in_another_process("lock", path)
    with pytest.raises(InUse, match="in use by this process"):
        RealEnv().lock(path)
    assert "in use by another process" in in_another_process("lock", path)  # nor did that try
    held.release()
    Path(tmp_path, "other").write_bytes(b"not the lock")
    other = os.open(tmp_path / "other", os.O_RDONLY)  # would get the descriptor if it were free
    assert file.pread(4, 0) == b"lock"
    os.close(other)


def test_a_reader_that_is_still_at_it_does_not_drop_the_next_lock(tmp_path: Path) -> None:
    """The next lock is taken by the descriptor that is still open."""
    path = str(tmp_path / ".lock")
    Path(path).touch()
    first = RealEnv().lock_for_reading(path)
    assert first is not None
    file = RealEnv().open(path, read_only=True)
    first.release()
    second = RealEnv().lock_for_reading(path)
    assert second is not None
    file.close()
    assert "in use by another process" in in_another_process("lock", path)
    second.release()
    assert in_another_process("lock", path) == ""


def test_a_writer_of_this_process_is_not_disturbed(place: tuple[Env, str]) -> None:
    """A reader is refused before it opens the file, since closing it would drop the writer's lock."""
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
    """A writer excludes readers and writers, a reader only writers; a lock ends with its process."""
    path = str(tmp_path / ".lock")
    (tmp_path / ".lock").touch()
    held = take(path)
    assert "in use by another process" in in_another_process("lock", path)
    is_reader = take.__name__ == "lock_for_reading"
    assert (in_another_process("lock_for_reading", path) == "") is is_reader
    held.release()  # type: ignore[attr-defined]
    (tmp_path / ".lock").touch()
    assert in_another_process("lock", path) == ""
    assert (tmp_path / ".lock").exists()
    RealEnv().lock(path).release()


@pytest.mark.parametrize("take", [RealEnv.lock, RealEnv.lock_for_reading])
def test_a_file_system_without_locks(
    take: Callable[[RealEnv, str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, although the system's error does not."""
    path = f"{tmp_path}/.lock"
    Path(path).touch()

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", lockf)
    with pytest.raises(OSError, match="cannot be locked: No locks available") as raised:
        take(RealEnv(), path)
    assert raised.value.filename == path


def in_another_process(method: str, path: str) -> str:
    """Take a lock in another process; return its standard error."""
    program = f"from diamant.storage.env.env import RealEnv; RealEnv().{method}({path!r})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr


def python(program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Another process that knows RealEnv."""
    program = f"from diamant.storage.env.env import RealEnv\n{program}"
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **options)
