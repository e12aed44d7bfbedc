"""Processes that are measured: a broker that a shell command starts, and what processes take."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from client import Client
from listeners import PORT_OF, write_properties

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class RunningBroker:
    """A broker on a fresh directory: it can be stopped, and started again. `scale` is for the amounts of what is measured.

    A command with `{properties}` gets a file that opens the listeners of `listeners.py`.
    """

    process: subprocess.Popen[bytes]
    started_s: float

    def __init__(self, command: str, place: Path, scale: float) -> None:
        self.port = _free_port()
        self.scale = scale
        self.data = place / "data"
        self.properties = place / "listeners.properties"
        if "{properties}" in command:
            write_properties(self.properties, self.port)
        self._command = command.format(port=self.port, data=self.data, properties=self.properties)
        self._output = place / "output"

    @property
    def pid(self) -> int:
        """Of the shell or what it has become."""
        return self.process.pid

    def start(self) -> None:
        """Spawn the command, and wait until it accepts connections."""
        self.started_s = time.perf_counter()
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(  # noqa: S602
                self._command,
                shell=True,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while True:
            with contextlib.suppress(OSError):
                Client(self.port).socket.close()
                return
            if self.process.poll() is not None or time.perf_counter() - self.started_s > 60:
                raise SystemExit(f"{self._command}: no broker on port {self.port}:\n{self._output.read_text()}")
            time.sleep(0.002)

    def stop(self, signal_number: int) -> None:
        """Send a signal, and wait until the process has gone, with all that a shell may have left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal_number)
            self.process.wait(60)
            until_s = time.perf_counter() + 60
            while time.perf_counter() < until_s:
                os.killpg(self.process.pid, 0)
                time.sleep(0.002)


@contextlib.contextmanager
def running(command: str, scale: float) -> Iterator[RunningBroker]:
    """Start a broker, stop it in the end and remove its directory."""
    place = Path(tempfile.mkdtemp(prefix="diamant-bench-"))
    broker = RunningBroker(command, place, scale)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop(signal.SIGTERM)
        shutil.rmtree(place, ignore_errors=True)


def _free_port() -> int:
    """A port that is free, and those above it for other listeners, outside of the range of outgoing connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for offset in PORT_OF.values():
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            return port


def family(root: int) -> list[int]:
    """Return a process and all below it."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                below.setdefault(int(_stat(int(name))[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and of all below it, those included that have ended."""
    ticks = 0
    for process in family(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(process)[11:15]))
    return ticks * TICK_S


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and of all below it."""
    return sum(memory_mib(process, "VmRSS") for process in family(pid))


def memory_mib(pid: int, line: str) -> float:
    """Return a line of a process's status, `VmRSS` or its high-water mark `VmHWM`; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(text.split()[1]) / 1024 for text in lines if text.startswith(line)), 0.0)
    return 0.0


def _stat(pid: int) -> list[str]:
    """From the state on, which follows the name in parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
