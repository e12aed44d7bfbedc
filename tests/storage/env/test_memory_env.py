"""The file system in memory: data that a crash keeps, and injected faults."""

from __future__ import annotations

import errno
import random

import pytest

from diamant.storage.env.memory import Loss, MemoryEnv, PowerOff
from diamant.storage.errors import StorageError


def test_unsynced_content_is_lost() -> None:
    """A strict crash leaves a file as it was at its last sync."""
    env = MemoryEnv()
    file = env.open("/f", create=True)
    file.append(b"kept")
    file.sync()
    env.sync_dir("/")
    file.append(b" lost")
    file.pwrite(b"K", 0)
    env.crash()
    assert env.read_bytes("/f") == b"kept"
    again = env.open("/f")
    again.truncate(1)
    env.crash()
    assert env.read_bytes("/f") == b"kept"


def test_a_truncation_is_durable_after_sync() -> None:
    """A file that is truncated, rewritten and synced keeps the new content."""
    env = MemoryEnv()
    file = env.open("/f", create=True)
    file.append(b"0123456789")
    file.sync()
    file.truncate(4)
    file.append(b"ab")
    file.sync()
    env.sync_dir("/")
    env.crash()
    assert env.read_bytes("/f") == b"0123ab"


def test_unsynced_names_are_lost() -> None:
    """Created, renamed and removed entries survive only once their directory was synced."""
    env = MemoryEnv()
    for name in "abc":
        env.open(f"/{name}", create=True).sync()
    env.sync_dir("/")
    env.open("/new", create=True).sync()
    env.rename("/a", "/z")
    env.remove("/b")
    env.make_dirs("/d")
    assert env.list_dir("/") == ["c", "d", "new", "z"]
    env.crash()
    assert env.list_dir("/") == ["a", "b", "c"]
    env.rename("/a", "/c")
    env.sync_dir("/")
    env.crash()
    assert env.list_dir("/") == ["b", "c"]


def test_every_directory_above_must_be_durable() -> None:
    """A synced directory is lost if its parent's name was not synced."""
    env = MemoryEnv()
    env.make_dirs("/a/b")
    env.open("/a/b/f", create=True).sync()
    env.sync_dir("/a/b")
    env.sync_dir("/")
    env.crash()
    assert env.list_dir("/a") == []
    env.make_dirs("/a/b")
    env.open("/a/b/f", create=True).sync()
    for path in ("/a/b", "/a", "/"):
        env.sync_dir(path)
    env.crash()
    assert env.exists("/a/b/f")


def test_a_renamed_file_keeps_its_content_under_the_old_name() -> None:
    """Replacing a file without syncing the directory leaves the old file with the old content."""
    env = MemoryEnv()
    env.write_atomically("/f", b"old")
    env.write_atomically("/f", b"new", sync=False)
    assert env.read_bytes("/f") == b"new"
    env.crash()
    assert env.read_bytes("/f") == b"old"


@pytest.mark.parametrize(
    ("loss", "content", "names"),
    [
        (Loss(names=0, content=0), b"start", ["f"]),
        (Loss(names=1, content=0), b"start", ["a", "b", "f"]),
        (Loss(names=0, content=1), b"start0123", ["f"]),
        (Loss(names=0.5, content=0.5), b"start01", ["a", "f"]),
        (Loss(names=0.5, content=0.5, is_length_kept=True), b"start01\0\0", ["a", "f"]),
    ],
)
def test_a_loss_keeps_a_given_part(loss: Loss, content: bytes, names: list[str]) -> None:
    """Names and content survive by the given shares; rewritten files keep the old content below one half, else the new."""
    env = MemoryEnv()
    for name in ("f", "g"):
        file = env.open(f"/{name}", create=True)
        file.append(b"start")
        file.sync()
        env.sync_dir("/")
        file.append(b"0123") if name == "f" else file.pwrite(b"S", 0)
    env.open("/a", create=True)
    env.open("/b", create=True)
    env.crash(loss)
    assert env.read_bytes("/f") == content
    assert env.read_bytes("/g") == (b"Start" if loss.content >= 0.5 else b"start")
    assert env.list_dir("/") == [*names, "g"]


