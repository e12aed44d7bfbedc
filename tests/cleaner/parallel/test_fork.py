"""Child processes of a round."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

import pytest

from diamant.cleaner.parallel.fork import Fork, ForkFailed
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


def test_the_wait_for_a_child_can_be_told_to_stop_and_closing_ends_it() -> None:
    """Even while it is working."""
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
    """Even if the parent is killed: the child could write into a directory that belongs to another broker."""

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
