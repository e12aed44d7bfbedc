"""Scratch directories for one driver or one command on Spark, and for its JVM. They are removed when both have ended.

    <temporary directory>/diamant-driver-<random>/      mode 0700
        lock                locked while its broker or command runs; lists the directories below
        tmp/                TMPDIR and java.io.tmpdir
        spark/              spark.local.dir: shuffles and spills of `local[*]`, broadcasts
    <directory of spark.local.dir>/diamant-driver-<random>/     replaces spark/ if spark.local.dir or SPARK_LOCAL_DIRS is set

Spark removes its own directories, unless the JVM is killed. If a broker or command is killed, its lock becomes free, and the next
driver or command of the same user removes its directories. Creating and removing directories blocks on disk I/O.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping

from diamant.cleaner.spark.environment.spark_settings import LOCAL_DIRS

logger = logging.getLogger(__name__)

PREFIX = "diamant-driver-"
LOCAL_DIR = "spark.local.dir"
_MAKING_S = 60.0
"""If an empty lock file is younger than this, the process that created it may be about to lock it."""
_REMOVE_ATTEMPTS = 20
_REMOVE_PAUSE_S = 0.05


class DriverScratch:
    """The scratch directories of one driver or command. `conf` is Spark's configuration without them."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self.conf = dict(conf)
        """Spark's configuration with these directories."""
        self.environment: dict[str, str] = {}
        """Environment variables of the driver, in addition to those of this process."""
        self._directories: list[str] = []
        self._lock = -1

    def make(self) -> None:
        """Create the directories. Raises OSError; even then, `remove` must be called."""
        _remove_abandoned()
        home = tempfile.mkdtemp(prefix=PREFIX)
        self._directories.append(home)
        self._lock = os.open(f"{home}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # waits for processes that test whether `home` is abandoned
        roots = [one for one in (os.environ.get(LOCAL_DIRS) or self.conf.get(LOCAL_DIR, "")).split(",") if one]
        local = [f"{root}/{os.path.basename(home)}" for root in roots] or [f"{home}/spark"]
        os.write(self._lock, json.dumps(local).encode())
        self._directories += local
        for root in roots:
            os.makedirs(root, exist_ok=True)
        for directory in (f"{home}/tmp", *local):  # noqa: S108  (below a directory of mode 0700)
            os.mkdir(directory, 0o700)
        self.conf[LOCAL_DIR] = ",".join(local)
        self.environment["TMPDIR"] = f"{home}/tmp"  # noqa: S108
        if LOCAL_DIRS in os.environ:
            self.environment[LOCAL_DIRS] = ",".join(local)  # takes precedence over the configuration

    def remove(self) -> None:
        """Remove the directories, after the driver and its JVM have exited."""
        _remove(self._directories)
        if self._lock >= 0:
            os.close(self._lock)


def _remove(directories: list[str]) -> None:
    for directory in reversed(directories):
        for attempt in range(_REMOVE_ATTEMPTS):
            try:
                shutil.rmtree(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                # Python workers notice only after a moment that the JVM has ended, and may still write.
                if attempt + 1 < _REMOVE_ATTEMPTS:
                    time.sleep(_REMOVE_PAUSE_S)
                    continue
                logger.warning("%s cannot be removed: %s", directory, error)
            break


def _remove_abandoned() -> None:
    """Remove the directories of abandoned drivers."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for home in found:
        try:
            if os.lstat(home).st_uid != os.getuid():
                continue
            lock = os.open(f"{home}/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or being created or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            said = os.read(lock, 1 << 20)
            if not said and time.time() - os.fstat(lock).st_mtime < _MAKING_S:
                continue  # being created
            named = json.loads(said or b"[]")
            _remove([home, *(one for one in named if os.path.basename(one) == os.path.basename(home))])
        except (OSError, ValueError):
            continue  # in use
        finally:
            os.close(lock)
