"""Removes what earlier runs have left in the staging location when a broker starts; also lists that directory for a scan.

A thread of the broker sweeps a local directory. A remote one (s3:) needs pyarrow, which takes about 50 MB, and which an idle
broker should not load. So a child process sweeps it, within `TIMEOUT_S`. The child ends with the broker, and reads the URI, which
may contain secrets, from its standard input.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from diamant.cleaner.spark.clean.staging import RUN, Swept, staging_root, sweep
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_PROGRAM = (
    "import os, sys; os.nice(10); place = sys.argv[1]; place in sys.path or sys.path.insert(0, place); "
    "from diamant.cleaner.spark.runner.staging_sweep import main; sys.exit(main())"
)
_MAX_TEXT = 500
_CHECK_S = 0.2


class StagingSweep:
    """The sweep of one broker. Only one thread at a time may call `run`; any thread may call `stop`."""

    def __init__(self, env: Env, log_directory: str, staging: str) -> None:
        self._env = env
        self._log_directory = log_directory
        self._staging = staging
        self._is_stopped = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        """Guards the child, so that none is started after `stop`."""

    def run(self) -> bool:
        """Sweep (`staging.sweep`), and log the result; return True if another sweep is needed after `staging.YOUNG_S`.

        Blocks on I/O, for at most `TIMEOUT_S` if the staging location is remote.
        """
        try:
            if staging_root(self._staging).is_local:
                swept = sweep(self._env, self._log_directory, self._staging, RUN, self._is_stopped.is_set)
            else:
                swept = self._sweep_elsewhere()
        except (OSError, StorageError, subprocess.SubprocessError) as error:
            if not self._is_stopped.is_set():
                logger.warning("cannot remove leftovers of Spark jobs from the staging location: %s", _text(error))
            return False
        if swept.removed:
            logger.info("removed %d leftover directories of Spark jobs from the staging location", swept.removed)
        if swept.stuck:
            logger.warning(
                "cannot remove %d leftover directories of Spark jobs from the staging location: %s",
                swept.stuck,
                swept.reason[:_MAX_TEXT],
            )
        return swept.young > 0

    def stop(self) -> None:
        """Make `run` return, immediately or after it has removed the current directory."""
        self._is_stopped.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.terminate()

    def _sweep_elsewhere(self) -> Swept:
        with self._lock:
            if self._is_stopped.is_set():
                return Swept()
            child = self._child = _start(_PROGRAM)
        fields = {"log_directory": self._log_directory, "staging": self._staging, "run": RUN}
        try:
            out, err = child.communicate(json.dumps(fields), TIMEOUT_S)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        finally:
            self._child = None
        _check_end(child, err)
        return Swept(**json.loads(out))


def list_elsewhere(
    staging: str, check: Callable[[], object], *, program: str = _PROGRAM, timeout_s: float = TIMEOUT_S
) -> list[str]:
    """List a remote staging location in a child process. Blocks for at most `timeout_s`.

    `check` is called periodically; if it raises an error, the listing stops with that error. Raises OSError or StorageError if
    the directory cannot be listed.
    """
    child = _start(program)
    request: str | None = json.dumps({"staging": staging})
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            check()
            try:
                out, err = child.communicate(request, _CHECK_S)
                break
            except subprocess.TimeoutExpired:
                request = None
                if time.monotonic() >= deadline_s:
                    raise StorageError(f"it does not answer within {timeout_s:g} s") from None
    except BaseException:
        child.kill()
        child.communicate()
        raise
    _check_end(child, err)
    found: list[str] = json.loads(out)
    return found


def _start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(Path(__file__).resolve().parents[4]), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _check_end(child: subprocess.Popen[str], err: str) -> None:
    if child.returncode:
        raise StorageError(err.strip().rpartition("\n")[2][:_MAX_TEXT] or f"the process ended with {child.returncode}")


def _text(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it does not answer within {TIMEOUT_S:g} s"
    return str(error)[:_MAX_TEXT]


def _list(staging: str) -> list[str]:
    try:
        return [entry.name for entry in staging_root(staging).entries()]
    except FileNotFoundError:
        return []  # In an object store an empty directory does not exist.


def main() -> int:
    """Run the child, which prints its result."""
    from diamant.cleaner.runners.child_priority import die_with

    die_with(int(sys.argv[2]))
    fields = json.load(sys.stdin)
    try:
        if "run" not in fields:
            print(json.dumps(_list(fields["staging"])))
            return 0
        swept = sweep(RealEnv(), fields["log_directory"], fields["staging"], fields["run"])
    except (OSError, StorageError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(swept._asdict()))
    return 0
