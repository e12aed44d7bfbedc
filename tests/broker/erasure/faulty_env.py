"""Real files with injected faults: calls fail, are held, or are preceded by an action."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

from diamant.storage.env.env import MAX_SMALL_FILE, Buffer, File, RealEnv
from tests.waiting import PATIENCE_S


@dataclass(slots=True)
class Fault:
    """An action before some calls."""

    operation: str
    path_glob: str
    act: Callable[[], object]
    after: int
    """Calls before the first one."""
    times: float
    """Calls before which it happens."""


class FaultyEnv(RealEnv):
    """The operating system with `faults`, which a test may clear."""

    faults: tuple[Fault, ...] = ()

    def before(
        self, operation: str, path_glob: str, act: Callable[[], object], *, after: int = 0, times: float = inf
    ) -> None:
        """Call `act` before each call of `operation` on a matching path, in its thread. An exception fails the call.

        Skips the first `after` calls, and acts at most `times` times. A rename is matched by its source path.
        """
        self.faults = (*self.faults, Fault(operation, path_glob, act, after, times))

    def fail(self, operation: str, path_glob: str, error: int, *, after: int = 0) -> None:
        """Make calls fail with an errno, such as ENOSPC."""

        def fail() -> None:
            raise OSError(error, os.strerror(error), "somewhere")

        self.before(operation, path_glob, fail, after=after)

    def _begin(self, operation: str, path: str) -> None:
        for one in self.faults:
            if one.operation == operation and fnmatchcase(path, one.path_glob):
                one.after -= 1
                if -one.times <= one.after < 0:
                    one.act()

    def create_new(self, path: str) -> File:
        self._begin("create_new", path)
        return super().create_new(path)

    def list_dir(self, path: str) -> list[str]:
        self._begin("list_dir", path)
        return super().list_dir(path)

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        self._begin("read_bytes", path)
        return super().read_bytes(path, most)

    def rename(self, old: str, new: str) -> None:
        self._begin("rename", old)
        super().rename(old, new)

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        self._begin("remove", path)
        super().remove(path, missing_ok=missing_ok)

    def write_atomically(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self._begin("write_atomically", path)
        super().write_atomically(path, data, sync=sync)


class Held:
    """A system call that blocks its thread until the test releases it."""

    def __init__(self, env: object, operation: str, path_glob: str, *, after: int = 0) -> None:
        assert isinstance(env, FaultyEnv)
        self.begun, self.go_on = threading.Event(), threading.Event()
        env.before(operation, path_glob, self._hold, after=after)

    def _hold(self) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
