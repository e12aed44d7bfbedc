"""A broker in a process of its own, as `diamant start` makes it: to be killed, and to be measured from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

START_TIMEOUT_S = 60
GREETING = "Diamant listens on "


class Child(Protocol):
    """What is used of a `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return the return code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; TimeoutExpired."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, if it runs."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


class BrokerProcess:
    """One run of the broker; what it says goes to files in `log_dir`. `popen` starts it, as `subprocess.Popen` does."""

    def __init__(
        self,
        data_dir: Path,
        log_dir: Path,
        *,
        soft_file_limit: int | None = None,
        listen: str = "127.0.0.1:0",
        settings: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: str = "diamant.broker.cli",
        popen: Callable[..., Child] = subprocess.Popen,
    ) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._out_file, self._error_file = log_dir / "stdout", log_dir / "stderr"
        command = [sys.executable, "-m", program, "start", "-l", listen, "-d", str(data_dir)]
        command += ["--exit-with-parent"]
        # A crowd that connects at once overflows the default queue of 50; the system then lets each wait for seconds.
        for setting in ("socket.listen.backlog.size=4096", *settings):
            command += ["--set", setting]
        if soft_file_limit is not None:
            command = ["/bin/sh", "-c", f'ulimit -S -n {soft_file_limit} && exec "$@"', "sh", *command]
        with self._out_file.open("wb") as out, self._error_file.open("wb") as errors:
            self._process = popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=None if environment is None else {**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def was_killed(self) -> bool:
        """True if it ended by SIGKILL."""
        return self._process.poll() == -signal.SIGKILL

    @property
    def log(self) -> str:
        """What the broker said on standard error."""
        return self._error_file.read_text(errors="replace")

    @property
    def resident_bytes(self) -> int:
        """Its memory (RSS)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def wait_for_address(self) -> str:
        """Its bootstrap address, as soon as it answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            said = self._out_file.read_text()
            if said.startswith(GREETING) and said.endswith("\n"):
                return said.removeprefix(GREETING).split(", data in ")[0]
            assert self.is_running, f"the broker ended with {self._process.returncode}: {self.log}"
            time.sleep(0.02)
        raise AssertionError(f"the broker did not start within {START_TIMEOUT_S} s: {self.log}")

    def wait_for_end(self, timeout_s: float) -> None:
        """Return when it has ended, or the time is over."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._process.terminate()

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        self._process.kill()
        self._process.wait(30)


@contextmanager
def broker_process(data_dir: Path, log_dir: Path, *, soft_file_limit: int | None = None) -> Iterator[BrokerProcess]:
    """A running process; killed at the end if it still runs."""
    process = BrokerProcess(data_dir, log_dir, soft_file_limit=soft_file_limit)
    try:
        yield process
    finally:
        process.kill()
