"""Runs a command and notes what it and all processes below it take: greatest resident memory by sort of process, and CPU time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.1
"""Of a process that ends, what it did after the last look is not known."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class TimeLimit(Exception):
    """The command took too long, and was killed with all its processes."""


@dataclass
class Family:
    """What was seen of a process and all below it. The kernel's high-water mark of each process counts, not what it has now."""

    peak_mib: dict[str, int] = field(default_factory=dict)
    """Of the largest process of a sort: `driver` is the command itself, `jvm` any Java, `worker` any other below it."""
    cpu_s: float = 0.0
    """Of all processes; those included that are gone."""
    _cpu: dict[int, float] = field(default_factory=dict)

    def look(self, root: int) -> None:
        """Note what there is now."""
        for pid in family_of(root):
            with suppress(OSError, ValueError, IndexError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:"))
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
                sort = "jvm" if command.endswith(b"java") else "driver" if pid == root else "worker"
                self.peak_mib[sort] = max(self.peak_mib.get(sort, 0), peak)
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self._cpu[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
        self.cpu_s = sum(self._cpu.values())


def family_of(root: int) -> list[int]:
    """Return a process and all below it."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):
                stat = Path("/proc", name, "stat").read_text()
                below.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


def run_family(
    command: Sequence[str] | str, limit_s: float, on_line: Callable[[str, Family], None]
) -> tuple[Family, float]:
    """Run a command (a string: by the shell), hand over each line of its output, and return what it took, and its seconds.

    TimeLimit after `limit_s`; subprocess.CalledProcessError if it fails. Its standard error is this process's.
    """
    family = Family()
    start_s = time.monotonic()
    process = subprocess.Popen(command, shell=isinstance(command, str), stdout=subprocess.PIPE, text=True)
    reader = threading.Thread(target=_read, args=(process, family, on_line), daemon=True)
    reader.start()
    try:
        while True:
            family.look(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S)
                break
            if time.monotonic() - start_s > limit_s:
                raise TimeLimit(f"more than {limit_s:.0f} s")
    finally:
        if process.poll() is None:
            # Those below it first: they would not be found any more once it is gone.
            for pid in reversed(family_of(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
        reader.join()
    took_s = time.monotonic() - start_s
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return family, took_s


def _read(process: subprocess.Popen[str], family: Family, on_line: Callable[[str, Family], None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            on_line(line, family)
