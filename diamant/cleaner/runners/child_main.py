"""The main function of the processes that runners start beside the broker; `child_process` is the broker's side."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from diamant.cleaner.runners.worker_messages import Message

PROGRESS_INTERVAL_S = 0.5
"""Least time between two messages of progress."""

Send = Callable[[Message], None]
"""Tells the broker something. Any thread."""

OOM_SCORE = 500
"""How much sooner than others this is ended for lack of memory: half of all there is counts as if it were taken."""

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7


def run_child(module: str, description: str, run: Callable[[Send], None]) -> int:
    """Give way to others, end with the broker, and call `run`; return the exit code."""
    parser = argparse.ArgumentParser(prog=module, description=description.partition("\n")[0])
    parser.add_argument("--parent", type=int, required=True, help="process id of the caller")
    parser.add_argument("--nice", type=int, default=10, help="how much to give way (default: 10)")
    arguments = parser.parse_args()
    die_with(arguments.parent)
    step_back(arguments.nice)
    # What a library or a JVM prints must not come between the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        lock = threading.Lock()

        def send(message: Message) -> None:
            line = json.dumps(message, separators=(",", ":")) + "\n"
            with lock:
                out.write(line)
                out.flush()

        try:
            run(send)
        except BrokenPipeError:
            return 1  # the parent is gone
    return 0


def step_back(niceness: int) -> None:
    """Give way to others, for the processor, for the disk, and for memory. Best effort: not every system lets one.

    Linux shares processors among sessions first, and a nice value counts only within one (autogroup, sched(7)). A child leads
    a session of its own: unless that is told to give way, too, it has as much of a processor as its broker.
    """
    with suppress(OSError):
        os.nice(niceness)
    if niceness and os.getsid(0) == os.getpid():
        with suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError, ValueError):
        # Where memory runs out the system ends this process, and not the broker. Children are alike.
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(int(score.read_text()), OOM_SCORE)))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and sys.platform == "linux":
        # For this thread, and those that it starts.
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LOWEST)


def die_with(parent_pid: int) -> None:
    """Make the system kill this process as soon as its parent has ended. Linux only; others see the end of their input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the broker ended before its worker began")
