"""The processors that a worker may use: all but the first, which is left to the broker and its clients."""

from __future__ import annotations

import os
from contextlib import suppress


def place(pid: int, threads: int) -> None:
    """Keep process `pid` off the first of this process's processors, if the cleaner's `threads` do not need them all.

    Priority alone is not enough: where the scheduler moves a worker from processor to processor, a client that sends one
    message at a time has 1.5 to 2 times the p99 of an idle broker. Best effort: Linux only. It counts for the main thread
    of the process and for what that starts from now on.
    """
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        with suppress(OSError):
            os.sched_setaffinity(pid, allowed[1:] if threads < len(allowed) else allowed)
