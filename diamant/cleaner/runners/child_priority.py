"""The first steps of a child process, which ties its life to the broker's and lowers its priority.

These steps precede the child's other imports, which take 0.1 s of CPU, so this module imports little.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from contextlib import suppress
from pathlib import Path

OOM_SCORE = 500
"""Added to the child's badness for the OOM killer, in thousandths of all memory: it is killed before the broker."""

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7


def step_back(niceness: int) -> None:
    """Lower the priority of this process for CPU, disk and memory. Best effort: not every system allows it.

    Linux shares CPUs among sessions first; a nice value counts only within a session (autogroup, sched(7)). A child leads
    a session of its own, and without a nice value for that session it would get as much CPU as the broker.
    """
    with suppress(OSError):
        os.nice(niceness)
    if niceness and os.getsid(0) == os.getpid():
        with suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError, ValueError):
        # If memory runs out, the system kills this process rather than the broker. All children have the same score.
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(int(score.read_text()), OOM_SCORE)))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and sys.platform == "linux":
        # For this thread and the threads it starts.
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LOWEST)


def die_with(parent_pid: int) -> None:
    """Make the system kill this process when its parent ends. Linux only; elsewhere the process ends at the end of its input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the broker ended before its worker began")
