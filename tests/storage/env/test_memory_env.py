"""The file system in memory: data that a crash keeps, and injected faults."""

from __future__ import annotations

import errno
import random

import pytest

from diamant.storage.errors import StorageError
from tests.memory_env import Loss, MemoryEnv, PowerOff


def test_unsynced_content_is_lost(memory: MemoryEnv) -> None:
    """A strict crash leaves a file as it was at its last sync."""
    file = memory.open("/f", create=True)
    file.append(b"kept")
    file.sync()
    memory.sync_dir("/")
    file.append(b" lost")
    file.pwrite(b"K", 0)
    memory.crash()
    assert memory.read_bytes("/f") == b"kept"
    again = memory.open("/f")
    again.truncate(1)
    memory.crash()
    assert memory.read_bytes("/f") == b"kept"


def test_a_truncation_is_durable_after_sync(memory: MemoryEnv) -> None:
    """A file that is truncated, rewritten and synced keeps the new content."""
    file = memory.open("/f", create=True)
    file.append(b"0123456789")
    file.sync()
    file.truncate(4)
    file.append(b"ab")
    file.sync()
    memory.sync_dir("/")
    memory.crash()
    assert memory.read_bytes("/f") == b"0123ab"


def test_unsynced_names_are_lost(memory: MemoryEnv) -> None:
    """Created, renamed and removed entries survive only once their directory was synced."""
    for name in "abc":
        memory.open(f"/{name}", create=True).sync()
    memory.sync_dir("/")
    memory.open("/new", create=True).sync()
    memory.rename("/a", "/z")
    memory.remove("/b")
    memory.make_dirs("/d")
    assert memory.list_dir("/") == ["c", "d", "new", "z"]
    memory.crash()
    assert memory.list_dir("/") == ["a", "b", "c"]
    memory.rename("/a", "/c")
    memory.sync_dir("/")
    memory.crash()
    assert memory.list_dir("/") == ["b", "c"]


def test_every_directory_above_must_be_durable(memory: MemoryEnv) -> None:
    """A synced directory is lost if its parent's name was not synced."""
    memory.make_dirs("/a/b")
    memory.open("/a/b/f", create=True).sync()
    memory.sync_dir("/a/b")
    memory.sync_dir("/")
    memory.crash()
    assert memory.list_dir("/a") == []
    memory.make_dirs("/a/b")
    memory.open("/a/b/f", create=True).sync()
    for path in ("/a/b", "/a", "/"):
        memory.sync_dir(path)
    memory.crash()
    assert memory.exists("/a/b/f")


def test_a_renamed_file_keeps_its_content_under_the_old_name(memory: MemoryEnv) -> None:
    """Replacing a file without syncing the directory leaves the old file with the old content."""
    memory.write_atomically("/f", b"old")
    memory.write_atomically("/f", b"new", sync=False)
    assert memory.read_bytes("/f") == b"new"
    memory.crash()
    assert memory.read_bytes("/f") == b"old"


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
def test_a_loss_keeps_a_given_part(memory: MemoryEnv, loss: Loss, content: bytes, names: list[str]) -> None:
    """Names and content survive by the given shares; rewritten files keep the old content below one half, else the new."""
    for name in ("f", "g"):
        file = memory.open(f"/{name}", create=True)
        file.append(b"start")
        file.sync()
        memory.sync_dir("/")
        file.append(b"0123") if name == "f" else file.pwrite(b"S", 0)
    memory.open("/a", create=True)
    memory.open("/b", create=True)
    memory.crash(loss)
    assert memory.read_bytes("/f") == content
    assert memory.read_bytes("/g") == (b"Start" if loss.content >= 0.5 else b"start")
    assert memory.list_dir("/") == [*names, "g"]


def test_every_moment_of_a_run_can_be_kept(memory: MemoryEnv) -> None:
    """`before_change` runs before each change and sync takes effect; a copy taken there is independent."""
    copies: list[MemoryEnv] = []
    memory.before_change = lambda: copies.append(memory.copy())
    file = memory.open("/f", create=True)
    file.append(b"x")
    memory.read_bytes("/f")
    file.sync()
    memory.sync_dir("/")
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


def test_nothing_of_before_a_crash_works(memory: MemoryEnv) -> None:
    """Files opened before a crash are dead, and locks are released."""
    file = memory.open("/f", create=True)
    lock = memory.lock("/.lock")
    memory.crash()
    for call in (lambda: file.append(b"x"), lambda: file.pread(1, 0), file.sync):
        with pytest.raises(OSError, match="before the crash"):
            call()
    file.close()
    again = memory.lock("/.lock")
    lock.release()
    with pytest.raises(StorageError):
        memory.lock("/.lock")
    again.release()


