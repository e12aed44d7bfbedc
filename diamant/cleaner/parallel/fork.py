"""A forked child process, which starts with a copy of this process's memory, including the engine and the map.

It has none of this process's threads. So it may only compute, read files, write its own files, and answer through its pipe.
Each child has the same memory limit (RLIMIT_DATA) as this process, and is killed when this process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from diamant.cleaner.rules.result import CheckDone

PIPE_BYTES = 1024 * 1024
"""Size of the pipe, if the system allows it. With a smaller pipe, the two processes would wait for each other more often."""
POLL_S = 0.1
"""Interval between calls of `check_done`."""
_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)


class ForkFailed(Exception):
    """The child ended without an answer, for an unknown reason."""


class Fork:
    """Runs `work` in a child, which sends answers through the connection. The owner must call `close` or `dismiss`."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        """Raises OSError if the system refuses another process."""
        from multiprocessing.connection import Pipe

        self._answers, answering = Pipe(duplex=False)
        if _F_SETPIPE_SZ is not None:
            with suppress(OSError):
                fcntl.fcntl(answering.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 and later warn if a process with threads forks. The module docstring says why this is safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _run_child(work, answering, parent)
        self.pid = pid
        answering.close()

    def answer(self, check_done: CheckDone) -> Any:
        """Wait for the next answer and return it. Keeps calling `check_done` while it waits. Raises ForkFailed."""
        self._wait(check_done)
        try:
            return self._answers.recv()
        except (EOFError, OSError) as error:
            raise ForkFailed from error

    def has_answer(self) -> bool:
        """Tell whether `answer` would return or raise immediately."""
        return self._answers.poll(0)

    def read_into(self, target: memoryview, check_done: CheckDone) -> None:
        """Fill `target` with bytes that the child sends by `write_all`. Calls `check_done` while it waits. Raises ForkFailed."""
        at = 0
        while at < len(target):
            self._wait(check_done)
            count = os.readv(self._answers.fileno(), (target[at:],))
            if not count:
                raise ForkFailed
            at += count

    def close(self) -> None:
        """Kill the child, and wait until it has exited."""
        self._kill()
        os.waitpid(self.pid, 0)

    def dismiss(self) -> None:
        """Kill the child, but let a thread wait until the system has reclaimed its memory. For children that write no files."""
        self._kill()
        try:
            Thread(target=os.waitpid, args=(self.pid, 0), name="dismissed-child", daemon=True).start()
        except RuntimeError:  # no memory for a thread
            os.waitpid(self.pid, 0)

    def _wait(self, check_done: CheckDone) -> None:
        while not self._answers.poll(POLL_S):
            check_done()

    def _kill(self) -> None:
        self._answers.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def write_all(answering: Connection, data: memoryview) -> None:
    """Send raw bytes from a child to `Fork.read_into`."""
    while data:
        data = data[os.write(answering.fileno(), data) :]


def _run_child(work: Callable[[Connection], None], answering: Connection, parent: int) -> None:
    """Run `work`, then exit without the parent's cleanup (flushes, unlocks, removals)."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(answering)
        code = 0
    finally:
        os._exit(code)
