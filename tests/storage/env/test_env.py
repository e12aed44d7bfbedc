"""Common behaviour of the real and the in-memory file system, and behaviour of the real one."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv, parent
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.env.view import content_of, part_of
from diamant.storage.errors import StorageError
from tests.memory_env import MemoryEnv


@pytest.fixture(params=["real", "memory", "overlay"])
def any_env(request: pytest.FixtureRequest, tmp_path: Path) -> Env:
    """The operating system, the model of it, and changes over one, one after the other."""
    clock = SettableClock(1000)
    if request.param == "real":
        return RealEnv(clock)
    memory = MemoryEnv(clock)
    if request.param == "memory":
        return memory
    memory.make_dirs("/scratch")
    memory.make_dirs(str(tmp_path))
    overlay = OverlayEnv(memory, memory, "/scratch", clock)
    overlay.add_directory(str(tmp_path))
    return overlay


disks = pytest.mark.parametrize("any_env", ["real", "memory"], indirect=True)
"""An overlay has no locks, and moves no directories."""


@pytest.fixture
def root(any_env: Env, tmp_path: Path) -> str:
    """An empty directory in either."""
    path = str(tmp_path / "data")
    any_env.make_dirs(path)
    return path


def test_append_and_read(any_env: Env, root: str) -> None:
    """Appended buffers are read back in order; the size is counted; reading past the end is short."""
    file = any_env.open(f"{root}/f", create=True)
    file.append(b"abc")
    file.append(bytearray(b"de"), memoryview(b"xfgx")[1:3], b"")
    file.append()
    assert file.size() == 7
    assert file.pread(100, 0) == b"abcdefg"
    assert file.pread(2, 3) == b"de"
    assert file.pread(5, 7) == b""
    assert file.try_pread(3, 4) in (b"efg", None)
    assert file.try_pread(3, 70) == b""
    assert any_env.file_size(f"{root}/f") == 7
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        file.pread(1, 0)


def test_a_read_at_once_that_fails_is_left_to_pread(env: RealEnv, tmp_path: Path) -> None:
    """The event loop reads this way, where an error would leave a request without an answer."""
    file = env.open(str(tmp_path / "f"), create=True)
    file.append(b"abc")
    file.close()
    assert file.try_pread(3, 0) is None


def test_more_buffers_than_one_call_takes(any_env: Env, root: str) -> None:
    """Any number of buffers may be appended at once."""
    file = any_env.open(f"{root}/f", create=True)
    buffers = [bytes([number % 251]) * (number % 3) for number in range(5000)]
    file.append(*buffers)
    assert file.pread(20_000, 0) == b"".join(buffers)
    assert file.size() == sum(map(len, buffers))


def test_overwrite_and_truncate(any_env: Env, root: str) -> None:
    """Bytes can be overwritten, a gap is zeros, and what follows a cut goes at the new end."""
    file = any_env.open(f"{root}/f", create=True)
    file.append(b"0123456789")
    file.pwrite(b"xy", 4)
    file.pwrite(b"z", 12)
    assert file.pread(20, 0) == b"0123xy6789\0\0z"
    assert file.size() == 13
    file.truncate(3)
    file.append(b"!")
    assert any_env.read_bytes(f"{root}/f") == b"012!"
    file.truncate(6)
    assert file.pread(10, 0) == b"012!\0\0"
    assert file.size() == 6


@pytest.mark.parametrize(
    ("there", "position", "expected"),
    [
        (None, 0, b"new"),
        (b"0123456789", 0, b"new"),
        (b"0123456789", 2, b"01new"),
        (b"0123456789", 10, b"0123456789new"),
        (b"01", 4, b"01\0\0new"),
    ],
)
def test_writing_the_end_of_a_file(
    any_env: Env, root: str, there: bytes | None, position: int, expected: bytes
) -> None:
    """The file ends behind the data, wherever it ended before; a gap is zeros. Without data it is only cut."""
    if there is not None:
        any_env.write_atomically(f"{root}/f", there)
    any_env.write_tail(f"{root}/f", b"new", position)
    assert any_env.read_bytes(f"{root}/f") == expected
    any_env.write_tail(f"{root}/f", b"", position)
    assert any_env.read_bytes(f"{root}/f") == expected[:position]


def test_a_missing_file_is_an_error_unless_it_is_created(any_env: Env, root: str) -> None:
    """A missing file is an error unless it is to be created; an exclusive creation fails if it is there."""
    path = f"{root}/f"
    for kind in ({}, {"read_only": True}):
        with pytest.raises(FileNotFoundError):
            any_env.open(path, **kind)
    any_env.create_new(path).append(b"x")
    with pytest.raises(FileExistsError):
        any_env.create_new(path)
    again = any_env.open(path, create=True)
    assert again.size() == 1
    again.append(b"y")
    reader = any_env.open(path, read_only=True)
    assert reader.pread(2, 0) == b"xy"
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        reader.append(b"z")


def test_directories_are_made_listed_and_removed(any_env: Env, root: str) -> None:
    """Directories are made with their parents, listed in order, told from files, and removed whole."""
    any_env.make_dirs(f"{root}/b/c")
    any_env.make_dirs(f"{root}/b/c")
    any_env.open(f"{root}/a", create=True)
    any_env.open(f"{root}/b/c/d", create=True)
    assert any_env.list_dir(root) == ["a", "b"]
    assert any_env.is_dir(f"{root}/b")
    assert not any_env.is_dir(f"{root}/a")
    assert any_env.exists(f"{root}/a")
    assert not any_env.exists(f"{root}/z")
    any_env.remove_tree(f"{root}/b")
    any_env.remove_tree(f"{root}/b")
    assert any_env.list_dir(root) == ["a"]
    any_env.remove(f"{root}/a")
    any_env.remove(f"{root}/a", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        any_env.remove(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        any_env.list_dir(f"{root}/b")
    any_env.sync_dir(f"{root}/b")
    any_env.sync_dir(root)


@disks
def test_a_rename_replaces_files_and_moves_directories(any_env: Env, root: str) -> None:
    """A rename replaces a file, moves a directory with its content, and open files stay the same files."""
    file = any_env.open(f"{root}/a", create=True)
    file.append(b"a")
    any_env.open(f"{root}/b", create=True).append(b"b")
    any_env.rename(f"{root}/a", f"{root}/b")
    file.append(b"!")
    assert any_env.list_dir(root) == ["b"]
    assert any_env.read_bytes(f"{root}/b") == b"a!"
    any_env.make_dirs(f"{root}/d")
    any_env.rename(f"{root}/b", f"{root}/d/b")
    any_env.rename(f"{root}/d", f"{root}/e")
    assert any_env.read_bytes(f"{root}/e/b") == b"a!"
    with pytest.raises(FileNotFoundError):
        any_env.rename(f"{root}/nothing", f"{root}/b")


def test_a_removed_file_can_still_be_read(any_env: Env, root: str) -> None:
    """Readers are not affected if their segment is deleted."""
    any_env.open(f"{root}/a", create=True).append(b"abc")
    file = any_env.open(f"{root}/a", read_only=True)
    any_env.remove(f"{root}/a")
    assert file.pread(3, 0) == b"abc"


def test_atomic_writes(any_env: Env, root: str) -> None:
    """A small file is replaced whole, and no temporary file stays behind."""
    for sync in (True, False):
        any_env.write_atomically(f"{root}/f", b"a much longer content", sync=sync)
        any_env.write_atomically(f"{root}/f", b"short", sync=sync)
        assert any_env.read_bytes(f"{root}/f") == b"short"
        assert any_env.list_dir(root) == ["f"]
    with pytest.raises(FileNotFoundError):
        any_env.write_atomically(f"{root}/missing/f", b"")


@disks
def test_maps_follow_changes(any_env: Env, root: str) -> None:
    """A view shows the current file after a write, replacement or rename, whether small or large."""
    for size in (10, 100_000):
        path = f"{root}/f{size}"
        any_env.open(path, create=True).append(b"a" * size)
        assert content_of(any_env.view_file(path)) == b"a" * size
        assert content_of(any_env.view_file(path)) == b"a" * size
        any_env.open(path).append(b"b")
        view = any_env.view_file(path)
        assert part_of(view, size - 1, 2) == b"ab"
        any_env.write_atomically(path, b"c" * size)
        assert content_of(any_env.view_file(path)) == b"c" * size
        assert part_of(view, size - 1, 2) == b"ab"
        any_env.make_dirs(f"{root}/d")
        any_env.rename(path, f"{root}/d/f")
        with pytest.raises(FileNotFoundError):
            any_env.view_file(path)
        assert content_of(any_env.view_file(f"{root}/d/f")) == b"c" * size
        any_env.rename(f"{root}/d", f"{root}/e")
        with pytest.raises(FileNotFoundError):
            any_env.view_file(f"{root}/d/f")
        any_env.remove_tree(f"{root}/e")
        with pytest.raises(FileNotFoundError):
            any_env.view_file(f"{root}/e/f")
    any_env.open(f"{root}/empty", create=True)
    assert content_of(any_env.view_file(f"{root}/empty")) == b""


@disks
@pytest.mark.slow
def test_maps_follow_a_directory_above(any_env: Env, root: str) -> None:
    """After a directory is renamed or removed, old paths give current contents, even if views were evicted."""
    names = [f"{name}/{index}" for name in ("d", "e") for index in range(192)]
    for content in (b"a", b"b", b"c"):
        for name in names:
            any_env.make_dirs(parent(f"{root}/new/{name}"))
            any_env.open(f"{root}/new/{name}", create=True).append(content)
        if content == b"b":
            any_env.rename(f"{root}/top", f"{root}/old")
        elif content == b"c":
            any_env.remove_tree(f"{root}/top")
        any_env.rename(f"{root}/new", f"{root}/top")
        # The latest views are still cached at the next iteration, the others were evicted.
        assert {content_of(any_env.view_file(f"{root}/top/{name}")) for name in reversed(names)} == {content}
        names.reverse()


def test_the_time_of_a_file_can_be_set(any_env: Env, root: str) -> None:
    """A file's time can be set, to the millisecond."""
    any_env.open(f"{root}/f", create=True)
    any_env.set_mtime_ms(f"{root}/f", 1_234_567_890_123)
    assert any_env.mtime_ms(f"{root}/f") == 1_234_567_890_123


