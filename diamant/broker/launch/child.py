"""Runs a command beside a broker, forwards signals to it, and returns its exit code as a shell would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO

TIMED_OUT, CANNOT_RUN, NOT_FOUND, SIGNALLED = 124, 126, 127, 128
"""Exit codes for a command that ran too long, a file that cannot be run, a missing file, and a command that a signal has ended,
whose number is added to `SIGNALLED`. The command `timeout` and shells use the same codes."""

GRACE_S = 10.0
"""The time between SIGTERM and SIGKILL. After a second SIGTERM, the command is killed immediately."""


class CannotRun(Exception):
    """The command could not be started. `exit_code` is the exit code that a shell would return."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
    limit_s: float | None = None,
) -> int:
    """Run a command with this process's input and output, and return its exit code. Call this on the main thread.

    `output`: a file for the command's standard output and standard error. `limit_s`: the time after which the command and all
    processes that it started are ended, with exit code TIMED_OUT; a command with a limit gets no input. Raises CannotRun if the
    command cannot be started.

    Forwards SIGTERM and SIGHUP to the command, and SIGINT unless the terminal sends it to both processes, so the command decides
    when to end. Ignores these signals after the command has ended, so that the caller can stop the broker cleanly.
    """
    stops = 0
    has_group = limit_s is not None
    """Whether the command and its processes are a separate process group, to which a terminal sends no signals."""
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None
    patience: threading.Timer | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal stops, patience
        if child is None:
            early.append(number)
            return
        is_of_terminal = number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty() and not has_group
        if child.returncode is not None or is_of_terminal:
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
        stdin = subprocess.DEVNULL if has_group else None
        process_group = 0 if has_group else None
        child = subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=output, stderr=output, process_group=process_group
        )
        while early:
            pass_on(early.pop(0), None)
        code = _waited_for(child, limit_s)
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


def _waited_for(child: subprocess.Popen[bytes], limit_s: float | None) -> int:
    """Wait for a child, and return its exit code. After the limit, end its process group and return TIMED_OUT."""
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return TIMED_OUT
