"""An overlay shows the lower files, keeps changes to itself, and removes unused content."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.env.view import content_of
from tests.memory_env import MemoryEnv


class Below:
    """A directory with three files, and an overlay over it."""

    def __init__(self, env: Env, root: str) -> None:
        self.env = env
        self.directory = f"{root}/t-0"
        self.scratch = f"{root}/scratch"
        env.make_dirs(f"{self.directory}/deeper")
        env.make_dirs(self.scratch)
        for name, data in (("a", b"alpha"), ("b", b"beta"), ("empty", b"")):
            file = env.open(f"{self.directory}/{name}", create=True)
            file.append(data)
            file.close()
            env.set_mtime_ms(f"{self.directory}/{name}", 500)
        self.overlay = OverlayEnv(env, env, self.scratch, SettableClock(9000))
        self.overlay.add_directory(self.directory)

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def content(self) -> dict[str, tuple[bytes, int]]:
        """Contents of the lower directory."""
        env = self.env
        names = [name for name in env.list_dir(self.directory) if not env.is_dir(self.path(name))]
        return {name: (env.read_bytes(self.path(name)), env.mtime_ms(self.path(name))) for name in names}

    def scratch_files(self) -> list[str]:
        gc.collect()
        return self.env.list_dir(self.scratch)


@pytest.fixture(params=["real", "memory"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Below]:
    # Exclude earlier garbage from the collector, so that `scratch_files` examines few objects.
    gc.freeze()
    if request.param == "real":
        yield Below(RealEnv(SettableClock(1000)), str(tmp_path))
    else:
        yield Below(MemoryEnv(SettableClock(1000)), "/root")


def write(env: Env, path: str, data: bytes) -> None:
    file = env.open(path, create=True)
    file.truncate(0)
    file.append(data)
    file.close()


def test_the_files_below_are_shown(below: Below) -> None:
    """Files are shown with sizes and times; subdirectories and all other files are hidden."""
    overlay = below.overlay
    assert overlay.list_dir(below.directory) == ["a", "b", "empty"]
    assert overlay.read_bytes(below.path("a")) == content_of(overlay.view_file(below.path("a"))) == b"alpha"
    assert (overlay.file_size(below.path("b")), overlay.mtime_ms(below.path("b"))) == (4, 500)
    assert overlay.birth_ms(below.path("a")) == below.env.birth_ms(below.path("a"))
    assert overlay.is_dir(below.directory)
    assert not overlay.exists(below.scratch)
    with pytest.raises(FileNotFoundError):
        overlay.open(f"{below.scratch}/0")
    with pytest.raises(FileNotFoundError):
        overlay.list_dir(below.scratch)


def test_changes_stay_above(below: Below) -> None:
    """Writes, cuts, renames, removals and new files do not change the lower directory."""
    overlay, before = below.overlay, below.content()
    file = overlay.open(below.path("a"))
    file.append(b"!", b"?")
    file.pwrite(b"A", 0)
    assert (file.pread(99, 0), file.size()) == (b"Alpha!?", 7)
    file.truncate(5)
    file.sync()
    file.close()
    assert (overlay.read_bytes(below.path("a")), overlay.mtime_ms(below.path("a"))) == (b"Alpha", 9000)
    assert content_of(overlay.view_file(below.path("a"))) == b"Alpha"
    overlay.rename(below.path("a"), below.path("b"))
    overlay.remove(below.path("empty"))
    overlay.set_mtime_ms(below.path("b"), 7)
    new = overlay.create_new(below.path("new"))
    new.append(b"new")
    overlay.write_atomically(below.path("whole"), b"whole")
    overlay.sync_dir(below.directory)
    assert overlay.list_dir(below.directory) == ["b", "new", "whole"]
    assert (overlay.read_bytes(below.path("b")), overlay.mtime_ms(below.path("b"))) == (b"Alpha", 7)
    assert (overlay.read_bytes(below.path("new")), overlay.birth_ms(below.path("new"))) == (b"new", 9000)
    with pytest.raises(FileExistsError):
        overlay.create_new(below.path("new"))
    with pytest.raises(FileNotFoundError):
        overlay.remove(below.path("a"))
    overlay.remove(below.path("a"), missing_ok=True)
    assert below.content() == before


def test_opening_for_writing_copies_nothing(below: Below) -> None:
    """Only a change copies content; truncation to the same size is not a change."""
    file = below.overlay.open(below.path("a"))
    file.truncate(5)
    assert file.pread(5, 0) == b"alpha"
    file.close()
    assert below.scratch_files() == []
    assert below.overlay.mtime_ms(below.path("a")) == 500


def test_forks_go_their_own_ways(below: Below) -> None:
    """Changes in one fork do not affect the other, not even through a file opened before the fork."""
    overlay = below.overlay
    file = overlay.open(below.path("a"))
    file.append(b"1")
    fork = overlay.fork()
    file.append(b"2")
    write(fork, below.path("b"), b"other")
    fork.remove(below.path("empty"))
    assert (overlay.read_bytes(below.path("a")), fork.read_bytes(below.path("a"))) == (b"alpha12", b"alpha1")
    assert (overlay.read_bytes(below.path("b")), fork.read_bytes(below.path("b"))) == (b"beta", b"other")
    assert overlay.exists(below.path("empty"))
    write(fork, below.path("a"), b"")
    assert file.pread(9, 0) == b"alpha12"
    file.close()


def test_births_outlive_changes(below: Below) -> None:
    """A change keeps the file's birth time."""
    birth_ms = below.env.birth_ms(below.path("a"))
    write(below.overlay, below.path("a"), b"x")
    assert below.overlay.birth_ms(below.path("a")) == birth_ms


def test_open_files_see_changes_by_others(below: Below) -> None:
    """Two open files of one name behave like two descriptors; a removed file stays readable."""
    reader = below.overlay.open(below.path("a"), read_only=True)
    writer = below.overlay.open(below.path("a"))
    writer.pwrite(b"A", 0)
    writer.close()
    assert reader.pread(5, 0) == reader.try_pread(5, 0) == b"Alpha"
    below.overlay.remove(below.path("a"))
    assert reader.pread(5, 0) == b"Alpha"
    reader.close()
    del reader, writer
    assert below.scratch_files() == []


def test_scratch_files_go_with_the_last_fork(below: Below) -> None:
    """Scratch files are removed with the last fork, not before."""
    write(below.overlay, below.path("a"), b"x")
    fork = below.overlay.fork()
    assert len(below.scratch_files()) == 1
    below.overlay.remove(below.path("a"))
    assert len(below.scratch_files()) == 1
    assert fork.read_bytes(below.path("a")) == b"x"
    del fork
    assert below.scratch_files() == []


def test_locks_and_space(below: Below) -> None:
    """Locks have no effect; free space is that of the scratch directory."""
    below.overlay.lock(below.path(".lock")).release()
    assert below.overlay.lock_for_reading(below.path(".lock")) is None
    # Others use the same disk meanwhile.
    assert below.overlay.free_bytes() == pytest.approx(below.overlay.disk_usage(below.directory)[1], abs=1 << 26)
    assert below.overlay.free_bytes() > 0