def test_syncs_and_space(any_env: Env, root: str) -> None:
    """Files can be synced open and closed; the file system reports its total and free space."""
    file = any_env.open(f"{root}/f", create=True)
    file.append(b"x")
    file.sync()
    any_env.sync_file(f"{root}/f")
    with pytest.raises(FileNotFoundError):
        any_env.sync_file(f"{root}/g")
    total, free = any_env.disk_usage(root)
    assert total >= free > 0


@disks
def test_a_directory_can_be_locked_once(any_env: Env, root: str) -> None:
    """A directory can be locked once, by a file that is removed with the lock."""
    lock = any_env.lock(f"{root}/.lock")
    assert any_env.list_dir(root) == [".lock"]
    with pytest.raises(StorageError, match="in use"):
        any_env.lock(f"{root}/.lock")
    lock.release()
    lock.release()
    assert any_env.list_dir(root) == []
    any_env.lock(f"{root}/.lock").release()


def test_a_lock_whose_file_cannot_be_removed_is_released(tmp_path: Path) -> None:
    """The disk may refuse: the directory can be locked again all the same."""
    path = tmp_path / ".lock"
    lock = RealEnv().lock(str(path))
    path.unlink()
    path.mkdir()
    lock.release()
    path.rmdir()
    RealEnv().lock(str(path)).release()