def test_every_moment_of_a_run_can_be_kept() -> None:
    """`before_change` runs before each change and sync takes effect; a copy taken there is independent."""
    env = MemoryEnv()
    copies: list[MemoryEnv] = []
    env.before_change = lambda: copies.append(env.copy())
    file = env.open("/f", create=True)
    file.append(b"x")
    env.read_bytes("/f")
    file.sync()
    env.sync_dir("/")
    assert [copied.exists("/f") and copied.read_bytes("/f") for copied in copies] == [False, b"", b"x", b"x"]
    for copied in copies:
        copied.crash(Loss(names=1, content=0))
    assert [copied.exists("/f") and copied.read_bytes("/f") for copied in copies] == [False, b"", b"", b"x"]


@pytest.mark.parametrize("seed", range(40))
def test_a_random_crash_keeps_some_beginning(seed: int) -> None:
    """A prefix of unsynced appends may survive, perhaps followed by zeros; other changes survive completely or not at all."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    env = MemoryEnv()
    appended, changed = env.open("/appended", create=True), env.open("/changed", create=True)
    for file in (appended, changed):
        file.append(b"start")
        file.sync()
    env.sync_dir("/")
    appended.append(b"0123456789")
    changed.pwrite(b"S", 0)
    for name in "abc":
        env.open(f"/{name}", create=True)
    env.crash(chance)
    content = env.read_bytes("/appended")
    assert content.startswith(b"start")
    assert b"start0123456789".startswith(content.rstrip(b"\0"))
    assert len(content) <= 15
    assert env.read_bytes("/changed") in (b"start", b"Start")
    names = env.list_dir("/")
    assert names in (["a", "appended", "b", "c", "changed"], ["a", "appended", "b", "changed"],
                     ["a", "appended", "changed"], ["appended", "changed"])  # fmt: skip
    env.crash()
    assert env.list_dir("/") == names
    assert env.read_bytes("/appended") == content


def test_random_crashes_differ() -> None:
    """Over several seeds every length of a torn write occurs."""
    lengths = set()
    for seed in range(100):
        env = MemoryEnv()
        file = env.open("/f", create=True)
        file.sync()
        env.sync_dir("/")
        file.append(b"abc")
        env.crash(random.Random(seed))
        lengths.add(env.read_bytes("/f"))
    assert {b"", b"a", b"ab", b"abc", b"a\0\0", b"\0\0\0"} <= lengths


def test_nothing_of_before_a_crash_works() -> None:
    """Files opened before a crash are dead, and locks are released."""
    env = MemoryEnv()
    file = env.open("/f", create=True)
    lock = env.lock("/.lock")
    env.crash()
    for call in (lambda: file.append(b"x"), lambda: file.pread(1, 0), file.sync):
        with pytest.raises(OSError, match="before the crash"):
            call()
    file.close()
    again = env.lock("/.lock")
    lock.release()
    with pytest.raises(StorageError):
        env.lock("/.lock")
    again.release()


def test_power_goes_off_at_any_change() -> None:
    """An atomic write that is interrupted at any change or sync leaves the old or the new content, never another.

    The machine stays off until it is started again.
    """
    env = MemoryEnv()
    before = (env.change_count, env.sync_count)
    env.write_atomically("/f", b"old")
    changes, syncs = env.change_count - before[0], env.sync_count - before[1]
    assert (changes, syncs) == (4, 2)
    for seed in range(20):
        print(f"seed {seed}")
        for kind, count in (("changes", changes), ("syncs", syncs)):
            for number in range(count):
                env = MemoryEnv()
                env.write_atomically("/f", b"old")
                env.power_off_after(**{kind: number})
                with pytest.raises(PowerOff, match="sync" if kind == "syncs" else None):
                    env.write_atomically("/f", b"new")
                with pytest.raises(PowerOff):
                    env.read_bytes("/f")
                env.crash(random.Random(seed))
                assert env.read_bytes("/f") in (b"old", b"new")
                env.write_atomically("/f", b"newest")
                assert env.read_bytes("/f") == b"newest"


def test_faults() -> None:
    """Selected calls on selected paths fail, after a given number of successes and as often as given; others succeed."""
    env = MemoryEnv()
    file, other = env.open("/a.log", create=True), env.open("/b.index", create=True)
    fault = env.fail("append", "*.log", errno.ENOSPC, after=1, times=2)
    file.append(b"1")
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            file.append(b"2")
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == "/a.log"
    other.append(b"x")
    file.append(b"3")
    assert env.read_bytes("/a.log") == b"13"
    assert fault.hits == 2
    endless = env.fail("sync", "*", errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    endless.clear()
    file.sync()
    env.fail("rename", "*.swap", OSError(errno.EACCES, "no"))
    with pytest.raises(PermissionError):
        env.rename("/a.log", "/a.swap")
    env.fail("create", "/new", errno.EMFILE)
    with pytest.raises(OSError, match="Too many"):
        env.open("/new", create=True)
    assert not env.exists("/new")


def test_a_failing_append_may_leave_a_part() -> None:
    """The partial bytes are beyond the counted size, as on a real disk that is full."""
    env = MemoryEnv()
    file = env.open("/f", create=True)
    file.append(b"abc")
    fault = env.fail("append", "/f", errno.ENOSPC, partial_bytes=2)
    with pytest.raises(OSError, match="No space"):
        file.append(b"0123")
    assert file.size() == 3
    assert env.read_bytes("/f") == b"abc01"
    fault.clear()
    file.truncate(3)
    file.append(b"d")
    assert env.read_bytes("/f") == b"abcd"


def test_capacity() -> None:
    """Writes beyond the capacity fail, and what is removed is free again."""
    env = MemoryEnv(capacity_bytes=10)
    file = env.open("/f", create=True)
    file.append(b"12345678")
    assert env.disk_usage("/") == (10, 2)
    with pytest.raises(OSError, match="No space"):
        file.append(b"123")
    file.append(b"12")
    env.remove("/f")
    env.open("/g", create=True).append(b"1234567890")
    with pytest.raises(OSError, match="No space"):
        env.open("/g").pwrite(b"x", 10)


def test_read_only() -> None:
    """A read-only file can be read and not be opened for writing."""
    env = MemoryEnv()
    env.write_atomically("/f", b"x")
    env.set_read_only("/f")
    assert env.open("/f", read_only=True).pread(1, 0) == b"x"
    with pytest.raises(PermissionError):
        env.open("/f")


def test_kinds_are_told_apart() -> None:
    """A directory cannot be used as a file, nor a file as a directory."""
    env = MemoryEnv()
    env.make_dirs("/d/e")
    env.open("/f", create=True)
    with pytest.raises(IsADirectoryError):
        env.read_bytes("/d")
    with pytest.raises(NotADirectoryError):
        env.list_dir("/f")
    with pytest.raises(FileExistsError):
        env.make_dirs("/f/g")
    with pytest.raises(OSError, match="not empty"):
        env.rename("/f", "/d")
    with pytest.raises(IsADirectoryError):
        env.open("/", create=True)


def test_a_copy_is_another_machine() -> None:
    """What is durable in the original is durable in the copy, and neither sees what happens to the other."""
    env = MemoryEnv()
    env.make_dirs("/d")
    file = env.open("/d/f", create=True)
    file.append(b"kept")
    file.sync()
    env.sync_dir("/")
    env.sync_dir("/d")
    file.append(b" lost")
    env.rename("/d/f", "/d/g")
    copied = env.copy(env.clock)
    assert copied.read_bytes("/d/g") == b"kept lost"
    copied.open("/d/g").append(b" in the copy")
    assert env.read_bytes("/d/g") == b"kept lost"
    copied.crash()
    assert copied.list_dir("/d") == ["f"]
    assert copied.read_bytes("/d/f") == b"kept"
    assert env.list_dir("/d") == ["g"]
    env.sync_dir("/d")
    env.crash()
    assert env.read_bytes("/d/g") == b"kept"
