"""A child process that begins as a copy of this one: all that is in memory it has at once, its engine and the map among it.

It has none of this process's threads, so it must do nothing but compute, read and write files of its own, and answer through its
pipe. What it allocates counts against the same limit (RLIMIT_DATA) once more. It ends at once when this process does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from diamant.cleaner.rules.result import CheckDone

POLL_S = 0.1
"""Interval between calls of `check_done`."""
_PR_SET_PDEATHSIG = 1


class ForkFailed(Exception):
    """The child ended before it had answered; nothing is known of why."""


class Fork:
    """Runs `work` in a child, which answers with what it sends. Close it."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        """OSError if there can be no more processes."""
        from multiprocessing.connection import Pipe

        self._answers, answering = Pipe(duplex=False)
        parent = os.getpid()
        with warnings.catch_warnings():
            # From 3.12 on Python warns of a fork beside threads: see above.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _run_child(work, answering, parent)
        self.pid = pid
        answering.close()

    def answer(self, check_done: CheckDone) -> Any:
        """Return the next object that was sent; ForkFailed. `check_done` is asked while it waits."""
        while not self._answers.poll(POLL_S):
            check_done()
        try:
            return self._answers.recv()
        except (EOFError, OSError) as error:
            raise ForkFailed from error

    def has_answer(self) -> bool:
        """Tell whether `answer` returns or raises at once."""
        return self._answers.poll(0)

    def close(self) -> None:
        """End the child, whatever it is at, and wait until it has ended."""
        self._answers.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _run_child(work: Callable[[Connection], None], answering: Connection, parent: int) -> None:
    """Work and exit, and leave alone what the parent has left to flush, to unlock and to remove."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(answering)
        code = 0
    finally:
        os._exit(code)