def test_the_parent_of_a_bare_name_is_the_current_directory() -> None:
    """The parent of a path without a directory is the current directory."""
    assert parent("/a/b") == "/a"
    assert parent("b") == "."


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system takes only part of an append, the rest is written after it."""
    real_pwrite = os.pwrite

    def short_pwrite(fd: int, data: bytes, position: int) -> int:
        return real_pwrite(fd, bytes(data)[:3], position)

    def short_pwritev(fd: int, buffers: list[bytes], position: int) -> int:
        return real_pwrite(fd, b"".join(buffers)[:5], position)

    file = RealEnv().open(str(tmp_path / "f"), create=True)
    for short in (short_pwrite, short_pwritev):
        monkeypatch.setattr(os, short.__name__.removeprefix("short_"), short)
    file.append(b"0123456789")
    file.append(b"abcd", b"", b"efghij", b"k")
    file.pwrite(b"XYZUVW", 1)
    assert file.pread(100, 0) == b"0XYZUVW789abcdefghijk"
    assert file.size() == 21


@pytest.mark.parametrize("size", [0, 1, 1000, 20_000])
@pytest.mark.usefixtures("short_reads")
def test_short_reads_are_completed(tmp_path: Path, size: int) -> None:
    """When the system returns only half of what is asked for, a file, a view and a small file are still read whole."""
    path, content = str(tmp_path / "f"), bytes(index % 251 for index in range(size))
    (tmp_path / "f").write_bytes(content)
    env = RealEnv()
    file = env.open(path, read_only=True)
    view = env.view_file(path)
    assert file.pread(size + 9, 0) == content_of(view) == env.read_bytes(path) == content
    assert file.pread(700, 100) == part_of(view, 100, 700) == content[100:800]
    assert part_of(view, max(0, size - 5), 9) == content[-5:]
    file.close()


def test_a_failed_append_leaves_the_size(tmp_path: Path) -> None:
    """After an append that failed half-way the size is as before, and the next append overwrites what it left."""
    file = RealEnv().open(str(tmp_path / "f"), create=True)
    file.append(b"abc")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, limits[1]))  # a short write, then an error
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append(b"0123456789")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.size() == 3
    assert (tmp_path / "f").read_bytes() == b"abc0123"
    file.truncate(file.size())
    file.append(b"de")
    assert (tmp_path / "f").read_bytes() == b"abcde"


def test_only_so_many_maps_are_kept(tmp_path: Path) -> None:
    """The cache of views is bounded; the least recently used view is evicted first."""
    env = RealEnv(max_cached_views=3)
    paths = [str(tmp_path / str(number)) for number in range(5)]
    for path in paths:
        env.write_atomically(path, b"x" * 20_000)
        env.view_file(paths[0])
        env.view_file(path)
    assert list(env._views) == [paths[3], paths[0], paths[4]]


def exchange(env: RealEnv, path: str) -> None:
    """Give the file's name to another one."""
    env.rename(path, path + ".deleted")
    env.rename(path + ".swap", path)


