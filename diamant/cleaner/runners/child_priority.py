"""The first steps of a process that a runner starts beside the broker: it ends with the broker, and gives way to others.

They are taken before it imports what it needs, which takes 0.1 s of a processor; so this imports little.
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
"""How much sooner than others this is ended for lack of memory: half of all there is counts as if it were taken."""

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7


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
