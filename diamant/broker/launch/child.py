"""The command that runs beside a broker: its start, the forwarding of signals, and its exit code in a shell's terms."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO

CANNOT_RUN, NOT_FOUND, SIGNALLED = 126, 127, 128
"""A shell's exit codes: for a file that cannot be run, for a missing file, and the base to which a signal's number is added."""

GRACE_S = 10.0
"""The time between SIGTERM and SIGKILL. A second SIGTERM ends the command at once."""


class CannotRun(Exception):
    """The command could not be started; `exit_code` is the one a shell would return."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def run_child(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None) -> int:
    """Run a command with this process's input and output, and return its exit code. Raises CannotRun. For the main thread.

    `output`: a file for its standard output and standard error.

    SIGTERM and SIGHUP are forwarded, and so is SIGINT unless a terminal sends it to both: the child decides when to end. After
    its end, signals are ignored, since an orderly stop follows.
    """
    stops = 0
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None
    patience: threading.Timer | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal stops, patience
        if child is None:
            early.append(number)
            return
        if child.returncode is not None or (number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()):
            return
        stops += number == signal.SIGTERM
        if stops > 1:
            child.kill()
            return
        child.send_signal(number)
        if stops == 1 and patience is None:
            patience = threading.Timer(GRACE_S, child.kill)
            patience.daemon = True
            patience.start()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        while early:
            pass_on(early.pop(0), None)
        code = child.wait()
    except FileNotFoundError:
        raise CannotRun(
            f"{command[0]}: command not found, or the interpreter named in its first line is missing", NOT_FOUND
        ) from None
    except OSError as error:
        raise CannotRun(f"{command[0]}: cannot be run: {error.strerror}", CANNOT_RUN) from None
    finally:
        if patience is not None:
            patience.cancel()
    return code if code >= 0 else SIGNALLED - code
