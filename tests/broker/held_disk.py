"""A disk in memory whose fsyncs wait until the test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from diamant.storage.log.log import Log
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S


class HeldDisk:
    """Holds the fsyncs of logs in their threads until they may continue or fail."""

    def __init__(self, logs: list[Log], env: MemoryEnv) -> None:
        self.begun = {log: threading.Event() for log in logs}
        self._may_go_on = {log: threading.Event() for log in logs}
        self._errors: dict[Log, OSError] = {}
        for log in logs:
            env.before("sync", f"{log.path}/*.log", partial(self._hold, log), times=None)

    def _hold(self, log: Log) -> None:
        self.begun[log].set()
        self._may_go_on[log].wait(PATIENCE_S)
        if log in self._errors:
            raise self._errors[log]

    def go_on(self, log: Log, error: OSError | None = None) -> None:
        if error is not None:
            self._errors[log] = error
        self._may_go_on[log].set()


@contextmanager
def held_disk(logs: list[Log], env: MemoryEnv) -> Iterator[HeldDisk]:
    """A held disk that is released at the end of any test."""
    disk = HeldDisk(logs, env)
    try:
        yield disk
    finally:
        for log in logs:
            disk.go_on(log)
