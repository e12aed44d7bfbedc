"""Programs forked by a process that has imported them: as started by themselves, without the processor time of their imports.

    warm = Warm("tests.torture.forking_broker", environment=environment)
    process = warm.popen([sys.executable, "-m", "tests.torture.forking_broker", "start"], stdout=out, stderr=errors)

`process` is used as one of `subprocess`. All of them end with `warm.close()`, and with this process. Each module has a `main`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Have this process get SIGKILL when its parent ends."""
    _C.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Warm:
    """The process that forks. Any thread may use it, and what it has forked."""

    def __init__(self, *modules: str, environment: Mapping[str, str] | None = None) -> None:
        self._connection, theirs = Pipe()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **(environment or {})},
        )
        theirs.close()

    def popen(self, command: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes], **_: object) -> WarmProcess:
        """Run `python -m module argument...`; what it prints goes to these files."""
        _, _, module, *arguments = command
        return WarmProcess(self, self.ask((module, arguments, stdout.name, stderr.name)))

    def ask(self, question: object) -> int:
        """Ask the process: for a new one, whose id is answered, or for the return code of one that has ended."""
        with self._lock:
            self._connection.send(question)
            return int(self._connection.recv())

    def close(self) -> None:
        """End it, and all that it has forked."""
        self._connection.close()
        self._process.wait()


class WarmProcess:
    """A process that was forked, as `subprocess.Popen` shows it."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._warm = warm
        self._descriptor = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return its return code, None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._descriptor], [], [], 0)[0]:
                try:
                    self.returncode = self._warm.ask(self.pid)
                except (EOFError, OSError):  # it has ended with the process that had forked it
                    self.returncode = -signal.SIGKILL
                os.close(self._descriptor)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        code = self.poll()
        if code is None:
            select.select([self._descriptor], [], [], timeout)
            code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        with self._lock, suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve(connection: Any) -> tuple[str, list[str]] | None:
    """Fork what is asked for, until nobody asks any more; returns in each child, too, with its module and arguments."""
    server = os.getpid()
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return None
        if isinstance(asked, int):
            connection.send(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]))
            continue
        module, arguments, out, errors = asked
        pid = os.fork()
        if pid:
            connection.send(pid)
            continue
        end_with_parent()
        if os.getppid() != server:
            return None
        connection.close()
        for descriptor, path in ((1, out), (2, errors)):
            opened = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.dup2(opened, descriptor)
            os.close(opened)
        return module, arguments


def main() -> None:
    """Import modules, and fork them."""
    descriptor, *modules = sys.argv[1:]
    programs = {module: importlib.import_module(module) for module in modules}
    gc.freeze()
    asked = _serve(Connection(int(descriptor)))
    if asked is not None:
        module, sys.argv[1:] = asked
        programs[module].main()


if __name__ == "__main__":
    main()
