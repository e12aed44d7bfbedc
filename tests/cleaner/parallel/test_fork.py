"""Child processes of a round."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection

import pytest

from diamant.cleaner.parallel.fork import PIPE_BYTES, Fork, ForkFailed, write_all
from diamant.cleaner.rules.result import CleaningAborted, never_done
from tests.waiting import wait_until


def test_a_child_answers_with_objects_and_then_with_nothing() -> None:
    """The answers come from another process; a read after the last one fails."""
    fork = Fork(lambda answering: answering.send({"pid": os.getpid()}))
    try:
        assert fork.answer(never_done)["pid"] != os.getpid()
        with pytest.raises(ForkFailed):
            fork.answer(never_done)
    finally:
        fork.close()


def test_bytes_of_a_child_fill_memory() -> None:
    """Many more than a pipe holds, between objects; a child that ends before all are sent has failed."""
    size = 3 * PIPE_BYTES

    def answer(answering: Connection) -> None:
        answering.send("first")
        write_all(answering, memoryview(bytes(range(256)) * (size // 256)))
        answering.send("last")

    fork = Fork(answer)
    found = bytearray(size)
    try:
        assert fork.answer(never_done) == "first"
        fork.read_into(memoryview(found)[:1000], never_done)
        fork.read_into(memoryview(found)[1000:], never_done)
        assert found == bytes(range(256)) * (size // 256)
        assert fork.answer(never_done) == "last"
        with pytest.raises(ForkFailed):
            fork.read_into(memoryview(found)[:1], never_done)
    finally:
        fork.close()


async def test_a_child_that_is_dismissed_ends() -> None:
    """A dismissed child ends, and is no zombie afterwards."""
    fork = Fork(lambda answering: signal.pause())
    fork.dismiss()
    await wait_until(lambda: not os.path.exists(f"/proc/{fork.pid}"))


def test_a_child_is_waited_for_if_there_is_no_thread_for_it() -> None:
    """Without a thread, as in a process that has reached its memory limit, the caller waits."""
    fork = Fork(lambda answering: signal.pause())
    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        fork.dismiss()
    finally:
        threading.stack_size(before)
    with pytest.raises(ChildProcessError):
        os.waitpid(fork.pid, os.WNOHANG)


def test_a_child_that_raises_or_is_killed_has_failed() -> None:
    """No exception comes through the pipe."""

    def fail(answering: Connection) -> None:
        raise MemoryError

    def die(answering: Connection) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for work in (fail, die):
        fork = Fork(work)
        try:
            with pytest.raises(ForkFailed):
                fork.answer(never_done)
        finally:
            fork.close()


def test_the_wait_for_a_child_can_be_stopped_and_closing_ends_it() -> None:
    """The wait ends even while the child is working."""
    fork = Fork(lambda answering: signal.pause())

    def stop() -> None:
        raise CleaningAborted("stop")

    assert not fork.has_answer()
    with pytest.raises(CleaningAborted):
        fork.answer(stop)
    fork.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(fork.pid, os.WNOHANG)


async def test_a_child_ends_with_its_parent() -> None:
    """The child ends even if the parent is killed: it could write into a directory that belongs to another broker."""

    def parent(answering: Connection) -> None:
        grandchild = Fork(lambda answering: signal.pause())
        answering.send(grandchild.pid)
        signal.pause()

    fork = Fork(parent)
    pid: int = fork.answer(never_done)
    fork.close()
    await wait_until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """True as long as a process is there and has not ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
