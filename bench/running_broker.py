"""A broker that a shell command starts: it can be stopped, and started again on its directory."""

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


class RunningBroker:
    """A broker on a fresh directory; `scale` is for the amounts of the cases that know it."""

    process: subprocess.Popen[bytes]
    started_s: float

    def __init__(self, command: str, place: str, scale: float) -> None:
        self.port = _free_port()
        self.scale = scale
        self._command = command.format(port=self.port, data=f"{place}/data")
        self._output = Path(place, "output")

    def start(self) -> None:
        """Spawn the command, and wait until it accepts connections."""
        self.started_s = time.perf_counter()
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, shell=True, stdout=output, stderr=output, start_new_session=True
            )
        while True:
            with contextlib.suppress(OSError):
                Client(self.port).socket.close()
                return
            if self.process.poll() is not None or time.perf_counter() - self.started_s > 60:
                raise SystemExit(f"{self._command}: no broker on port {self.port}:\n{self._output.read_text()}")
            time.sleep(0.002)

    def stop(self, signal_number: int) -> None:
        """Send a signal, and wait until the process has gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal_number)
        self.process.wait(60)


@contextlib.contextmanager
def running(command: str, scale: float) -> Iterator[RunningBroker]:
    """Start a broker, stop it in the end and remove its directory."""
    place = tempfile.mkdtemp(prefix="diamant-bench-")
    broker = RunningBroker(command, place, scale)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop(signal.SIGTERM)
        shutil.rmtree(place, ignore_errors=True)


def _free_port() -> int:
    """A port that is free, and the one above it (a Kafka controller's), outside of the range of outgoing connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
