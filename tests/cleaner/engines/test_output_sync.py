"""Outputs are durable before they are handed over, in their order, and none is left behind by an error."""

from __future__ import annotations

import threading

import pytest

from diamant.cleaner.engines.output_sync import MAX_PENDING, OutputSync
from diamant.cleaner.rules.result import OutputSegment
from diamant.storage import names
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S


class SlowEnv(MemoryEnv):
    """Syncs of a file wait until they are released; `synced` lists the finished ones."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.synced: list[str] = []
        self.failing = ""

    def sync_file(self, path: str) -> None:
        """Wait, then sync."""
        assert self.may_sync.wait(PATIENCE_S)
        if self.failing and path.endswith(self.failing):
            raise OSError(5, "Input/output error", path)
        self.synced.append(path)


def output(env: SlowEnv, base_offset: int) -> OutputSegment:
    """Return a finished output whose files exist."""
    if not env.exists("t-0"):
        env.make_dirs("t-0")
    for file in (names.log_file, names.index_file, names.time_index_file):
        env.open(file("t-0", base_offset) + names.CLEANED_SUFFIX, create=True).close()
    return OutputSegment(base_offset, (base_offset,), 0, 0, False, 0)


@pytest.mark.parametrize("threads", [0, 3])
def test_outputs_are_handed_over_in_order_once_they_are_durable(threads: int) -> None:
    """With and without threads, each output's three files are synced before it is handed over."""
    env = SlowEnv()
    env.may_sync.set()
    given: list[int] = []

    def take(one: OutputSegment) -> None:
        names_ = {f"t-0/{one.base_offset:020}{kind}.cleaned" for kind in (".log", ".index", ".timeindex")}
        assert names_ <= set(env.synced)
        given.append(one.base_offset)

    with OutputSync(env, "t-0", take, threads) as sync:
        for base_offset in range(0, 300, 10):
            sync.add(output(env, base_offset))
    assert given == list(range(0, 300, 10))


def test_the_next_outputs_are_written_while_earlier_ones_are_synced() -> None:
    """Adding waits for the disk only once MAX_PENDING outputs are pending."""
    env = SlowEnv()
    given: list[int] = []
    with OutputSync(env, "t-0", lambda one: given.append(one.base_offset), 2) as sync:
        for base_offset in range(MAX_PENDING):
            sync.add(output(env, base_offset))
        assert given == []
        env.may_sync.set()
    assert given == list(range(MAX_PENDING))


@pytest.mark.parametrize("threads", [0, 2])
def test_work_on_a_written_output_waits_for_no_sync(threads: int) -> None:
    """`on_written` is called while the disk is busy, and before the output is handed over."""
    env = SlowEnv()
    done: list[tuple[str, int]] = []

    def written(one: OutputSegment) -> None:
        assert not env.may_sync.is_set()
        done.append(("written", one.base_offset))
        env.may_sync.set()

    with OutputSync(env, "t-0", lambda one: done.append(("given", one.base_offset)), threads, written) as sync:
        sync.add(output(env, 7))
    assert done == [("written", 7), ("given", 7)]


def add(env: SlowEnv, bases: range, given: list[int], error: Exception | None = None) -> None:
    """Add outputs with two sync threads that wait until all are added; then raise `error`."""
    with OutputSync(env, "t-0", lambda one: given.append(one.base_offset), 2) as sync:
        for base_offset in bases:
            sync.add(output(env, base_offset))
        env.may_sync.set()
        if error is not None:
            raise error


def test_a_sync_that_fails_ends_the_round_and_leaves_no_files() -> None:
    """Outputs handed over before remain; the failed one and all later ones are removed."""
    env = SlowEnv()
    env.failing = "00000000000000000002.index.cleaned"
    given: list[int] = []
    with pytest.raises(OSError, match="Input/output"):
        add(env, range(5), given)
    assert given == [0, 1]
    assert [name for name in env.list_dir("t-0") if int(name[:20]) >= 2] == []


def test_an_error_while_writing_removes_what_is_pending() -> None:
    """The engine's error is raised; outputs not handed over are removed."""
    env = SlowEnv()
    with pytest.raises(ZeroDivisionError):
        add(env, range(1), [], ZeroDivisionError())
    assert env.list_dir("t-0") == []