def write_again(env: RealEnv, path: str) -> None:
    """Remove the file and write it anew."""
    content = env.read_bytes(path + ".swap")
    env.remove(path)
    env.create_new(path).append(content)


def overwrite(env: RealEnv, path: str) -> None:
    """Write over what the file holds."""
    env.open(path).pwrite(env.read_bytes(path + ".swap"), 0)


def exchange_directory(env: RealEnv, path: str) -> None:
    """Give the name of the directory above to another one."""
    directory = parent(path)
    env.make_dirs(directory + "-new")
    env.rename(path + ".swap", f"{directory}-new/f")
    env.rename(directory, directory + "-old")
    env.rename(directory + "-new", directory)


@pytest.mark.parametrize("change", [exchange, write_again, overwrite, exchange_directory])
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_view_made_while_its_file_is_replaced_is_not_kept(
    size: int, change: Callable[[RealEnv, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that opened the old file before its replacement must not cache that view."""
    env = RealEnv()
    (tmp_path / "d").mkdir()
    path = str(tmp_path / "d" / "f")
    env.open(path, create=True).append(b"a" * size)
    env.open(path + ".swap", create=True).append(b"b" * size)
    fstat = os.fstat

    def replaced_meanwhile(fd: int) -> os.stat_result:
        monkeypatch.undo()
        change(env, path)
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", replaced_meanwhile)
    env.view_file(path)
    assert os.fstat is fstat
    assert content_of(env.view_file(path)) == b"b" * size


@pytest.mark.slow
def test_maps_from_several_threads(tmp_path: Path) -> None:
    """Views may be requested while files are written and renamed."""
    env = RealEnv()
    path = str(tmp_path / "f")
    env.write_atomically(path, b"a" * 1000, sync=False)
    failures: list[BaseException] = []
    is_done = threading.Event()

    def read() -> None:
        try:
            while not is_done.is_set():
                assert len(set(content_of(env.view_file(path)))) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        env.write_atomically(path, bytes([number]) * 1000, sync=False)
    is_done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert content_of(env.view_file(path)) == bytes([39]) * 1000


def test_read_only_files(tmp_path: Path) -> None:
    """A file made read-only has mode 0400, as Kafka's metadata snapshots have."""
    env = RealEnv()
    path = tmp_path / "f"
    env.write_atomically(str(path), b"x")
    env.set_read_only(str(path))
    assert path.stat().st_mode & 0o777 == 0o400
    assert env.read_bytes(str(path)) == b"x"


def test_a_dropped_file_gives_its_descriptor_back(tmp_path: Path) -> None:
    """The last reference to a file closes it, without a warning."""
    file = RealEnv().open(str(tmp_path / "f"), create=True)
    fd = file.fileno()
    assert fd is not None
    os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_file_that_another_process_renames_is_found_under_both_names(tmp_path: Path) -> None:
    """During the renames both names find the file; afterwards the old name finds nothing, and has no view."""
    env = RealEnv()
    old, new = f"{tmp_path}/old", f"{tmp_path}/new"
    Path(old).write_bytes(b"content")
    with env.renamed_elsewhere({old: new}):
        for _ in range(2):
            assert env.open(old).size() == env.open(old, read_only=True).size() == env.file_size(old) == 7
            assert env.read_bytes(old) == env.view_file(old) == b"content"
            assert env.mtime_ms(old) > 0
            env.sync_file(old)
            if Path(old).exists():
                os.rename(old, new)
        with pytest.raises(FileNotFoundError):
            env.open(f"{tmp_path}/other")
    for look in (env.open, env.view_file, env.file_size, env.read_bytes, env.mtime_ms):
        with pytest.raises(FileNotFoundError):
            look(old)


def test_a_tree_that_somebody_else_removes_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a partly removed tree is removed."""
    tree = tmp_path / "t-0.0123-delete"
    tree.mkdir()
    for name in "abc":
        (tree / name).touch()
    unlink, overtaken = os.unlink, list[Any]()

    def late(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not overtaken:
            overtaken.append(path)
            raise FileNotFoundError(2, "No such file", path)

    monkeypatch.setattr(os, "unlink", late)
    RealEnv().remove_tree(str(tree))
    assert (overtaken != [], tree.exists()) == (True, False)
