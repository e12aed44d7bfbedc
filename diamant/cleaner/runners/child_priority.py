"""The first steps of a child process: it ties its life to the broker's, and lowers its priority.

These steps come before the child's other imports, which take 0.1 s of CPU time, so this module imports little.
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
"""Added to the child's badness score, in thousandths of all memory, so that the OOM killer kills it before the broker."""

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7


def step_back(niceness: int) -> None:
    """Lower the priority of this process for CPU, disk and memory. Best effort: not every system allows it.

    Linux divides the CPUs among sessions first, and nice values only matter within a session (autogroup, sched(7)). A child has
    its own session. Unless that session also gets a nice value, it has the same share of the CPUs as the broker's session.
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
        # This applies to the calling thread and to threads that it starts later.
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LOWEST)


def die_with(parent_pid: int) -> None:
    """Make Linux kill this process when its parent ends. On other systems, the process exits at the end of its input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the broker ended before its worker began")