def test_power_goes_off_at_any_change(memory: MemoryEnv) -> None:
    """An atomic write that is interrupted at any change or sync leaves the old or the new content, never another.

    The machine stays off until it is started again.
    """
    before = (memory.change_count, memory.sync_count)
    memory.write_atomically("/f", b"old")
    changes, syncs = memory.change_count - before[0], memory.sync_count - before[1]
    assert (changes, syncs) == (4, 2)
    for seed in range(20):
        print(f"seed {seed}")
        for kind, count in (("changes", changes), ("syncs", syncs)):
            for number in range(count):
                memory = MemoryEnv()
                memory.write_atomically("/f", b"old")
                memory.power_off_after(**{kind: number})
                with pytest.raises(PowerOff, match="sync" if kind == "syncs" else None):
                    memory.write_atomically("/f", b"new")
                with pytest.raises(PowerOff):
                    memory.read_bytes("/f")
                memory.crash(random.Random(seed))
                assert memory.read_bytes("/f") in (b"old", b"new")
                memory.write_atomically("/f", b"newest")
                assert memory.read_bytes("/f") == b"newest"


def test_selected_calls_fail(memory: MemoryEnv) -> None:
    """Selected calls on selected paths fail, after a given number of successes and as often as given; others succeed."""
    file, other = memory.open("/a.log", create=True), memory.open("/b.index", create=True)
    fault = memory.fail("append", "*.log", errno.ENOSPC, after=1, times=2)
    file.append(b"1")
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            file.append(b"2")
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == "/a.log"
    other.append(b"x")
    file.append(b"3")
    assert memory.read_bytes("/a.log") == b"13"
    assert fault.hits == 2
    endless = memory.fail("sync", "*", errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    endless.clear()
    file.sync()
    memory.fail("rename", "*.swap", OSError(errno.EACCES, "no"))
    with pytest.raises(PermissionError):
        memory.rename("/a.log", "/a.swap")
    memory.fail("create", "/new", errno.EMFILE)
    with pytest.raises(OSError, match="Too many"):
        memory.open("/new", create=True)
    assert not memory.exists("/new")


def test_a_failing_append_may_leave_a_part(memory: MemoryEnv) -> None:
    """The partial bytes are beyond the counted size, as on a real disk that is full."""
    file = memory.open("/f", create=True)
    file.append(b"abc")
    fault = memory.fail("append", "/f", errno.ENOSPC, partial_bytes=2)
    with pytest.raises(OSError, match="No space"):
        file.append(b"0123")
    assert file.size() == 3
    assert memory.read_bytes("/f") == b"abc01"
    fault.clear()
    file.truncate(3)
    file.append(b"d")
    assert memory.read_bytes("/f") == b"abcd"


def test_writes_beyond_the_capacity_fail() -> None:
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


def test_a_read_only_file_cannot_be_written(memory: MemoryEnv) -> None:
    """A read-only file can be read and not be opened for writing."""
    memory.write_atomically("/f", b"x")
    memory.set_read_only("/f")
    assert memory.open("/f", read_only=True).pread(1, 0) == b"x"
    with pytest.raises(PermissionError):
        memory.open("/f")


def test_kinds_are_distinguished(memory: MemoryEnv) -> None:
    """A directory cannot be used as a file, nor a file as a directory."""
    memory.make_dirs("/d/e")
    memory.open("/f", create=True)
    with pytest.raises(IsADirectoryError):
        memory.read_bytes("/d")
    with pytest.raises(NotADirectoryError):
        memory.list_dir("/f")
    with pytest.raises(FileExistsError):
        memory.make_dirs("/f/g")
    with pytest.raises(OSError, match="not empty"):
        memory.rename("/f", "/d")
    with pytest.raises(IsADirectoryError):
        memory.open("/", create=True)


def test_a_copy_is_another_machine(memory: MemoryEnv) -> None:
    """What is durable in the original is durable in the copy, and neither sees what happens to the other."""
    memory.make_dirs("/d")
    file = memory.open("/d/f", create=True)
    file.append(b"kept")
    file.sync()
    memory.sync_dir("/")
    memory.sync_dir("/d")
    file.append(b" lost")
    memory.rename("/d/f", "/d/g")
    copied = memory.copy(memory.clock)
    assert copied.read_bytes("/d/g") == b"kept lost"
    copied.open("/d/g").append(b" in the copy")
    assert memory.read_bytes("/d/g") == b"kept lost"
    copied.crash()
    assert copied.list_dir("/d") == ["f"]
    assert copied.read_bytes("/d/f") == b"kept"
    assert memory.list_dir("/d") == ["g"]
    memory.sync_dir("/d")
    memory.crash()
    assert memory.read_bytes("/d/g") == b"kept"
